"""Estimators from models that the server puts together of a run's updates, and evaluates on validation rows.

Round t is a game over its cohort ``I_t``: ``U_t(S) = U(w_S) - U(w^t)`` with
``w_S = w^t + eta_g sum_{i in S} a_i Delta_i / sum_{i in S} a_i``, where U is larger for better models. A sum over all
rounds of Shapley values of these games is ``U(w^T) - U(w^0)``, if the server's step is that of all present clients, as
in FedAvg.

Each function builds an ``Estimator`` (``fljax.contributions.estimators.rounds``). All work under ``jit``. They need
every single update, and the models of all coalitions are evaluated in blocks of ``batch_size`` (None: all at once).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax.contributions.coalitions import members_of, value_table
from fljax.contributions.estimators.rounds import (
    Cost,
    Estimator,
    Observation,
    Utility,
    check_rows,
    no_memory,
    round_game,
    round_table,
)
from fljax.contributions.semivalues import shapley
from fljax.contributions.value_functions import coalition_value
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked

# Completion begins with this penalty, in units of the largest entry, and has settled if a sweep gains no more.
_FIRST_PENALTY, _SETTLED = 0.03, 1e-4


@checked
def one_round(
    *, utility: Utility, kept: Literal["coalitions", "updates"] = "coalitions", batch_size: int | None = 256
) -> Estimator:
    """Shapley values of ``v(S) = U(w^0 + sum_t eta_g sum_{S in I_t} a_i Delta_i^t / sum_{S in I_t} a_i)``.

    The models of all coalitions follow from the updates of the one run, and are evaluated after the last round: ``2^N``
    evaluations.

    Args:
      utility: ``params -> number``, larger is better.
      kept: "coalitions" keeps ``2^N`` models, right for any cohorts. "updates" keeps the N sums of updates, right for
        full participation and constant weights; with other rounds the result is NaN.
      batch_size: see the module.

    Raises:
      ValueError: if there are more than 16 clients, when it begins.

    Source: Song, Tong and Wei, "Profit allocation for federated learning" (IEEE BigData 2019), OR.
    """

    def start(model: PyTree, clients: int, rounds: int) -> Any:
        check_rows(clients)
        count = 2**clients if kept == "coalitions" else clients
        steps = jax.tree.map(lambda leaf: jnp.zeros((count, *jnp.shape(leaf)), trees.wide(leaf).dtype), model)
        weights = jnp.zeros(clients, jnp.result_type(float))
        return jax.tree.map(jnp.asarray, model), steps, weights, jnp.asarray(True)

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        model, steps, weights, valid = memory
        clients = weights.shape[0]
        row = jnp.zeros_like(seen.weights)
        if kept == "updates":
            scaled = jax.tree.map(lambda leaf: trees.wide(leaf) * seen.server_rate, seen.updates)
            steps = trees.add_rows(steps, seen.ids, seen.present, scaled)
            total = jnp.sum(seen.weights)
            now = trees.set_rows(jnp.zeros_like(weights), seen.ids, seen.present, trees.ratio(seen.weights, total))
            alike = jnp.max(jnp.abs(now - weights)) <= 1e-5
            everyone = jnp.sum(seen.present) == clients
            weights = jnp.where(round == 0, now, weights)
            return (model, steps, weights, valid & everyone & (alike | (round == 0))), row, Cost()
        inside = jnp.asarray(members_of(clients))[:, seen.ids] & seen.present[None, :]
        share = jnp.where(inside, seen.weights[None, :], 0)
        share = seen.server_rate * trees.ratio(share, jnp.sum(share, axis=1, keepdims=True))

        def add(step: Array, leaf: Any) -> Array:
            return step + jnp.tensordot(share.astype(step.dtype), leaf.astype(step.dtype), 1, precision="highest")

        return (model, jax.tree.map(add, steps, seen.updates), weights, valid), row, Cost()

    def worth(memory: Any, total: Array) -> Array:
        model, steps, weights, valid = memory
        if kept == "updates":
            value = coalition_value(steps, model, lambda params: -utility(params), weights)
            table = value_table(value, jnp.asarray(members_of(weights.shape[0])), batch_size)
        else:

            def value_of(step: PyTree) -> Array:
                found = jnp.asarray(utility(trees.add_scaled(model, step)))
                return found.astype(jnp.result_type(float))

            size = batch_size if batch_size is None else min(batch_size, 2 ** weights.shape[0])
            table = jax.vmap(value_of)(steps) if size is None else jax.lax.map(value_of, steps, batch_size=size)
        return trees.or_nan(valid, shapley(table))

    return Estimator(start, observe, worth, lambda clients: Cost(evaluations=2**clients))


@checked
def multi_round(
    *,
    utility: Utility,
    decay: NonNegative = 1.0,
    least_decay: NonNegative = 0.0,
    normalised: bool = False,
    batch_size: int | None = 256,
) -> Estimator:
    """``phi_i = sum_t decay^t SV_t(i)``, with ``SV_t`` the Shapley values of the game of round t.

    ``2^|I_t|`` evaluations a round. With ``decay = 1`` the values add up to ``U(w^T) - U(w^0)`` (see the module).

    Args:
      utility: ``params -> number``, larger is better.
      decay: lambda; 1 is MR, below 1 lambda-MR.
      least_decay: rounds with ``decay^t`` below it count 0 (TMR).
      normalised: divide ``SV_t`` by ``|sum_i SV_t(i)|``, so that every round has the same weight.
      batch_size: see the module.

    Raises:
      ValueError: if a cohort has more than 16 rows, at the first round.

    Source: Song, Tong and Wei, "Profit allocation for federated learning" (IEEE BigData 2019); Wei et al., "Efficient
    and fair data valuation for horizontal federated learning" (2020). The powers are our reading of the papers.
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        row = jnp.asarray(shapley(round_table(utility, seen, batch_size)))
        if normalised:
            row = trees.ratio(row, jnp.abs(jnp.sum(row)))
        factor = jnp.power(jnp.asarray(decay, row.dtype), round.astype(row.dtype))
        row = jnp.where(factor < least_decay, 0, factor * row)
        return memory, row, Cost(evaluations=jnp.left_shift(1, jnp.sum(seen.present)))

    return Estimator(no_memory, observe)


