"""Bounded and noisy updates: each client's update is clipped in norm, and Gaussian noise is added.

Source: McMahan et al., "Learning differentially private recurrent language models" (ICLR 2018), Algorithm 1 (flat
clipping). Deviation: each client adds the noise (local privacy); the paper adds it to the mean.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from fljax import aggregators
from fljax.core import trees
from fljax.core.values import NonNegative, Positive, Range, checked
from fljax.protocol import Algorithm, AnyArray, Info, Round, roles
from fljax.protocol.messages import changed_update
from fljax.protocol.sums import as_streamed
from fljax.scenarios.behaviour import everybody, given, with_behaviour
from fljax.scenarios.common import CLIPPED, Entry, add_normal, applied_scenarios, key_number


@checked
def clipped(
    inner: Algorithm,
    *,
    norm: Annotated[float | Float[Array, ""], Range(0, above=True, infinite=True)],
    noise: NonNegative = 0.0,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
) -> Algorithm:
    """``Delta_k <- Delta_k min(1, norm / ||Delta_k||) + N(0, (noise norm)^2 I)``.

    Args:
      inner: any algorithm; the scenario has no effect on an algorithm that sends no ``update``.
      norm: the largest Euclidean norm of an update, over all entries of trained leaves. Statistics (running averages of
        BatchNorm) are sent as they are, so they tell means of the client's data; a task with ``statistics="frozen"``,
        or ``fedbn``, sends none.
      noise: standard deviation of the noise on each such entry, as a multiple of ``norm``.
      who: the clients whose updates are clipped, by client id ``[N]``, or by round and client id ``[rounds, N]``, where
        round t uses row ``t % rounds``. None: all clients.

    Returns:
      The algorithm. Nested scenarios draw independent noise.

    Raises:
      ValueError: if ``who`` is for another number of clients.
    """
    number = key_number(inner, "clipped", CLIPPED)

    def sent(key: Key[Array, ""], bounds: Array, up: PyTree) -> PyTree:
        def bound(update: PyTree) -> PyTree:
            leaves = jax.tree.leaves(roles.zero_statistics(inner.task, update))
            if not leaves:
                return update
            # Divide by the largest entry first: squares of large entries overflow.
            top = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves]))
            unit = jnp.where(top > 0, top, 1)
            squares = sum((jnp.sum(jnp.square(leaf / unit)) for leaf in leaves), jnp.zeros((), top.dtype))
            length = unit * jnp.sqrt(squares)
            shorter = trees.scale(update, jnp.where(length > norm, norm / jnp.where(length > norm, length, 1), 1))
            noisy = add_normal(jax.random.fold_in(key, number), shorter, noise * jnp.asarray(norm))
            return trees.where(bounds, roles.replace_statistics(inner.task, noisy, update), update)

        return changed_update(up, bound)

    return with_behaviour(inner, "clipped", everybody if who is None else given(who), sent=sent)


ENTRY = Entry(
    clipped, "updates are bounded in norm, with Gaussian noise", {"norm": 1.0, "noise": 0.01}, ("mcmahan2018learning",)
)


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

    Source: Sun et al., "Can you really backdoor federated learning?" (2019), norm thresholding of updates. Deviation:
    the bound is not a number but follows the median norm of the round.
    """
    streamed = as_streamed(inner.aggregate)

    def aggregate(server: PyTree, up: PyTree, round: Round) -> tuple[PyTree, Info]:
        def clip(update: PyTree) -> PyTree:
            trained = roles.zero_statistics(inner.task, update)
            shorter = aggregators.clip_to_median(trained, present=round.cohort.present, times=times)
            return roles.replace_statistics(inner.task, shorter, update)

        return streamed(server, changed_update(up, clip), round)

    return inner._replace(aggregate=aggregate, scenarios=applied_scenarios(inner, "median_clipped"))


MEDIAN_ENTRY = Entry(median_clipped, "the server clips updates to their median norm", {"times": 1.0}, ("sun2019can",))
