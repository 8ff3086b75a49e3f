"""Free riders: clients that receive models but send back updates of zero.

Source: none prints a recipe. IAFL (section 6.2) has a client with a contribution near zero; for that contribution see
``fljax.contributions.free_riders``. This scenario changes the updates; the two can be used separately.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Key, PyTree, Shaped

from fljax.core import trees
from fljax.core.values import Share, checked
from fljax.protocol import Algorithm, AnyArray
from fljax.protocol.messages import changed_update
from fljax.scenarios.common import Entry, chosen_by, with_behaviour


@checked
def free_riding(
    inner: Algorithm,
    *,
    ids: Sequence[int] | None = None,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
    fraction: Share | None = None,
) -> Algorithm:
    """Some clients send an update of zero instead of their trained update.

    Only the sent ``update`` changes. Losses, ballots, client states, selection and weights are unchanged, so the zero
    updates dilute the mean.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      ids: distinct ids of the free riders, from 0; or
      who: the free riders by client id ``[N]``, or by round and client id ``[rounds, N]``, where round t uses row
        ``t % rounds``. Plans that differ only in ``who`` share a program (see ``fljax.engine.sweep``); or
      fraction: share of the clients, drawn from the seed; their number is rounded.

    Returns:
      The algorithm.

    Raises:
      ValueError: unless exactly one of ``ids``, ``who`` and ``fraction`` is given; if ``ids`` are not distinct whole
        numbers from 0, or one is not a client's id; if ``who`` is for another number of clients; if ``fraction`` is a
        number outside [0, 1].
    """
    riders = chosen_by(inner, "free_riding", ids=ids, who=who, fraction=fraction)

    def ride(key: Key[Array, ""], rides: Array, up: PyTree) -> PyTree:
        return changed_update(up, lambda update: trees.where(rides, trees.zeros_like(update), update))

    return with_behaviour(inner, "free_riding", riders, sent=ride)


ENTRY = Entry(
    free_riding,
    "some clients send updates of zero, and take what they are sent",
    {"ids": (1,)},
    ("wu2024incentive",),
    flat=("fraction",),
)
