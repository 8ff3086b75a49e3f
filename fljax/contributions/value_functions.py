"""Shapley values of clients, exact or from random permutations, for a given value function of coalitions.

Sources: Shapley, "A value for n-person games" (1953); Ghorbani and Zou, "Data Shapley" (ICML 2019), Equation 1 and
Algorithm 1 (without its truncation, which is biased); Castro et al., "Polynomial calculation of the Shapley value based
on sampling" (2009) for the standard error; Mitchell et al., "Sampling permutations for Shapley value estimation" (JMLR
2022), section 2, for pairs of opposite orders.

Kendall's tau-b, with ties, and Spearman's rho say how well contributions agree with the truth. A row that is constant,
or has one client only, has no ranks: the result is NaN, never 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax.contributions.solutions import (
    LARGEST,
    Numbers,
    Value,
    marginals_along,
    mean_of_samples,
    members_of,
    shapley,
    value_table,
)
from fljax.core import trees
from fljax.core.names import check_unlabelled, plain


def exact_shapley(value: Value, clients: int, *, batch_size: int | None = 256) -> Float[Array, " N"]:
    """Shapley values ``[N]`` of all ``2^N`` coalitions, under jit: the mean marginal contribution over all orders.

    ``phi_i = sum_{S without i} |S|! (N - |S| - 1)! / N! (v(S + i) - v(S))``.

    Args:
      value: maps ``[N]`` bools (True for members of the coalition) to a number; mapped over coalitions.
      clients: N, an int of at most 16. Above about 12, the cost of ``value`` decides whether this is practical.
      batch_size: number of coalitions evaluated side by side; None: all. Memory use grows in proportion.

    Returns:
      ``[N]`` in the dtype of ``value`` if that is floating. The sum is ``v(all clients) - v(empty)``.

    Raises:
      ValueError: if ``clients`` is not in 1..16, or ``value`` does not return a single number.
    """
    if not 1 <= clients <= LARGEST:
        raise ValueError(
            f"expected from 1 to {LARGEST} clients for exact Shapley values (2^N coalitions), got {clients}; "
            "monte_carlo_shapley takes any number"
        )
    return jnp.asarray(shapley(value_table(value, jnp.asarray(members_of(clients)), batch_size)))


def monte_carlo_shapley(
    key: Key[Array, ""],
    value: Value,
    clients: int,
    permutations: int,
    *,
    antithetic: bool = False,
    batch_size: int = 256,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Unbiased estimates of Shapley values from random orders, and their standard errors.

    In every order each client has one marginal contribution, ``v(clients before it and itself) - v(clients before
    it)``. The estimate is the mean of the marginals; its error falls with the square root of the number of orders. Each
    order evaluates ``N - 1`` coalitions.

    Args:
      key: order j depends only on the key and j, so a larger number of orders repeats the first ones.
      value: as for ``exact_shapley``.
      clients: N, an int.
      permutations: number of orders, an int.
      antithetic: reverse the preceding order for every second order. This lowers the error if a client's marginal falls
        (or grows) with the number of clients before it. ``permutations`` must be even.
      batch_size: approximate number of coalitions evaluated side by side.

    Returns:
      The estimate ``[N]``, whose sum is ``v(all clients) - v(empty)`` for any key, and its standard error ``[N]``: the
      standard deviation of the marginals (with ``antithetic``, of the means of pairs) over the square root of their
      number; NaN if there is only one.

    Raises:
      ValueError: if a number is not positive, ``permutations`` is odd with ``antithetic``, or ``value`` does not return
        a single number.
    """
    if clients < 1 or permutations < 1 or batch_size < 1:
        got = f"{clients} clients, {permutations} permutations, batch_size {batch_size}"
        raise ValueError(f"expected positive numbers, got {got}")
    if antithetic and permutations % 2:
        raise ValueError(f"expected an even number of permutations with antithetic, got {permutations}")
    key = trees.as_key(key)
    ends = value_table(value, jnp.asarray([[False], [True]]) & jnp.ones((2, clients), bool), None)

    def marginals(place: Array) -> Array:
        """Marginals ``[N]`` by client, for the order in which client i arrives at ``place[i]``."""
        inside = place[None, :] < jnp.arange(1, clients)[:, None]
        between = value_table(value, inside, batch_size)
        along = jnp.concatenate([ends[:1], between, ends[1:]])
        return marginals_along(along, place)

    def sample(j: Array) -> Array:
        # The sorting order of random numbers is a uniform permutation; one short sort compiles quickly.
        place = jnp.argsort(jax.random.bits(jax.random.fold_in(key, j), (clients,), jnp.uint32))
        return (marginals(place) + marginals(clients - 1 - place)) / 2 if antithetic else marginals(place)

    count = permutations // 2 if antithetic else permutations
    samples = jax.lax.map(sample, jnp.arange(count), batch_size=max(1, min(count, batch_size // clients)))
    return mean_of_samples(samples)


def coalition_value(
    updates: PyTree,
    model: PyTree,
    loss: Callable[[PyTree], Float[Array, ""]],
    weights: Float[Array, " N"] | None = None,
) -> Value:
    """The game of one round: ``v(S) = -loss(model + sum_{k in S} a_k updates_k / sum_{k in S} a_k)``.

    The empty coalition has the value of the unchanged model. So the Shapley values sum to the decrease in loss from the
    weighted mean of all updates. ``loss`` may be any other measure: ``loss = lambda params: -accuracy(params)``.

    Args:
      updates: a pytree whose leaves are ``[N, ...]``, each new minus old, by id.
      model: the model before the updates, a pytree.
      loss: ``params -> number``, e.g. on the server's validation rows.
      weights: ``[N]``, ``a_k``, not negative, e.g. sizes; None: all 1. Updates of weight 0 are never read.

    Returns:
      ``value``, for ``exact_shapley`` and ``monte_carlo_shapley``.

    Source: Wang et al., "A principled approach to data valuation for federated learning" (2020), which uses this game
    in every round.
    """
    check_unlabelled("weights", weights)
    leaves = jax.tree.leaves(updates)
    count = leaves[0].shape[0]
    a = jnp.ones(count, jnp.result_type(float)) if weights is None else trees.wide(weights)
    # Mask once here: masks inside ``value`` would copy all updates for every coalition.
    used = lambda leaf: (a > 0).reshape(-1, *[1] * (leaf.ndim - 1))  # noqa: E731
    read = trees.widened(jax.tree.map(lambda leaf: trees.readable(used(leaf), leaf), updates))

    def value(members: Array) -> Array:
        inside = jnp.where(members, a, 0)
        share = trees.ratio(inside, jnp.sum(inside))

        def mean(leaf: Array) -> Array:
            rows = leaf.reshape(count, -1)
            return jnp.matmul(share.astype(leaf.dtype), rows, precision="highest").reshape(leaf.shape[1:])

        return -loss(trees.like(trees.add(model, jax.tree.map(mean, read)), model))

    return value


# A sum below this share of the sizes of its terms is rounding, as of values that add up to 0 by their equation.
_ROUNDING = 1e-5


class Agreement(NamedTuple):
    """Estimates beside the truth; each is ``[...]`` unless said otherwise.

    Attributes:
      kendall: tau-b over clients.
      spearman: rho over clients, with mean ranks of ties.
      share_error: ``||estimate / sum estimate - truth / sum truth||_1``, NaN of less than two clients, or
        where a sum is not positive, or is rounding alone.
      deviation: ``[..., N]``, ``estimate sum truth / sum estimate - truth``, NaN as before. Its mean over seeds is the
        bias after the total is matched, and its root mean square the error.
      best_found: whether the client with the largest estimate is the one with the largest true value, 0 or 1. With
        ties, the probability for one of the largest, drawn at random. NaN for a constant row.
      worst_found: the same for the smallest.
      compared: number of clients that were compared; a client with a NaN on either side is left out.
    """

    kendall: Float[np.ndarray, "*batch"]
    spearman: Float[np.ndarray, "*batch"]
    share_error: Float[np.ndarray, "*batch"]
    deviation: Float[np.ndarray, "*batch N"]
    best_found: Float[np.ndarray, "*batch"]
    worst_found: Float[np.ndarray, "*batch"]
    compared: Int[np.ndarray, "*batch"]


def agreement(estimate: Numbers, truth: Numbers) -> Agreement:
    """Compares contributions with true ones, client by client; leading axes (seeds) are kept.

    Args:
      estimate: ``[..., N]``, larger for larger contributions.
      truth: ``[..., N]``, values from retraining with the same seeds.

    Returns:
      ``Agreement``.

    Raises:
      ValueError: if the shapes do not fit, or there is no client.

    Source: Kendall, "The treatment of ties in ranking problems" (1945); Spearman, "The proof and measurement of
    association between two things" (1904).
    """
    first, second = np.asarray(plain(estimate), float), np.asarray(plain(truth), float)
    if not first.ndim or not second.ndim or first.shape[-1] != second.shape[-1] or not first.shape[-1]:
        raise ValueError(
            f"expected estimate and truth of the same clients, got shapes {first.shape} and {second.shape}"
        )
    first, second = np.broadcast_arrays(first, second)
    clients = first.shape[-1]
    rows = [_row(a, b) for a, b in zip(first.reshape(-1, clients), second.reshape(-1, clients), strict=True)]
    lead = first.shape[:-1]
    found = [np.array([row[place] for row in rows]) for place in range(len(Agreement._fields))]
    found[3] = found[3].reshape(-1, clients)
    return Agreement(*(each.reshape((*lead, *each.shape[1:])) for each in found))


def stability(values: Numbers) -> float:
    """The mean of tau-b over all pairs of rows: how well seeds, or aggregators, agree on the order of the clients.

    Args:
      values: ``[R, N]``.

    Returns:
      NaN with fewer than two rows, and if a pair has no tau-b.

    Raises:
      ValueError: if ``values`` has not two axes.
    """
    table = np.asarray(plain(values), float)
    if table.ndim != 2:
        raise ValueError(f"expected one row of clients for each seed, got shape {table.shape}")
    taus = [_row(a, b)[0] for a, b in itertools.combinations(table, 2)]
    return float(np.mean(taus)) if taus else np.nan


def _row(estimate: np.ndarray, truth: np.ndarray) -> tuple[float, float, float, np.ndarray, float, float, int]:
    """The numbers of one row, in the order of ``Agreement``."""
    from scipy.stats import kendalltau, rankdata  # late: it takes a quarter of a second

    known = ~(np.isnan(estimate) | np.isnan(truth))
    a, b = estimate[known], truth[known]
    deviation = np.full(len(known), np.nan)
    share_error = np.nan
    if len(a) > 1 and _has_total(a) and _has_total(b):
        share_error = float(np.abs(a / a.sum() - b / b.sum()).sum())
        deviation[known] = a * (b.sum() / a.sum()) - b
    if len(a) < 2 or np.ptp(rankdata(a)) == 0 or np.ptp(rankdata(b)) == 0:
        return np.nan, np.nan, share_error, deviation, np.nan, np.nan, len(a)
    found: Any = kendalltau(a, b, variant="b")
    tau = float(found.statistic)
    rho = float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
    best, worst = _found(a, b), _found(-a, -b)
    return tau, rho, share_error, deviation, best, worst, len(a)


def _has_total(values: np.ndarray) -> bool:
    """Whether the sum is finite and positive, beyond rounding."""
    total = values.sum()
    return bool(np.isfinite(total) and total > _ROUNDING * np.abs(values).sum())


def _found(estimate: np.ndarray, truth: np.ndarray) -> float:
    """The probability that one of the largest estimates, drawn at random, has the largest true value."""
    return float(np.mean((truth == truth.max())[estimate == estimate.max()]))
