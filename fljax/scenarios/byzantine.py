"""Byzantine clients: some report inflated losses and send noisy updates.

Source: MaxFL, section 5 and Table 2. Deviations: the paper prints neither the increase of the loss nor the noise; both
are reconstructed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree, Shaped

from fljax import roles, trees
from fljax.algorithms.common import MAXFL_REFERENCE
from fljax.messages import changed_report, changed_update
from fljax.scenarios.behaviour import Drawn, given, with_behaviour
from fljax.scenarios.common import BYZANTINE, Entry, add_normal, key_number
from fljax.types import Algorithm, AnyArray
from fljax.values import NonNegative, NumberOrInfinity, Share, checked


@checked
def byzantine(
    inner: Algorithm,
    *,
    fraction: Share = 0.1,
    loss_increase: NumberOrInfinity = 10.0,
    noise: NonNegative = 10.0,
    count_all: bool = False,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
) -> Algorithm:
    """``round(fraction N)`` clients report ``loss + loss_increase`` and send ``Delta_k + noise rms(Delta_k) N(0, I)``.

    The Byzantine clients are drawn from the seed once; nested scenarios draw independently. Only ``update`` and the
    reported loss change, in Up and in ballots. Around ``appeal_based``, Byzantine clients report an inflated loss, so
    they may leave the pool. Inside ``appeal_based`` they opt out by their true loss.

    Args:
      inner: any algorithm.
      fraction: share of Byzantine clients; their number is rounded.
      loss_increase: added to every loss that a Byzantine client reports; infinity is allowed.
      noise: standard deviation of the noise on each entry, as a multiple of the root mean square of the update.
        Statistics (running averages of BatchNorm) stay honest.
      count_all: whether metrics count Byzantine clients; else metrics of seen clients count honest clients only.
      who: the Byzantine clients by client id ``[N]``, or by round and client id ``[rounds, N]``, where round t uses row
        ``t % rounds``. If given, ``fraction`` is ignored, and metrics leave out clients that are Byzantine in any row.

    Returns:
      The algorithm.

    Raises:
      ValueError: if ``fraction`` is a number outside [0, 1], or ``who`` is for another number of clients.
    """
    number = key_number(inner, "byzantine", BYZANTINE)

    def inflated(is_byzantine: Array, message: PyTree) -> PyTree:
        more = lambda loss: jnp.where(is_byzantine, loss + loss_increase, loss).astype(loss.dtype)  # noqa: E731
        return changed_report(message, "loss", more)

    def spoilt(key: Key[Array, ""], is_byzantine: Array, up: PyTree) -> PyTree:
        def spoil(update: PyTree) -> PyTree:
            trained = roles.trained_leaves(inner.task, update)
            count = max(trees.size(trained), 1)
            squares = sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(trained)), jnp.zeros(()))
            noisy = add_normal(jax.random.fold_in(key, number), update, noise * jnp.sqrt(squares / count))
            return trees.where(is_byzantine, roles.replace_statistics(inner.task, noisy, update), update)

        return changed_update(inflated(is_byzantine, up), spoil)

    behaviour = Drawn(fraction, number) if who is None else given(who)
    return with_behaviour(inner, "byzantine", behaviour, sent=spoilt, answered=inflated, counted=count_all)


ENTRY = Entry(
    byzantine,
    "some clients report inflated losses and send noisy updates (MaxFL)",
    {"fraction": 0.2, "loss_increase": 1.0, "noise": 0.1},
    MAXFL_REFERENCE,
)
