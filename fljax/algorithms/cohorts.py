"""Who takes part in a round: the size of a cohort, uniform draws of clients, and shares of those that are members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax.core import trees
from fljax.protocol import Available, Census, Cohort, Info, Select
from fljax.training import pick_distinct

# Populations from here on draw cohorts of up to SMALL rows without an array over clients: a score for each client costs
# a CPU 3 to 10 ms for 10^5 to 10^6 of them. Smaller populations keep the draws that they have had.
LARGE, SMALL = 20_000, 1024


def sample_uniform(
    key: Key[Array, ""], available: Available, rows: int
) -> tuple[Int[Array, " rows"], Bool[Array, " rows"]]:
    """Draws ``min(rows, number available)`` clients without replacement: ids, and which rows are filled.

    A cohort with a row for every client is in the order of ids, the available ones first: devices then train the same
    clients in every round. The cost of a small cohort of a large population that is all available does not depend on
    the population.
    """
    if rows >= available.population:
        if available.among is None:
            return jnp.arange(available.population, dtype=jnp.int32), jnp.ones(available.population, bool)
        id = jnp.argsort(~available.among, stable=True).astype(jnp.int32)
        return id, available.among[id]
    if available.among is None and available.population >= LARGE and rows <= min(SMALL, available.population // 64):
        id = _draw_ids(key, available.population, rows)
        return id, jnp.ones(id.shape, bool)
    score = -jax.random.uniform(key, (available.population,), jnp.float32)
    if available.among is not None:
        score = jnp.where(available.among, score, -jnp.inf)
    # top_k, not a sort: sorting a million clients takes half a second. Ties go to the lower id.
    _, id = jax.lax.top_k(score, min(rows, available.population))
    id = id.astype(jnp.int32)
    return id, jnp.ones(id.shape, bool) if available.among is None else available.among[id]


def _draw_ids(key: Key[Array, ""], population: int, rows: int) -> Int[Array, " rows"]:
    """``rows`` distinct ids in random order, by Floyd's method: no array has one entry per client."""
    guess_key, order_key = jax.random.split(key)
    last = jnp.arange(population - rows, population, dtype=jnp.int32)
    guess = jax.random.randint(guess_key, (rows,), 0, last + 1, jnp.int32)
    # Floyd's picks are a uniform set, but late picks are large ids more often.
    return jax.random.permutation(order_key, pick_distinct(guess[:, None], last, SMALL)[0])


def select_uniform(clients_per_round: int | None) -> Select:
    """The usual ``select``: a uniform sample of available clients without replacement, each in slot 0."""

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        if clients_per_round is not None and clients_per_round < 1:
            raise ValueError(f"expected a positive clients_per_round, got {clients_per_round}")
        rows = available.population if clients_per_round is None else min(clients_per_round, available.population)
        id, present = sample_uniform(key, available, rows)
        return server, Cohort(id, jnp.zeros_like(id), present), {}

    return select


def select_after(change: Callable[[Any, Available], PyTree], select: Select) -> Select:
    """``select`` of the Server ``change(server, available)``."""

    def changed(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        return select(key, round, change(server, available), ballots, available)

    return changed


def mass_of_members(census: Census, weights: str) -> tuple[Array, Array | None]:
    """The total weight of the clients with data, by number or by "size", and ``[N]`` where clients may leave."""
    weight = census.train.astype(jnp.result_type(float)) if weights == "size" else (census.train > 0).astype(jnp.int32)
    return jnp.sum(weight, dtype=weight.dtype), None if census.members is None else weight


def select_and_weigh(clients_per_round: int | None) -> Select:
    """``select_uniform`` for a Server with ``mass`` and ``weights`` of ``mass_of_members``, or trees of them."""

    def weigh(server: Any, available: Available) -> PyTree:
        def total(weight: Array) -> Array:
            return jnp.sum(jnp.where(available.member(), weight, 0), dtype=weight.dtype)

        return server._replace(mass=jax.tree.map(total, server.weights)) if jax.tree.leaves(server.weights) else server

    return select_after(weigh, select_uniform(clients_per_round))


def shares_of_members(shares: Float[Array, " N"], available: Available) -> Float[Array, " N"]:
    """Shares of a whole, by client id, where the share of a client that left goes to the members in proportion.

    Where no client with a share has left, or no member has a share, the result is ``shares``.
    """
    if available.members is None:
        return shares
    remaining = jnp.where(available.members, shares, 0)
    moves = jnp.any(~available.members & (shares != 0)) & (jnp.sum(remaining) > 0)
    return jnp.where(moves, trees.ratio(remaining * jnp.sum(shares), jnp.sum(remaining)), shares).astype(shares.dtype)
