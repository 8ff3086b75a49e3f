"""Attacks of colluding clients that see the honest updates: functions give the one update that all attackers send.

Leaves of ``updates [S, ...]`` count as one vector; ``honest [S]`` are the rows that attackers see, of which those with
NaN or infinity are left out. Results have leaves ``[...]`` in the same dtypes, zeros with no honest row. A mask of
another shape is a ValueError. ``mu_H`` and ``sigma_H`` are mean and standard deviation of honest rows, with
``n_H - 1``; ``sigma_H`` of one row is 0. The gamma of ``min_max`` and ``min_sum`` is a closed form of the papers'
bisection; for ``min_sum`` since ``sum_j ||x_i - x_j||^2 = n_H ||d_i||^2 + sum_j ||d_j||^2`` with ``d_i = mu_H - x_i``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import check_shape, on_any_mesh, presence, read_rows, shaped
from fljax.core.trees import ratio, root

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

Direction = Literal["deviation", "unit", "sign"]


class _Honest(NamedTuple):
    """The honest updates as rows of one matrix, and 0 in other rows."""

    rows: Bool[Array, " S"]
    number: Float[Array, ""]
    updates: Float[Array, "S d"]
    mean: Float[Array, " d"]
    apart: Float[Array, "S d"]  # the mean minus each row

    def deviation(self) -> Float[Array, " d"]:
        return root(jnp.sum(self.apart * self.apart, axis=0) / jnp.maximum(self.number - 1, 1))


def _sent(updates: PyTree, honest: Any, attack: Callable[[_Honest], Array]) -> PyTree:
    """What an attack makes of the honest rows, as one row of ``updates``."""
    seen, rows, count = read_rows(updates, honest)
    # Squares of large entries overflow. By a power of two, no division rounds.
    top = jax.lax.stop_gradient(jnp.max(jnp.abs(seen), initial=0))
    unit = jnp.ldexp(jnp.ones((), seen.dtype), jnp.frexp(top)[1] - 1)
    seen, number = seen / unit, count.astype(seen.dtype)
    mean = ratio(jnp.sum(seen, axis=0), number)
    apart = jnp.where(rows[:, None], mean[None] - seen, 0)
    return shaped(unit * attack(_Honest(rows, number, seen, mean, apart)), updates)


@on_any_mesh
def a_little_is_enough(
    updates: PyTree, honest: Bool[Array, " S"], attackers: Bool[Array, " S"], *, deviations: float | Array | None = None
) -> PyTree:
    """ALIE: ``mu_H - deviations sigma_H``, so few standard deviations that attackers look honest.

    ``deviations`` of None is ``Phi^-1((n - A - s) / (n - A))`` for A ``attackers [S]`` of n clients, at least 0, with
    ``s = max(floor(n / 2 + 1) - A, 1)``. It is 0 for few clients (2 attackers of 10), so give a number there.
    Source: Baruch et al., "A little is enough" (NeurIPS 2019).
    """

    def attack(seen: _Honest) -> Array:
        bad = jnp.sum(presence(attackers, len(seen.rows)), dtype=seen.number.dtype)
        supporters = jnp.maximum(jnp.floor((seen.number + bad) / 2 + 1) - bad, 1)
        usual = jax.scipy.special.ndtri(jnp.maximum(ratio(seen.number - supporters, seen.number), 0.5))
        factor = usual if deviations is None else jnp.asarray(deviations, usual.dtype)
        return seen.mean - factor * seen.deviation()

    return _sent(updates, honest, attack)


@on_any_mesh
def inner_product_manipulation(updates: PyTree, honest: Bool[Array, " S"], *, scale: float | Array = 0.5) -> PyTree:
    """IPM: ``-scale mu_H``, against the honest mean. Source: Xie et al., "Fall of empires" (UAI 2019)."""
    return _sent(updates, honest, lambda seen: -jnp.asarray(scale, seen.mean.dtype) * seen.mean)


def _moved(updates: PyTree, honest: Any, direction: str, reach: Callable[[_Honest, Array], Array]) -> PyTree:
    """``mu_H + reach p / ||p||``; ``mu_H`` if p is 0."""
    if direction not in get_args(Direction):
        raise ValueError(f"expected a direction, got {direction!r}; valid names are {', '.join(get_args(Direction))}")

    def attack(seen: _Honest) -> Array:
        way = seen.deviation() if direction == "deviation" else seen.mean
        way = -jnp.sign(way) if direction == "sign" else -way
        way = ratio(way, root(jnp.sum(way * way)))
        return seen.mean + jnp.where(seen.number > 0, reach(seen, way), 0) * way

    return _sent(updates, honest, attack)


@on_any_mesh
def min_max(updates: PyTree, honest: Bool[Array, " S"], *, direction: Direction = "deviation") -> PyTree:
    """``mu_H + gamma p``, as far as it is no farther from any honest row than two honest rows from each other.

    ``gamma = min_i [-<d_i, p> + sqrt(<d_i, p>^2 + ||p||^2 (B - ||d_i||^2))] / ||p||^2`` with B the largest squared
    distance of two honest rows and ``d_i = mu_H - x_i``. It is 0 if ``p = 0``. ``direction`` names p. "deviation":
    ``-sigma_H``; "unit": ``-mu_H / ||mu_H||``; "sign": ``-sign(mu_H)``; another name: ValueError.
    Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine" (NDSS 2021).
    """

    def reach(seen: _Honest, way: Array) -> Array:
        product = jnp.matmul(seen.apart, seen.apart.T, precision="highest")
        square, along = jnp.diagonal(product), jnp.sum(seen.apart * way[None], axis=1)
        pairs = square[:, None] + square[None, :] - 2 * product
        most = jnp.max(jnp.where(seen.rows[:, None] & seen.rows[None, :], pairs, 0), initial=0)
        return jnp.min(jnp.where(seen.rows, root(along * along + most - square) - along, jnp.inf), initial=jnp.inf)

    return _moved(updates, honest, direction, reach)


@on_any_mesh
def min_sum(updates: PyTree, honest: Bool[Array, " S"], *, direction: Direction = "deviation") -> PyTree:
    """``mu_H + gamma p``, whose squared distances to honest rows add up to the largest such sum of an honest row.

    ``gamma = max_i ||d_i|| / ||p||``; ``direction`` and source are those of ``min_max``.
    """

    def reach(seen: _Honest, way: Array) -> Array:
        return root(jnp.max(jnp.sum(seen.apart * seen.apart, axis=1), initial=0))

    return _moved(updates, honest, direction, reach)


@on_any_mesh
def mimic(updates: PyTree, honest: Bool[Array, " S"], id: Int[Array, " S"]) -> PyTree:
    """The update of the honest client with the lowest ``id`` (``[S]``), in its first row, which counts too often.

    Source: Karimireddy et al., "Byzantine-robust learning on heterogeneous datasets via bucketing" (ICLR 2022).
    """

    def attack(seen: _Honest) -> Array:
        check_shape("id", id, "S", len(seen.rows))
        place = jnp.argmin(jnp.where(seen.rows, id, jnp.iinfo(jnp.asarray(id).dtype).max))
        return seen.updates[place]

    return _sent(updates, honest, attack)
