"""A server that clips the updates of each round to their median norm: a defence against long updates.

Source: Sun et al., "Can you really backdoor federated learning?" (2019), norm thresholding of updates.
Deviation: the bound is not a number but follows the median norm of the round.
"""

from __future__ import annotations

from jaxtyping import PyTree

from fljax import aggregators
from fljax.core.values import Positive, checked
from fljax.protocol import Algorithm, Info, Round, roles
from fljax.protocol.messages import changed_update
from fljax.protocol.sums import as_streamed
from fljax.scenarios.common import Entry, applied_scenarios


@checked
def median_clipped(inner: Algorithm, *, times: Positive = 2.0) -> Algorithm:
    """``Delta_k <- Delta_k min(1, times median_j ||Delta_j|| / ||Delta_k||)`` at the server, before it aggregates.

    The median is over the clients of the round that answered; of two medians it is the lower one. So up to half of them
    cannot make an update longer than ``times`` the longest honest one. What the wrapped algorithm makes of the updates,
    such as the weights of ``incfl``, stays as it is. Attackers whose updates have the usual length are not found.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      times: the bound as a multiple of the median norm. Norms are over all entries of trained leaves; statistics
        (running averages of BatchNorm) stay as they were sent.

    Returns:
      The algorithm. The server holds all updates of a round at once, also where the wrapped algorithm adds them up one
      by one. It makes no difference whether other scenarios change updates inside or outside of this one.
    """
    streamed = as_streamed(inner.aggregate)

    def aggregate(server: PyTree, up: PyTree, round: Round) -> tuple[PyTree, Info]:
        def clip(update: PyTree) -> PyTree:
            trained = roles.zero_statistics(inner.task, update)
            shorter = aggregators.clip_to_median(trained, present=round.cohort.present, times=times)
            return roles.replace_statistics(inner.task, shorter, update)

        return streamed(server, changed_update(up, clip), round)

    return inner._replace(aggregate=aggregate, scenarios=applied_scenarios(inner, "median_clipped"))


ENTRY = Entry(
    median_clipped, "the server clips updates to their median norm", {"times": 1.0}, ("sun2019can",), ("times",)
)
