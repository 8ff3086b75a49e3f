"""Free riders: clients that take what they are sent and send back nothing.

Source: none prints a recipe; IAFL (section 6.2) has a client that contributes next to nothing, which is
``fljax.contributions.free_riders``: what the server believes. This is what such a client does; either may be had alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Bool, Key, PyTree

from fljax import trees
from fljax.algorithms.common import IAFL_REFERENCE
from fljax.messages import changed_update
from fljax.scenarios.behaviour import chosen_by, with_behaviour
from fljax.scenarios.common import FREE_RIDING, Entry, key_number
from fljax.types import Algorithm


def free_riding(
    inner: Algorithm,
    *,
    ids: Sequence[int] | None = None,
    who: Bool[Array, " N"] | Bool[Array, "rounds N"] | None = None,
    fraction: float | None = None,
) -> Algorithm:
    """Some clients send an update of 0 for the one that they have made.

    Only the ``update`` that is sent is touched: losses, ballots, what the clients keep, who is selected and what weight
    an update has stay as they are, so a mean is diluted and not taken over fewer.

    Args:
      inner: any algorithm; where it sends no ``update`` nothing happens.
      ids: different ids of the free riders, from 0; or
      who: who rides by client id ``[N]``, or in which rounds as well, ``[rounds, N]``; row ``t % rounds`` is that of
        round t. Plans that differ in it share a program, so that ``fljax.engine.sweep`` runs many of them as one; or
      fraction: of the clients, rounded to a whole number of them, drawn from the seed.

    Returns:
      The algorithm.

    Raises:
      ValueError: unless exactly one of ``ids``, ``who`` and ``fraction`` is given; if ``ids`` are no different whole
        numbers from 0, or are not all ids of clients; if ``who`` is of another number of clients; if ``fraction`` is a
        number that is no share of 1.
    """
    riders = chosen_by(
        "free_riding", key_number(inner, "free_riding", FREE_RIDING), ids=ids, who=who, fraction=fraction
    )

    def ride(key: Key[Array, ""], rides: Array, up: PyTree) -> PyTree:
        return changed_update(up, lambda update: trees.where(rides, trees.zeros_like(update), update))

    return with_behaviour(inner, "free_riding", riders, sent=ride)


ENTRY = Entry(
    free_riding, "some clients send updates of zero, and take what they are sent", {"ids": (1,)}, IAFL_REFERENCE
)
