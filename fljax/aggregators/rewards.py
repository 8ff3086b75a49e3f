"""Rewards in the form of models: IAFL's rates and sampled means, and the baseline "Rank" of means by rank.

Sources: Wu et al., "Incentive-aware federated learning with training-time model rewards" (ICLR 2024), Equation (1),
Algorithm 1 and Procedure 2; for "Rank" the re-implementation that the paper's comparison uses.

Subsets are drawn by one number for each (row, column), keyed by both ids; its low bits are the column's id. So there
are no ties, and one sort of one array compiles quickly.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import AxisName, along_rows, check_shape, gather_over, on_any_mesh, presence
from fljax.aggregators.linear import mix
from fljax.core.trees import as_key, ratio, wide

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Array, Bool, Float, Int, Key, PyTree

# The reference model's row id; all other rows have client ids.
_REFERENCE = 2**31 - 1


def iafl_rates(
    contribution: Float[Array, " N"], *, ceiling: float | Array | Literal["max"] = "max", kappa: float | Array = 0.0
) -> Float[Array, " N"]:
    """Reward rates ``gamma_k = min(p_k / ceiling, 1)^(1 - kappa)`` in [0, 1].

    Args:
      contribution: ``[N]``, ``p_k``; negative values and NaN (a client that cannot be measured) count as 0.
      ceiling: ``p_ceil``, the contribution from which a client has rate 1; "max": the largest contribution, which makes
        rates relative to the best client.
      kappa: sharing coefficient in [0, 1]; at 1 every client has rate 1, even with a contribution of 0.

    Returns:
      ``[N]``, of at least the default precision. If all contributions are 0, all rates are 0 (for ``kappa`` below 1).
      An infinite contribution has rate 1. The derivative of a rate at a contribution of 0 is 0.

    Raises:
      ValueError: if ``ceiling`` is another string or a number that is not positive; traced values are not checked.

    Source: IAFL, Equation (1).
    """
    if isinstance(ceiling, str):
        if ceiling != "max":
            raise ValueError(f"expected ceiling to be a positive number or 'max', got {ceiling!r}")
    elif isinstance(ceiling, int | float) and not ceiling > 0:
        raise ValueError(f"expected ceiling to be positive, got {ceiling}")
    contribution = jnp.asarray(contribution)
    contribution = contribution.astype(jnp.promote_types(contribution.dtype, jnp.result_type(float)))
    contribution = jnp.where(contribution > 0, contribution, 0)  # NaN > 0 is False
    top = jnp.max(contribution, initial=0) if isinstance(ceiling, str) else jnp.asarray(ceiling, contribution.dtype)
    finite = jnp.isfinite(contribution)  # the quotient of two infinite values is NaN
    share = ratio(jnp.where(finite, contribution, 0), top)
    share = jnp.where(finite, share if isinstance(ceiling, str) else jnp.minimum(share, 1), 1)
    # The derivative of a power of 0 is not finite, also in the rates of the other clients.
    power, some = 1 - jnp.asarray(kappa, contribution.dtype), share > 0
    return jnp.where(some, jnp.where(some, share, 1) ** power, jnp.where(power > 0, 0, 1).astype(share.dtype))


@on_any_mesh
def iafl_subsets(
    key: Key[Array, ""],
    rates: Float[Array, " N"],
    *,
    ids: Int[Array, " S"] | None = None,
    present: Bool[Array, " S"] | None = None,
    axis_name: AxisName | None = None,
) -> Float[Array, "N S"]:
    """The weights with which each client's reward averages the updates: a matrix for ``mix``.

    Of the J clients that are present, row i averages ``min(ceil(rates_i (J - 1)), others present)`` other clients,
    drawn uniformly without replacement, and client i's own update if client i is present.

    Args:
      key: gives each (row, column) pair a random number that depends on both ids, not on the order of columns.
      rates: ``[N]`` in [0, 1], by id.
      ids: ``[S]`` different client ids of the columns; None: 0..N-1.
      present: ``[S]`` columns that may be used; None: all.
      axis_name: a mapped axis over which the S columns are split: every device or lane holds all of ``rates`` and
        ``[S/d]`` of ``ids`` and ``present``, and gets ``[N, S/d]``, its own columns. None: not split.

    Returns:
      ``[N, S]`` in the dtype of ``rates``, at least float32. A row sums to 1, or is all 0 if it averages no update.

    Raises:
      ValueError: if ``present`` has another shape, or ``ids`` is None and the columns are not those of all clients.

    Source: IAFL, Procedure 2; partial participation as in its authors' code. Note that each reward of a client includes
    the client's own update, so the mean reward over draws is biased towards that update.
    """
    rates = wide(rates)
    row = jnp.arange(rates.shape[0])
    ids, present, mine = _columns(rates, ids, present, axis_name)
    is_own = (ids[None, :] == row[:, None]) & present[None, :]
    drawn = _drawn(key, row, ids, present[None, :] & ~is_own, _count(rates, jnp.sum(present)), rates.shape[0])
    return mine(_means(is_own | drawn, rates.dtype))


@on_any_mesh
def iafl_reference(
    key: Key[Array, ""],
    rates: Float[Array, " N"],
    *,
    ids: Int[Array, " S"] | None = None,
    present: Bool[Array, " S"] | None = None,
    rule: Literal["max", "median"] = "max",
    members: Bool[Array, " N"] | None = None,
    axis_name: AxisName | None = None,
) -> Float[Array, "1 S"]:
    """The weights with which the reference model averages the updates: a row for ``mix``.

    The row averages ``ceil(gamma'_ref J)`` of the J clients that are present, drawn uniformly and independently of the
    clients' rewards. ``gamma' = (gamma (J - 1) + 1) / J`` is the share of updates, the client's own included, that a
    client with rate ``gamma`` averages.

    Args:
      key: may be the key of ``iafl_subsets``; the draws differ.
      rates: ``[N]`` in [0, 1].
      ids: as for ``iafl_subsets``.
      present: as for ``iafl_subsets``.
      rule: "max" or "median": ``gamma_ref`` is this statistic of the rates.
      members: ``[N]``, the clients whose rates count; None: all.
      axis_name: as for ``iafl_subsets``.

    Returns:
      ``[1, S]`` of sum 1, or zeros if no client is present.

    Raises:
      ValueError: if ``rule`` is not a valid name; as for ``iafl_subsets``.

    Source: IAFL, Procedure 2 and section 5.
    """
    if rule not in ("max", "median"):
        raise ValueError(f"expected a rule for the reference model, got {rule!r}; valid names are max, median")
    rates = wide(rates)
    ids, present, mine = _columns(rates, ids, present, axis_name)
    rate = _statistic(rates, rule, members)
    joined = jnp.sum(present)
    # ceil(gamma' J) = 1 + ceil(gamma (J - 1)); only the right side is free of rounding errors.
    count = jnp.where(joined > 0, 1 + _count(rate[None], joined), 0)
    chosen = _drawn(key, jnp.full((1,), _REFERENCE), ids, present[None, :], count, rates.shape[0])
    return mine(_means(chosen, rates.dtype))


def iafl_rewards(
    key: Key[Array, ""],
    updates: PyTree,
    rates: Float[Array, " N"],
    *,
    ids: Int[Array, " S"] | None = None,
    present: Bool[Array, " S"] | None = None,
    axis_name: AxisName | None = None,
) -> PyTree:
    """Every client's reward ``(1/|S_k|) sum_{j in S_k} updates_j``, as one matrix product; ADD it to client k's model.

    Args:
      key: see ``iafl_subsets``, which draws ``S_k``.
      updates: a pytree whose leaves are ``[S, ...]``, each new minus old; those of absent clients are never read.
      rates: ``[N]`` from ``iafl_rates``.
      ids: ``[S]`` client ids of the updates; None: 0..N-1.
      present: ``[S]``; None: all.
      axis_name: a mapped axis over which the S rows of ``updates``, ``ids`` and ``present`` are split; every device or
        lane holds all of ``rates``, and gets the whole result. None: not split.

    Returns:
      A pytree whose leaves are ``[N, ...]``; zero for a client whose ``S_k`` is empty.

    Raises:
      ValueError: as for ``iafl_subsets``, and if ``updates`` have no row for each column.

    Source: IAFL, Procedure 2.
    """
    subsets = iafl_subsets(key, rates, ids=ids, present=present, axis_name=axis_name)
    return mix(subsets, updates, axis_name=axis_name)


@on_any_mesh
def rank_rewards(
    updates: PyTree,
    score: Float[Array, " N"],
    *,
    ids: Int[Array, " N"] | None = None,
    present: Bool[Array, " N"] | None = None,
) -> PyTree:
    """Every client's reward by rank: the mean of its own update and the updates of all clients with lower scores.

    Clients are sorted by ascending ``score``. Position i (from 0) receives ``(1/(i+1)) sum_{j<=i} updates_j``.

    Args:
      updates: a pytree whose leaves are ``[N, ...]``, each new minus old.
      score: ``[N]``, e.g. validation accuracy after local training; equal scores are ordered by id.
      ids: ``[N]`` client ids; None: 0..N-1.
      present: ``[N]`` clients that trained; None: all. An absent client counts in the means with an update of zero.

    Returns:
      A pytree whose leaves are ``[N, ...]``, in the order and dtypes of ``updates``.

    Source: IAFL, section 6 (the baseline "Rank"), as its authors' code re-implements it.
    """
    score = jnp.asarray(score)
    present = presence(present, score.shape[0])
    ids = jnp.arange(score.shape[0]) if ids is None else jnp.asarray(ids)
    by_id = jnp.argsort(ids)
    order = by_id[jnp.argsort(score[by_id], stable=True)]
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype))

    def reward(leaf: Array) -> Array:
        rows = wide(jnp.where(along_rows(present, leaf), leaf, 0))
        count = jnp.arange(1, rows.shape[0] + 1, dtype=rows.dtype)
        means = jnp.cumsum(rows[order], axis=0) / along_rows(count, leaf)
        return means[place].astype(leaf.dtype)

    return jax.tree.map(reward, updates)


def ceiling_of(value: Float[Array, "*batch"]) -> Int[Array, "*batch"]:
    """``ceil(value)`` with tolerance for rounding errors: 2.0000000002 gives 2."""
    return jnp.ceil(value - jnp.minimum(1e-6 * jnp.maximum(1, value), 0.5)).astype(jnp.int32)


def columns_of(ids: Any, count: int, population: int, axis_name: AxisName | None) -> Int[Array, " S"]:
    """Client ids of ``count`` rows: ``ids``, or else consecutive numbers from 0 over all devices or lanes."""
    if ids is not None:
        check_shape("ids", ids, "S", count)
        return jnp.asarray(ids)
    rows = count if axis_name is None else count * jax.lax.psum(1, axis_name)
    if rows != population:
        raise ValueError(f"expected ids of the {rows} rows, since there are {population} clients, got None")
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * count
    return first + jnp.arange(count)


def _columns(
    rates: Array, ids: Any, present: Any, axis_name: AxisName | None
) -> tuple[Int[Array, " S"], Bool[Array, " S"], Callable[[Array], Array]]:
    """Ids and presence of all columns, and a function that cuts this device's own columns out of a result."""
    lanes = 1 if axis_name is None else jax.lax.psum(1, axis_name)
    rows = ids if ids is not None else present
    count = rates.shape[0] // lanes if rows is None else jnp.asarray(rows).shape[0]
    ids = columns_of(ids, count, rates.shape[0], axis_name)
    present = presence(present, ids.shape[0])
    if axis_name is None:
        return ids, present, lambda result: result
    first = jax.lax.axis_index(axis_name) * count
    mine = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=count, axis=1)
    return gather_over(ids, axis_name), gather_over(present, axis_name), mine


