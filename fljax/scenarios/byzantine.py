"""Byzantine clients: some send noisy updates and lie about their loss.

Source: MaxFL, section 5 and Table 2. Deviations: the paper prints neither the increase of the loss nor the noise; both
are reconstructed. It does not say whether Byzantine clients opt out as others do (``leaves``). The reports "true" and
"threshold" are not of the paper: at the threshold the weights of INCFL and MaxFL are largest.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree, Shaped

from fljax.core import trees
from fljax.core.values import NonNegative, NumberOrInfinity, Share, checked
from fljax.protocol import Algorithm, AnyArray, roles
from fljax.protocol.messages import NOT_ASKED, Report, changed_reports, changed_update
from fljax.scenarios.appeal_based import AppealBallot
from fljax.scenarios.common import Drawn, Entry, add_normal, given, key_number, root_mean_square, with_behaviour


@checked
def byzantine(
    inner: Algorithm,
    *,
    fraction: Share = 0.1,
    loss_increase: NumberOrInfinity = 10.0,
    noise: NonNegative = 10.0,
    report: Literal["inflated", "true", "threshold"] = "inflated",
    leaves: bool = True,
    count_all: bool = False,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
) -> Algorithm:
    """``round(fraction N)`` clients report ``loss + loss_increase`` and send ``Delta_k + noise rms(Delta_k) N(0, I)``.

    The Byzantine clients are drawn from the seed once; nested scenarios draw independently. Only ``update`` and the
    reported loss change, in Up and in ballots. Around ``appeal_based``, Byzantine clients report a false loss there,
    too, so they may leave the pool. Inside ``appeal_based`` they opt out by their true loss.

    Args:
      inner: any algorithm.
      fraction: share of Byzantine clients; their number is rounded.
      loss_increase: added to every loss that a Byzantine client reports, if it reports an inflated one; infinity is
        allowed.
      noise: standard deviation of the noise on each entry, as a multiple of the root mean square of the update.
        Statistics (running averages of BatchNorm) stay honest.
      report: the loss that a Byzantine client reports. "inflated": ``loss + loss_increase``. "true": its own.
        "threshold": the threshold that it reports, at which the weights of ``incfl`` are largest; its own loss where an
        algorithm asks for no threshold, or the threshold is infinite.
      leaves: whether Byzantine clients answer ``appeal_based`` by the loss that they report. If not, they say there
        that their loss is 0, or one below a threshold that is not above 0, and so stay in the pool. To the wrapped
        algorithm they report as before. It has an effect around ``appeal_based`` only.
      count_all: whether metrics count Byzantine clients; else metrics of seen clients count honest clients only.
      who: the Byzantine clients by client id ``[N]``, or by round and client id ``[rounds, N]``, where round t uses row
        ``t % rounds``. If given, ``fraction`` is ignored, and metrics leave out clients that are Byzantine in any row.

    Returns:
      The algorithm.

    Raises:
      ValueError: if ``fraction`` is a number outside [0, 1], or ``who`` is for another number of clients.
    """
    number = key_number(inner, "byzantine")

    def claimed(honest: Report) -> Array:
        if report == "inflated":
            return honest.loss + loss_increase
        if report == "true" or honest.threshold is NOT_ASKED:
            return honest.loss
        # No finite loss equals an infinite threshold, and the gap of two infinite numbers is NaN.
        return jnp.where(jnp.isfinite(honest.threshold), honest.threshold, honest.loss)

    def lie(is_byzantine: Array, message: PyTree) -> PyTree:
        def change(honest: Report) -> Report:
            if honest.loss is NOT_ASKED:
                return honest
            return honest._replace(loss=jnp.where(is_byzantine, claimed(honest), honest.loss).astype(honest.loss.dtype))

        return changed_reports(message, change)

    def answer(is_byzantine: Array, ballot: PyTree) -> PyTree:
        if leaves:
            return lie(is_byzantine, ballot)

        def look(part: Any) -> Any:
            if not isinstance(part, AppealBallot):
                return lie(is_byzantine, part)
            honest, inner = part.report, answer(is_byzantine, part.inner)
            # A loss below the threshold, whatever that is: also where it is infinite, or not above 0.
            content = jnp.where(honest.threshold > 0, 0, 2 * honest.threshold - 1).astype(honest.loss.dtype)
            return AppealBallot(honest._replace(loss=jnp.where(is_byzantine, content, honest.loss)), inner)

        return jax.tree.map(look, ballot, is_leaf=lambda part: isinstance(part, AppealBallot | Report))

    def spoilt(key: Key[Array, ""], is_byzantine: Array, up: PyTree) -> PyTree:
        def spoil(update: PyTree) -> PyTree:
            deviation = noise * root_mean_square(inner.task, update)
            noisy = add_normal(jax.random.fold_in(key, number), update, deviation)
            return trees.where(is_byzantine, roles.replace_statistics(inner.task, noisy, update), update)

        return changed_update(lie(is_byzantine, up), spoil)

    behaviour = Drawn(fraction, number) if who is None else given(who)
    return with_behaviour(inner, "byzantine", behaviour, sent=spoilt, answered=answer, counted=count_all)


ENTRY = Entry(
    byzantine,
    "some clients send noisy updates and lie about their loss (MaxFL)",
    {"fraction": 0.2, "loss_increase": 1.0, "noise": 0.1},
    ("cho2024maximizing",),
    ("loss_increase", "noise"),
    ("fraction",),
)
