"""Estimators from models that the server puts together of a run's updates, and evaluates on validation rows.

Round t is a game over its cohort ``I_t``: ``U_t(S) = U(w_S) - U(w^t)`` with
``w_S = w^t + eta_g sum_{i in S} a_i Delta_i / sum_{i in S} a_i``, where U is larger for better models. Shapley values
of all rounds add up to ``U(w^T) - U(w^0)``, if the server's step is that of all present clients, as in FedAvg. Models
of coalitions are evaluated in blocks of ``batch_size`` (None: all at once).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

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
from fljax.contributions.solutions import LARGEST, marginals_along, members_of, shapley, value_table
from fljax.contributions.value_functions import coalition_value
from fljax.core import trees
from fljax.core.values import Count, NonNegative, Positive, checked

# Completion begins with this penalty, in units of the largest entry, and has settled if a sweep gains no more.
_FIRST_PENALTY, _SETTLED = 0.03, 1e-4
_MEANS = 10  # running means of GTG-Shapley that must agree


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
    penalty: Positive = 1e-3,
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
        return {"unobserved": ~jnp.any(memory[1], axis=0), "objective": found.objective, "converged": found.converged}

    return Estimator(start, observe, worth, details=details)


@checked
def completed_shapley_so_far(
    *,
    utility: Utility,
    rounds: Count,
    rank: int = 3,
    penalty: Positive = 1e-3,
    sweeps: int = 100,
    starts: Count = 8,
    batch_size: int | None = 256,
) -> Estimator:
    """ComFedSV inside a run: after each round ``completed_shapley`` of the last ``rounds`` rounds so far.

    Scores are NaN unless all members take part in one of these rounds. Cohorts smaller than the population are refused.
    Clients that left are in no coalition.
    """
    whole = completed_shapley(
        utility=utility, rank=rank, penalty=penalty, sweeps=sweeps, starts=starts, batch_size=batch_size
    )

    def start(model: PyTree, clients: int, _: int) -> Any:
        return whole.start(model, clients, rounds)

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        rows, clients = seen.present.shape[0], memory[0].shape[1].bit_length() - 1
        if rows < clients:
            raise ValueError(f"expected cohorts of all {clients} clients for completed_shapley, got cohorts of {rows}")
        place = round % rounds
        memory, _, cost = whole.observe((memory[0].at[place].set(0), memory[1].at[place].set(False)), seen, place)
        codes = jnp.arange(memory[0].shape[1])
        here = codes if seen.members is None else codes & jnp.sum(seen.members << jnp.arange(seen.members.shape[0]))
        total = jnp.sum(complete(*memory, rank=rank, penalty=penalty, sweeps=sweeps, starts=starts).table, axis=0)
        worth = trees.or_nan(jnp.all(jnp.any(memory[1], axis=0)[here]), shapley(total[here]))
        return memory, worth[seen.ids], cost

    return Estimator(start, observe)


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


@checked
def gtg_shapley(
    *,
    utility: Utility,
    round_tolerance: NonNegative = 1e-3,
    order_tolerance: NonNegative = 1e-3,
    least_orders: Count = 30,
    most_orders: int | None = None,
    convergence: NonNegative = 0.05,
    orders: Any = None,
    rescale: bool = False,
    batch_size: int | None = 256,
) -> Estimator:
    """``phi_i = sum_t`` of the mean marginal contributions of client i to ``U_t`` over random orders, truncated.

    A round with ``|U(w_{I_t}) - U(w^t)| <= round_tolerance`` counts 0 for all and takes 2 evaluations. Otherwise orders
    are drawn, of which each present client leads one in turn. In an order, marginals are 0 after a prefix P with
    ``|U(w_{I_t}) - U(w_P)| < order_tolerance``. After at least ``max(least_orders, |I_t|)`` orders the rule stops if
    ``max over the last 10 running means of mean_i |mean_i - last_i| / (|last_i| + 1e-12) <= convergence``.

    Models of one order are evaluated together, also those that truncation would leave out. ``cost`` counts what the
    sequential rule evaluates: each coalition once up to 16 rows, and every prefix with more.

    Args:
      utility: ``params -> number``, larger is better.
      round_tolerance: see above.
      order_tolerance: see above; 0 truncates nothing.
      least_orders: see above.
      most_orders: after which the rule stops; None: ``min(0.8 2^S, 1000)``, but at least ``max(least_orders, S)``.
      convergence: see above.
      orders: ``[K, S]``, the rows of the cohort in their order of arrival; None: drawn. If given, all are used.
      rescale: multiply a round's values by a factor with which the positive ones add up to the gain of the round, as
        in code of others. The sum of all values is not the gain then if one is negative.
      batch_size: number of models that are evaluated side by side; None: all of an order.

    Raises:
      ValueError: if ``orders`` is no array of orders. ``observe`` needs a key if ``orders`` is None.

    Source: Liu et al., "GTG-Shapley" (ACM TIST 2022). The rule of convergence is that of public code.
    """
    given = None if orders is None else np.asarray(orders)
    if given is not None and (given.ndim != 2 or (np.sort(given, axis=1) != np.arange(given.shape[-1])[None]).any()):
        raise ValueError(f"expected orders [K, S] with all of 0..S-1 in each row, got shape {given.shape}")

    def observe(memory: Any, seen: Observation, round: Array) -> tuple[Any, Array, Cost]:
        here, rows = seen.present, seen.present.shape[0]
        if given is not None and given.shape[1] != rows:
            raise ValueError(f"expected orders of {rows} rows, got {given.shape[1]}")
        if given is None and seen.key is None:
            raise ValueError("expected a key for random orders, got none")
        least, most = (max(least_orders, rows),) * 2 if given is None else (len(given),) * 2
        if given is None:
            usual = max(least, min(math.ceil(0.8 * 2 ** min(rows, 11)), 1000))  # from 11 rows on it is 1000
            most = usual if most_orders is None else max(most_orders, 1)
        key: Any = seen.key
        value, count = round_game(utility, seen), jnp.sum(here)
        whole, empty = value_table(value, jnp.stack([here, jnp.zeros_like(here)]), None)
        skipped = jnp.abs(whole - empty) <= round_tolerance
        places = None if given is None else jnp.asarray(np.argsort(given, axis=1))
        if given is None:  # in a drawn order, since the last turn of leading may not reach all of them
            lots = jax.random.uniform(jax.random.fold_in(key, most), (rows,), jnp.float32)
            leaders = jnp.argsort(jnp.where(here, lots, 2))

        def place_of(k: Array) -> Array:
            if places is not None:
                return places[k]
            draws = jax.random.uniform(jax.random.fold_in(key, k), (rows,), jnp.float32)
            draws = draws.at[leaders[k % jnp.maximum(count, 1)]].set(-1)
            return jnp.argsort(jnp.argsort(draws))

        def one(k: Array, known: Array) -> tuple[Array, Array]:
            place = place_of(k)
            inside = (place[None, :] < jnp.arange(1, rows)[:, None]) & here[None, :]
            number = jnp.sum(inside, axis=1)
            between = value_table(value, inside, batch_size) if rows > 1 else jnp.zeros(0, whole.dtype)
            between = jnp.where(number == count, whole, jnp.where(number == 0, empty, between))
            along = jnp.concatenate([empty[None], between, whole[None]])
            stopped = jax.lax.cummax((jnp.abs(whole - along[:-1]) < order_tolerance).astype(int)) > 0
            marginal = jnp.where(stopped[place], 0, marginals_along(along, place))
            arrives = here[jnp.argsort(place)]
            asked = arrives[:-1] & ~stopped[:-1] & (number > 0) & (number < count)
            if rows > LARGEST:
                return marginal, known + jnp.sum(asked)
            codes = jnp.sum(jnp.where(inside, jnp.left_shift(1, jnp.arange(rows))[None, :], 0), axis=1)
            known = known.at[jnp.where(asked, codes, known.shape[0])].set(True, mode="drop")
            return marginal, known

        def go_on(carry: tuple[Array, ...]) -> Array:
            k, _, _, _, done = carry
            return ~done & (k < most)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            k, total, means, known, _ = carry
            marginal, known = one(k, known)
            total, k = total + marginal, k + 1
            last = total / k
            means = jnp.concatenate([means[1:], last[None]])
            off = jnp.abs(means - last[None]) / (jnp.abs(last) + 1e-12)[None]
            off = jnp.sum(jnp.where(here[None], off, 0), axis=1) / jnp.maximum(count, 1)
            off = jnp.max(jnp.where(jnp.arange(_MEANS) >= _MEANS - k, off, 0))
            done = (off <= convergence) & (k >= jnp.maximum(least_orders, count)) & (given is None)
            return k, total, means, known, done

        none = jnp.zeros(rows, whole.dtype)
        known = jnp.zeros(2**rows, bool) if rows <= LARGEST else jnp.zeros((), int)
        begin = jnp.zeros((), int), none, jnp.zeros((_MEANS, rows), whole.dtype), known, skipped
        k, total, _, known, _ = jax.lax.while_loop(go_on, step, begin)
        row = jnp.where(skipped, 0, total / jnp.maximum(k, 1))
        if rescale:
            row = row * trees.ratio(whole - empty, jnp.sum(jnp.maximum(row, 0)))
        return memory + k, row, Cost(evaluations=2 + jnp.sum(known))

    return Estimator(lambda *_: jnp.zeros((), int), observe, details=lambda memory: {"orders": memory})