@checked
def fed_shapley(*, utility: Utility, batch_size: int | None = 256) -> Estimator:
    """FedSV: ``phi_i = sum_t SV_t(i)`` over the rounds in which client i took part: ``multi_round`` with its defaults.

    Args:
      utility: ``params -> number``, larger is better.
      batch_size: see the module.

    Raises:
      ValueError: if a cohort has more than 16 rows, at the first round.

    Source: Wang et al., "A principled approach to data valuation for federated learning" (2020).
    """
    return multi_round(utility=utility, batch_size=batch_size)


@checked
def completed_shapley(
    *,
    utility: Utility,
    rank: int = 3,
    penalty: NonNegative = 1e-3,
    sweeps: int = 100,
    starts: Count = 8,
    batch_size: int | None = 256,
) -> Estimator:
    """ComFedSV: unknown values of rounds are completed by a matrix of low rank, then Shapley values of their sum.

    ``U_t(S)`` is known for S in ``I_t``. W ``[T, rank]`` and H ``[2^N, rank]`` minimise
    ``sum_known (U - W H^T)^2 + penalty (||W||^2 + ||H||^2)`` by ridge regressions in turn. There are several minima:
    the best of some starts counts, and the penalty falls to its value in the first half of the sweeps. ``phi`` are the
    Shapley values of ``sum_t (W H^T)_t``. Each coalition must be known in some round, as it is if all clients take part
    in one; otherwise all values are NaN, and ``details["unobserved"]`` ``[2^N]`` has these coalitions.
    ``details["objective"]`` ``[starts]`` is what each start has reached, and ``details["converged"]`` whether the last
    sweep of the best one lowered it by no more than 1e-4 of it.

    Args:
      utility: ``params -> number``, larger is better.
      rank: columns of W and H.
      penalty: positive; small values need double precision.
      sweeps: number of regressions of W, and of H.
      starts: number of starts, from fixed keys.
      batch_size: see the module.

    Raises:
      ValueError: if there are more than 16 clients.

    Source: Fan et al., "Improving fairness for data valuation in horizontal federated learning" (ICDE 2022).
    """

    def start(model: PyTree, clients: int, rounds: int) -> Any:
        check_rows(clients)
        table = jnp.zeros((rounds, 2**clients), jnp.result_type(float))
        return table, table > 0

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        table, known = memory
        rows = seen.present.shape[0]
        bits = jnp.where(seen.present, jnp.left_shift(1, seen.ids), 0)
        codes = jnp.sum(jnp.where(jnp.asarray(members_of(rows)), bits[None, :], 0), axis=1)
        found = round_table(utility, seen, batch_size).astype(table.dtype)
        memory = table.at[round, codes].set(found), known.at[round, codes].set(True)
        return memory, jnp.zeros_like(seen.weights), Cost(evaluations=jnp.left_shift(1, jnp.sum(seen.present)))

    def completed(memory: Any) -> Completed:
        return complete(*memory, rank=rank, penalty=penalty, sweeps=sweeps, starts=starts)

    def worth(memory: Any, total: Array) -> Array:
        known = jnp.all(jnp.any(memory[1], axis=0))
        return trees.or_nan(known, shapley(jnp.sum(completed(memory).table, axis=0)))

    def details(memory: Any) -> dict[str, Any]:
        found = completed(memory)  # one compiled program computes it once
        return {
            "unobserved": ~jnp.any(memory[1], axis=0),
            "objective": found.objective,
            "converged": found.converged,
        }

    return Estimator(start, observe, worth, details=details)


