"""Aggregation as a sum: what each client adds, and what becomes of the total.

Floor 0: imports JAX and jaxtyping only. Each update of a round is added to the sums as soon as it is made, so the
memory of a round does not grow with the cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fljax import trees
from fljax.types import Aggregate, Cohort, Held, Info, Seat, seen_from


class Part(NamedTuple):
    """What one client adds to the sums of a round.

    Attributes:
      value: a pytree of floating leaves ``[...]``.
      weight: ``[]``, or ``[R]`` where there are R sums (clusters, for example). A value whose weights are all 0 is
        never read.
    """

    value: PyTree
    weight: float | Array = 1.0


class Total(NamedTuple):
    """The sums of a round, in float32 or wider.

    Attributes:
      value: ``sum_s weight_s * value_s``: leaves ``[...]``, or ``[R, ...]`` where weights are ``[R]``.
      weight: ``sum_s weight_s``, ``[]`` or ``[R]``.
    """

    value: PyTree
    weight: Array


class Contribute(Protocol):
    """ONE ``(server, seat, up) -> (Part, Row)``: what this client adds, and a record of it, any pytree.

    ``server`` is as for ``send``: of what is ``PerClient`` it has the client's own row.
    """

    def __call__(self, server: PyTree, seat: Seat, up: PyTree, /) -> tuple[Part, PyTree]: ...


class Finish(Protocol):
    """``(key, round, server, total, rows, cohort, held) -> (Server, Info)``: what becomes of the sums of a round.

    ``rows`` are the records ``[S, ...]`` by row of the cohort, zeros where nobody is present. ``held`` maps names to
    Subsets of the server's own examples.
    """

    def __call__(
        self,
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: PyTree,
        total: Total,
        rows: PyTree,
        cohort: Cohort,
        held: Held,
        /,
    ) -> tuple[PyTree, Info]: ...


class Streamed(NamedTuple):
    """How what the cohort sends is folded into the server, client by client.

    With ``(part_s, row_s) = contribute(server, seat_s, up_s)`` of each client s that is present, ``finish`` is given
    ``sum_s weight_s * value_s``, ``sum_s weight_s`` and the rows. The engine adds the parts up while the cohort trains,
    and leaves out who is absent, whatever it holds (also NaN). What all clients of a round need besides, ``select``
    may put into the server.

    Attributes:
      contribute: see Contribute.
      finish: see Finish.
    """

    contribute: Contribute
    finish: Finish

    def __call__(
        self,
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: PyTree,
        up: PyTree,
        cohort: Cohort,
        held: Held,
    ) -> tuple[PyTree, Info]:
        """The same on a whole cohort, ``up`` [S, ...]: an ``Aggregate``."""

        def one(id: Array, slot: Array, up: PyTree) -> tuple[Part, PyTree]:
            seat = Seat(round, id, slot)
            return self.contribute(seen_from(server, seat), seat, up)

        parts, rows = jax.vmap(one)(cohort.id, cohort.slot, up)
        rows = trees.where_rows(cohort.present, rows, trees.zeros_like(rows))
        return self.finish(key, round, server, add_up(parts, cohort.present), rows, cohort, held)


def as_streamed(aggregate: Streamed | Aggregate) -> Streamed:
    """An aggregation of a whole cohort as one of which the record of a client is all that it sends.

    Nothing but their number is added up, so that ``finish`` finds the messages of the cohort in its rows.
    """
    if isinstance(aggregate, Streamed):
        return aggregate

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, PyTree]:
        return Part(()), up

    def finish(
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: PyTree,
        total: Total,
        rows: PyTree,
        cohort: Cohort,
        held: Held,
    ) -> tuple[PyTree, Info]:
        return aggregate(key, round, server, rows, cohort, held)

    return Streamed(contribute, finish)


def within(
    aggregate: Streamed | Aggregate, unwrap: Callable[[PyTree], PyTree], rewrap: Callable[[PyTree, PyTree], PyTree]
) -> Streamed:
    """``aggregate`` in a larger Server: ``unwrap(server)`` is its own, ``rewrap(server, own)`` puts a new one back."""
    inner = as_streamed(aggregate)

    def contribute(server: PyTree, seat: Seat, up: PyTree) -> tuple[Part, PyTree]:
        return inner.contribute(unwrap(server), seat, up)

    def finish(
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: PyTree,
        total: Total,
        rows: PyTree,
        cohort: Cohort,
        held: Held,
    ) -> tuple[PyTree, Info]:
        own, info = inner.finish(key, round, unwrap(server), total, rows, cohort, held)
        return rewrap(server, own), info

    return Streamed(contribute, finish)


def add_up(parts: Part, present: Bool[Array, " L"]) -> Total:
    """The sums over the leading axis of ``parts``, of those present: one matrix product for each leaf.

    Args:
      parts: leaves ``[L, ...]``, weights ``[L]`` or ``[L, R]``.
      present: ``[L]``. Who is absent is never read.

    Returns:
      The total, in float32 or wider. Products are taken at highest precision.

    Raises:
      ValueError: if a leaf holds integers, or a weight is neither one number nor a row of them.
    """
    weight = trees.wide(parts.weight)
    if weight.ndim not in (1, 2):
        raise ValueError(f"expected a weight of one number or [R] for each client, got shape {weight.shape[1:]}")
    for leaf in jax.tree.leaves(parts.value):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(f"expected floating leaves to add up, got a leaf of dtype {leaf.dtype}")
    weight = jnp.where(present.reshape(-1, *[1] * (weight.ndim - 1)), weight, 0)
    used = jnp.any(weight.reshape(weight.shape[0], -1) != 0, axis=1)

    def combine(leaf: Array) -> Array:
        rows = trees.wide(jnp.where(used[:, None], leaf.reshape(leaf.shape[0], -1), jnp.zeros((), leaf.dtype)))
        found = jnp.matmul(weight.T.astype(rows.dtype), rows, precision=jax.lax.Precision.HIGHEST)
        return found.reshape(*weight.shape[1:], *leaf.shape[1:])

    return Total(jax.tree.map(combine, parts.value), jnp.sum(weight, axis=0))


def mean(total: Total) -> PyTree:
    """``value / weight``: the weighted mean of what the clients added, zeros where no weight is left.

    It is in float32 or wider, as the sums are; ``trees.add_scaled`` gives a model to which it is added its own dtype.
    """
    return divided(total.value, total.weight)


def divided(value: PyTree, by: float | Array) -> PyTree:
    """``value / by``, zeros where ``by`` is zero; ``by`` is ``[]``, or ``[R]`` for leaves ``[R, ...]``.

    See ``trees.ratio``.
    """
    by = jnp.asarray(by)

    def divide(leaf: Array) -> Array:
        each = by.astype(leaf.dtype).reshape(by.shape + (1,) * (leaf.ndim - by.ndim))
        return trees.ratio(leaf, each)

    return jax.tree.map(divide, value)
