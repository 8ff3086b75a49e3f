"""GTG-Shapley: truncated Shapley values of each round's game, from orders that each client leads in turn."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax.contributions.coalitions import LARGEST, value_table
from fljax.contributions.estimators.rounds import Cost, Estimator, Observation, Utility, round_game
from fljax.contributions.semivalues import marginals_along
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked

_MEANS = 10  # running means that must agree


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

    def start(model: PyTree, clients: int, rounds: int) -> Array:
        return jnp.zeros((), int)

    def details(memory: Any) -> dict[str, Any]:
        return {"orders": memory}

    return Estimator(start, observe, details=details)
