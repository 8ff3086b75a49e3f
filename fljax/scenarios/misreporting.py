"""Misreporting: some clients say of themselves what is not true.

Source: none prints a recipe. MaxFL (section 5) has clients that report inflated losses; IAFL and IP-FL reward clients
by contributions and accuracies that a server cannot check in practice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Key, PyTree

from fljax.algorithms.common import IAFL_REFERENCE, MAXFL_REFERENCE
from fljax.algorithms.ipfl import REFERENCE as IPFL_REFERENCE
from fljax.messages import changed_report
from fljax.scenarios.behaviour import chosen_by, with_behaviour
from fljax.scenarios.common import MISREPORTING, Entry, key_number
from fljax.types import Algorithm

Reportable = Literal["loss", "size", "accuracy", "threshold", "contribution", "bid"]


def misreporting(
    inner: Algorithm,
    *,
    report: Reportable,
    factor: float = 1.0,
    offset: float = 0.0,
    ids: Sequence[int] | None = None,
    who: Bool[Array, " N"] | Bool[Array, "rounds N"] | None = None,
    fraction: float | None = None,
    count_all: bool = True,
) -> Algorithm:
    """Some clients report ``factor * value + offset`` for a value of theirs.

    What they train, keep and send besides stays as it is. Their models are judged as ever, but a metric that is made of
    what clients report (``contribution_correlation``) is made of what these report.

    ======================  =================================================================
    report                  who asks for it
    ======================  =================================================================
    loss                    ``incfl``, ``mwfed``, ``afl``, ``qffl``, ``appeal_based``
    size                    ``ipfl``, and all that weigh by size (``fedavg`` by default, ...)
    accuracy                ``ipfl``, ``opting_out``
    threshold               ``incfl``, ``mwfed``, ``appeal_based``
    contribution            ``iafl``
    bid                     ``ipfl``
    ======================  =================================================================

    Around anything else nothing happens. ``fedsoft``, ``fedfomo`` and the algorithms of CGSV know sizes from the
    census, which nobody misreports. Around a scenario that asks, the report to the scenario changes as well as that to
    the algorithm inside of it; inside such a scenario only the latter.

    Args:
      inner: any algorithm.
      report: which value: loss, size, accuracy, threshold, contribution or bid.
      factor: of the true value.
      offset: is added to that; with a factor of 0 it is what they report, whatever the truth. Sizes, accuracies,
        contributions and bids are at least 0. Sizes are rounded, and are at most half of what their dtype holds.
      ids: different ids of those who misreport, from 0; or
      who: who does by client id ``[N]``, or in which rounds as well, ``[rounds, N]``; row ``t % rounds`` is that of
        round t. Plans that differ in it share a program; or
      fraction: of the clients, rounded to a whole number of them, drawn from the seed.
      count_all: whether metrics count them as well; else they are over honest clients (of those seen).

    Returns:
      The algorithm. One inside another changes what the inner one has changed already.

    Raises:
      ValueError: if ``report`` is no valid name; unless exactly one of ``ids``, ``who`` and ``fraction`` is given; if
        ``ids`` are no different whole numbers from 0, or are not all ids of clients; if ``who`` is of another number of
        clients; if ``fraction`` is a number that is no share of 1.
    """
    if report not in get_args(Reportable):
        raise ValueError(f"expected a valid report, got {report!r}; valid names are {', '.join(get_args(Reportable))}")
    number = key_number(inner, "misreporting", MISREPORTING)
    behaviour = chosen_by("misreporting", number, ids=ids, who=who, fraction=fraction)

    def answered(misreports: Array, message: PyTree) -> PyTree:
        def change(value: Array) -> Array:
            real = value.dtype if jnp.issubdtype(value.dtype, jnp.floating) else jnp.result_type(float)
            scale = jnp.asarray(factor, real)
            # The truth may be infinite.
            other = jnp.where(scale == 0, 0, scale * value.astype(real)) + jnp.asarray(offset, real)
            if report not in ("loss", "threshold"):
                other = jnp.maximum(other, 0)
            if real != value.dtype:
                other = jnp.minimum(jnp.round(other), jnp.iinfo(value.dtype).max // 2)
            return jnp.where(misreports, other.astype(value.dtype), value)

        return changed_report(message, report, change)

    def sent(key: Key[Array, ""], misreports: Array, up: PyTree) -> PyTree:
        return answered(misreports, up)

    return with_behaviour(inner, "misreporting", behaviour, sent=sent, answered=answered, counted=count_all)


ENTRY = Entry(
    misreporting,
    "some clients report a loss, size, accuracy, threshold, contribution or bid that is not theirs",
    {"report": "loss", "factor": 0.5, "offset": 0.1, "ids": (1,)},
    f"{MAXFL_REFERENCE}\n\n{IAFL_REFERENCE}\n\n{IPFL_REFERENCE}",
)
