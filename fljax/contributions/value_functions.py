"""Shapley values of clients, exact or from random permutations, for a given value function of coalitions.

Sources: Shapley, "A value for n-person games" (1953); Ghorbani and Zou, "Data Shapley" (ICML 2019), Equation 1 and
Algorithm 1 (without its truncation, which is biased); Castro et al., "Polynomial calculation of the Shapley value based
on sampling" (2009) for the standard error; Mitchell et al., "Sampling permutations for Shapley value estimation" (JMLR
2022), section 2, for pairs of opposite orders.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fljax.contributions.coalitions import LARGEST, Value, members_of, value_table
from fljax.contributions.semivalues import marginals_along, mean_of_samples, shapley
from fljax.core import trees
from fljax.core.labels import check_unlabelled


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