class Completed(NamedTuple):
    """``W H^T`` ``[T, M]`` of the best start, the objective of all starts, and whether that of the best has settled."""

    table: Array
    objective: Array
    converged: Array


def complete(
    table: Array, known: Array, *, rank: int, penalty: float | Array, sweeps: int, starts: int = 1
) -> Completed:
    """Completes ``table`` ``[T, M]`` from its known entries, see ``completed_shapley``."""
    mask, dtype = known.astype(table.dtype), table.dtype
    # The problem in units of the largest entry, U = size U', has the penalty size p' = p.
    size = jnp.max(jnp.abs(table * mask))
    unit = jnp.where(size > 0, size, 1)
    scaled, least = table * mask / unit, jnp.asarray(penalty, dtype) / unit

    def regressed(values: Array, weights: Array, factor: Array, ridge: Array) -> Array:
        gram = jnp.einsum("ts,si,sj->tij", weights, factor, factor, precision="highest")
        right = jnp.einsum("ts,si->ti", values, factor, precision="highest")
        return jnp.linalg.solve(gram + ridge * jnp.eye(rank, dtype=dtype)[None], right[..., None])[..., 0]

    def sweep(turn: Any, factors: tuple[Array, Array]) -> tuple[Array, Array]:
        ahead = jnp.maximum(1 - 2 * jnp.asarray(turn, dtype) / sweeps, 0)
        ridge = least * jnp.maximum(trees.ratio(_FIRST_PENALTY, least), 1) ** ahead
        first = regressed(scaled, mask, factors[1], ridge)
        return balanced(first, regressed(scaled.T, mask.T, first, ridge))

    def balanced(first: Array, second: Array) -> tuple[Array, Array]:
        """The factors of the same product with the least penalty, which regressions alone approach slowly."""
        (one, right), (other, below) = jnp.linalg.qr(first), jnp.linalg.qr(second)
        left, sizes, turned = jnp.linalg.svd(jnp.matmul(right, below.T, precision="highest"), full_matrices=False)
        root = jnp.sqrt(sizes)[None]
        pairs = (one, left * root), (other, turned.T * root)
        found = (jnp.matmul(*pair, precision="highest") for pair in pairs)
        first, second = (jnp.pad(leaf, ((0, 0), (0, rank - leaf.shape[1]))) for leaf in found)  # few rounds or sets
        return first, second

    def objective(factors: tuple[Array, Array]) -> Array:
        off = mask * (scaled - jnp.matmul(factors[0], factors[1].T, precision="highest"))
        return jnp.sum(off**2) + least * sum(jnp.sum(factor**2) for factor in factors)

    def one(start: Array) -> tuple[tuple[Array, Array], Array, Array]:
        key = jax.random.fold_in(jax.random.key(0), start)
        begin = jax.random.normal(key, (table.shape[1], rank), jnp.float32).astype(dtype)
        zero = jnp.zeros((table.shape[0], rank), dtype)
        before = jax.lax.fori_loop(0, sweeps - 1, sweep, (zero, begin))
        after = sweep(sweeps - 1, before)
        return after, objective(before), objective(after)

    factors, before, after = jax.lax.map(one, jnp.arange(starts))
    best = jnp.argmin(after)
    first, second = trees.take(factors, best)
    converged = before[best] - after[best] <= _SETTLED * after[best]
    return Completed(unit * jnp.matmul(first, second.T, precision="highest"), unit**2 * after, converged)


@checked
def in_run_leave_one_out(*, utility: Utility, batch_size: int | None = 256) -> Estimator:
    """``phi_i = sum_t (U_t(I_t) - U_t(I_t - i))``: ``|I_t| + 1`` evaluations a round.

    Args:
      utility: ``params -> number``, larger is better.
      batch_size: see the module.
    """

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        rows = seen.present.shape[0]
        members = jnp.concatenate([jnp.ones((1, rows), bool), ~jnp.eye(rows, dtype=bool)]) & seen.present[None, :]
        found = value_table(round_game(utility, seen), members, batch_size)
        return memory, found[0] - found[1:], Cost(evaluations=jnp.sum(seen.present) + 1)

    return Estimator(no_memory, observe)