def _statistic(
    rates: Float[Array, " N"], rule: Literal["max", "median"], members: Bool[Array, " N"] | None
) -> Float[Array, ""]:
    """The largest rate of members, or the median of their rates."""
    if rule == "max":
        return jnp.max(rates if members is None else jnp.where(members, rates, 0))
    if members is None:
        return jnp.median(rates)
    # The others come last: rates are at most 1.
    ordered, count = jnp.sort(jnp.where(members, rates, 2)), jnp.maximum(jnp.sum(members), 1)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _count(rates: Float[Array, " R"], joined: Int[Array, ""]) -> Int[Array, " R"]:
    """The number of other clients whose updates a client with each rate receives."""
    others = (joined - 1).astype(rates.dtype)
    return jnp.clip(ceiling_of(rates * others), 0, jnp.maximum(joined - 1, 0))


def _drawn(
    key: Key[Array, ""],
    row: Int[Array, " R"],
    ids: Int[Array, " S"],
    eligible: Bool[Array, "R S"],
    count: Int[Array, " R"],
    population: int,
) -> Bool[Array, "R S"]:
    """Draws ``count[r]`` of the eligible columns of row r uniformly; all of them if there are fewer."""
    # The low bits of a random number hold the id, so no two numbers tie and no row draws too many columns.
    key, low = as_key(key), jnp.uint32((1 << max(population - 1, 1).bit_length()) - 1)

    def number(row: Array, id: Array) -> Array:
        bits = jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, row), id), dtype=jnp.uint32)
        return (bits & ~low) | (id.astype(jnp.uint32) & low)

    score = jax.vmap(lambda r: jax.vmap(lambda id: number(r, id))(ids))(row)
    ordered = jnp.sort(jnp.where(eligible, score, jnp.uint32(2**32 - 1)), axis=1)
    last = jnp.take_along_axis(ordered, jnp.clip(count - 1, 0, score.shape[1] - 1)[:, None], axis=1)
    return eligible & (score <= last) & (count > 0)[:, None]


def _means(chosen: Bool[Array, "R S"], dtype: Any) -> Float[Array, "R S"]:
    """Weights with which each row averages its chosen columns."""
    size = jnp.sum(chosen, axis=1, keepdims=True).astype(dtype)
    return jnp.where(chosen, 1 / jnp.maximum(size, 1), jnp.zeros((), dtype))
