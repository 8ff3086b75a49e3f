"""Misreporting: some clients report false values about themselves.

Source: none prints a recipe. MaxFL (section 5) has clients that report inflated losses; IAFL and IP-FL reward clients
by contributions and accuracies that a server cannot check in practice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from fljax.core.values import NumberOrInfinity, Share, checked
from fljax.protocol import Algorithm, AnyArray
from fljax.protocol.messages import changed_report
from fljax.scenarios.common import Entry, chosen_by, with_behaviour

Reportable = Literal["loss", "size", "accuracy", "threshold", "contribution", "bid"]


@checked
def misreporting(
    inner: Algorithm,
    *,
    report: Reportable,
    factor: NumberOrInfinity = 1.0,
    offset: NumberOrInfinity = 0.0,
    ids: Sequence[int] | None = None,
    who: Shaped[AnyArray, "*rounds N"] | None = None,
    fraction: Share | None = None,
    count_all: bool = True,
    rounds: Sequence[int] | None = None,
) -> Algorithm:
    """Some clients report ``factor * value + offset`` instead of the true value.

    Their training, their state and the rest of their messages are unchanged. Their models are judged as usual, but a
    metric of reported values (``contribution_correlation``) uses the false report.

    ======================  ==============================================================================
    report                  algorithms and scenarios that ask for it
    ======================  ==============================================================================
    loss                    ``incfl``, ``mwfed``, ``afl``, ``qffl``, ``appeal_based``, ``client_sampling``
    size                    ``ipfl``, and algorithms with weights by size (``fedavg``'s default)
    accuracy                ``ipfl``, ``opting_out``
    threshold               ``incfl``, ``mwfed``, ``appeal_based``
    contribution            ``iafl``, ``client_sampling``
    bid                     ``ipfl``
    ======================  ==============================================================================

    The scenario has no effect on other algorithms. ``fedsoft``, ``fedfomo`` and the algorithms of CGSV take sizes from
    the census, which stays true. Around a scenario that asks for the value, the scenario and its inner algorithm both
    receive the false report; inside that scenario, only the algorithm does.

    Args:
      inner: any algorithm.
      report: the misreported value: loss, size, accuracy, threshold, contribution or bid.
      factor: multiplies the true value.
      offset: added to the product; with a factor of 0, the reported value is ``offset``. Reported sizes, accuracies,
        contributions and bids are at least 0. Sizes are rounded, and are at most half of the largest value of their
        dtype.
      ids: distinct ids of the misreporting clients, from 0; or
      who: the misreporting clients by client id ``[N]``, or by round and client id ``[rounds, N]``, where round t uses
        row ``t % rounds``. Plans that differ only in ``who`` share a program; or
      fraction: share of the clients, drawn from the seed; their number is rounded.
      count_all: whether metrics count misreporting clients; else metrics of seen clients count honest clients only.
      rounds: ``(first, end)``: they misreport from round ``first`` on, and tell the truth again from round ``end`` on;
        None: in all rounds. With ``report = "bid"``, a factor of -1 and an offset of 1, clients of IP-FL bid for the
        clusters that suit them least.

    Returns:
      The algorithm. An outer misreporting changes the values that a nested one has already changed.

    Raises:
      ValueError: if ``report`` is not a valid name; unless exactly one of ``ids``, ``who`` and ``fraction`` is given;
        if ``ids`` are not distinct whole numbers from 0, or one is not a client's id; if ``who`` is for another number
        of clients; if ``fraction`` is a number outside [0, 1]; unless ``rounds`` is two whole numbers from 0, of which
        the second is larger.
    """
    behaviour = chosen_by(inner, "misreporting", ids=ids, who=who, fraction=fraction)

    def answered(misreports: Array, message: PyTree) -> PyTree:
        def change(value: Array) -> Array:
            return jnp.where(misreports, false_value(report, value, factor, offset), value)

        return changed_report(message, report, change)

    def sent(key: Key[Array, ""], misreports: Array, up: PyTree) -> PyTree:
        return answered(misreports, up)

    return with_behaviour(
        inner, "misreporting", behaviour, sent=sent, answered=answered, counted=count_all, rounds=rounds
    )


def false_value(
    name: str, value: Array, factor: float | Float[Array, ""], offset: float | Float[Array, ""]
) -> Shaped[Array, ...]:
    """``factor * value + offset`` as a client may report it; with factor 0 the truth is not read."""
    real = value.dtype if jnp.issubdtype(value.dtype, jnp.floating) else jnp.result_type(float)
    scale = jnp.asarray(factor, real)
    # The truth may be infinite: the product with 0 is 0, and there is no derivative by the factor.
    finite, truth = jnp.isfinite(value), value.astype(real)
    endless = jnp.where(scale == 0, 0, jax.lax.stop_gradient(scale) * truth)
    other = jnp.where(finite, scale * jnp.where(finite, truth, 0), endless) + jnp.asarray(offset, real)
    # Sizes, accuracies, contributions and bids are at least 0.
    if name not in ("loss", "threshold"):
        other = jnp.maximum(other, 0)
    if real != value.dtype:
        other = jnp.minimum(jnp.round(other), jnp.iinfo(value.dtype).max // 2)
    return other.astype(value.dtype)


ENTRY = Entry(
    misreporting,
    "some clients report a loss, size, accuracy, threshold, contribution or bid that is not theirs",
    {"report": "loss", "factor": 0.5, "offset": 0.1, "ids": (1,)},
    ("cho2024maximizing", "wu2024incentive", "khan2023ipfl"),
    ("factor", "offset"),
    ("fraction",),
)
