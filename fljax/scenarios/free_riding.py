"""Free riders: clients that take what they are sent and send back nothing.

Source: none prints a recipe; IAFL (section 6.2) has a client that contributes next to nothing, which is
``fljax.contributions.free_riders``: what the server believes. This is what such a client does; either may be had alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from fljax import trees
from fljax.algorithms.common import IAFL_REFERENCE
from fljax.scenarios.common import Entry, altered, applied
from fljax.types import Algorithm, Census

if TYPE_CHECKING:
    from jaxtyping import PyTree


def free_riding(inner: Algorithm, *, ids: Sequence[int]) -> Algorithm:
    """Some clients send an update of 0 for the one that they have made.

    Only the reserved field ``update`` of what is sent is touched: losses, ballots, what the clients keep, who is
    selected and what weight an update has stay as they are, so a mean is diluted and not taken over fewer.

    Args:
      inner: any algorithm; where it sends no ``update`` nothing happens.
      ids: different ids of the free riders, from 0.

    Returns:
      The algorithm.

    Raises:
      ValueError: if ``ids`` are no different whole numbers from 0, or are not all ids of clients.
    """
    riders = tuple(ids)
    if len(set(riders)) != len(riders) or any(not isinstance(id, int | np.integer) or id < 0 for id in riders):
        raise ValueError(f"expected different ids of clients from 0 for ids, got {list(riders)}")

    def init_server(key: Any, census: Census) -> PyTree:
        population = census.train.shape[0]
        if max(riders, default=-1) >= population:
            raise ValueError(f"expected ids of clients from 0 to {population - 1} for ids, got {list(riders)}")
        return inner.init_server(key, census)

    def train(key: Any, seat: Any, down: Any, client: Any, data: Any) -> tuple[PyTree, PyTree]:
        up, client = inner.train(key, seat, down, client, data)
        rides = jnp.any(jnp.asarray(riders, jnp.int32) == seat.id)
        nothing = lambda update: trees.where(rides, trees.zeros_like(update), update)  # noqa: E731
        return altered(up, "update", nothing), client

    return inner._replace(init_server=init_server, train=train, scenarios=applied(inner, "free_riding"))


ENTRY = Entry(
    free_riding, "some clients send updates of zero, and take what they are sent", {"ids": (1,)}, IAFL_REFERENCE
)
