"""How sure a client's gain is: standard errors by its number of test rows, and decisions that noise may have made.

Tables and pictures show means and spreads over seeds, computed with NumPy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from fljax.metrics.arrays import Array, aligned, fraction, mean_over, sum_over, without_rounding
from fljax.metrics.scores import heading_of

# A difference within so many standard errors may be noise.
ERRORS = 2.0


def binomial_standard_error(
    accuracy: Float[Array, "*#batch client"], rows: Real[Array, "*#batch client"]
) -> Float[Array, "*#batch client"]:
    """``sqrt(acc_k (1 - acc_k) / n_k)``; NaN without rows, 0 for an accuracy of 0 or 1.

    Args:
      accuracy: ``acc_k``, a share of rows.
      rows: ``n_k``, on how many rows it was measured.
    """
    xp, a, rows = aligned(accuracy, rows)
    n = rows.astype(a.dtype)
    # A mean over rows may be above 1 by rounding.
    variance = xp.clip(a * (1.0 - a), 0.0, None)
    return xp.where(n > 0, xp.sqrt(variance / xp.where(n > 0, n, 1.0)), xp.nan)


def gain_standard_error(
    accuracy: Float[Array, "*#batch client"],
    baseline_accuracy: Float[Array, "*#batch client"],
    rows: Real[Array, "*#batch client"],
) -> Float[Array, "*#batch client"]:
    """``se(acc_k) + se(acc'_k)``: at least the standard error of the gain ``acc_k - acc'_k``, whatever both share.

    Args:
      accuracy: of the model that the client would use.
      baseline_accuracy: of the other model on the same rows.
      rows: as for ``binomial_standard_error``.
    """
    return binomial_standard_error(accuracy, rows) + binomial_standard_error(baseline_accuracy, rows)


def paired_standard_error(
    correct: Real[Array, "*#batch row"], baseline_correct: Real[Array, "*#batch row"]
) -> Float[Array, "*batch"]:
    """``sqrt((mean_i d_i^2 - (mean_i d_i)^2) / n)`` with ``d_i = correct_i - baseline_correct_i``: that of a gain.

    Args:
      correct: by test row of one client, the score of the model that it would use, e.g. 1 for a right prediction;
        NaN for padding.
      baseline_correct: of the other model on the same rows.

    Returns:
      NaN without rows.
    """
    xp, a, b = aligned(correct, baseline_correct)
    a, b = (each if xp.issubdtype(each.dtype, xp.floating) else each.astype(float) for each in (a, b))
    difference = a - b
    valid = ~xp.isnan(difference)
    off = difference - mean_over(xp, difference, valid)[..., None]
    n = xp.maximum(xp.sum(valid, axis=-1), 1).astype(difference.dtype)
    return xp.sqrt(mean_over(xp, off * off, valid) / n)


def is_within_noise(
    gain: Float[Array, "*#batch client"],
    error: Float[Array, "*#batch client"],
    *,
    threshold: Any = 0.0,
    errors: float = ERRORS,
) -> Bool[Array, "*#batch client"]:
    """Whether a gain below the threshold is so by at most ``errors`` standard errors: ``0 < t_k - gain_k <= 2 se_k``.

    Args:
      gain: of each client.
      error: the standard error of its gain.
      threshold: ``t_k``, a number or one per client. Rounding is allowed for as in ``opt_outs``.
      errors: how many standard errors.
    """
    xp, gain, error, threshold = aligned(gain, error, threshold)
    return (gain < without_rounding(xp, threshold, gain)) & (threshold - gain <= errors * error)


def opt_outs_by_noise(
    gain: Float[Array, "*#batch client"], error: Float[Array, "*#batch client"], *, threshold: Any = 0.0
) -> Float[Array, "*batch"]:
    """``sum_k 1{0 < delta_k - PMA_k <= 2 se_k}``: those of ``opt_outs`` whose gain is within noise of ``delta_k``.

    Args:
      gain: ``PMA_k``, as for ``opt_outs``.
      error: ``se_k``, its standard error.
      threshold: ``delta_k``, as for ``opt_outs``.

    Returns:
      A number of clients (floating; NaN if no client has a gain with a standard error).
    """
    xp, gain, error, threshold = aligned(gain, error, threshold)
    noisy = is_within_noise(gain, error, threshold=threshold).astype(gain.dtype)
    return sum_over(xp, noisy, ~(xp.isnan(gain) | xp.isnan(error) | xp.isnan(threshold)))


def worse_off_by_noise(
    accuracy: Float[Array, "*#batch client"],
    standalone_accuracy: Float[Array, "*#batch client"],
    rows: Real[Array, "*#batch client"],
) -> Float[Array, "*batch"]:
    """Share of clients with ``0 < acc(what_k) - acc(theta_k) <= 2 se_k``: worse off by taking part, within noise.

    ``1 - ipr_accuracy`` is the share of all clients that are worse off; ``se_k`` is ``gain_standard_error``.

    Args:
      accuracy: of the model that the client would use.
      standalone_accuracy: of its standalone model, on the same rows.
      rows: as for ``binomial_standard_error``.
    """
    xp, a, b, rows = aligned(accuracy, standalone_accuracy, rows)
    error = gain_standard_error(a, b, rows)
    noisy = is_within_noise(a - b, error)
    known = xp.where(xp.isnan(error), xp.nan, noisy.astype(a.dtype))
    return fraction(lambda share, half: share > half, known, 0.5)


# --- Over seeds ---------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """A metric over the seeds that have a finite value; arrays without the axis of seeds, or one number each.

    Attributes:
      mean: NaN if no seed has a finite value.
      std: standard deviation with n - 1 in the denominator; NaN for fewer than two seeds with a finite value.
      count: the number of seeds with a finite value.
    """

    mean: Any
    std: Any
    count: Any


def over_seeds(values: Any, axis: int = 0) -> Summary:
    """Mean, standard deviation and number of the finite values along an axis.

    NaN (no value) and infinity (a diverged run) are left out alike. Single precision is summed in double precision.

    Args:
      values: numbers, one or several for each seed.
      axis: the axis of the seeds.

    Returns:
      Python's numbers for ``[seed]``, else arrays.
    """
    values = np.moveaxis(np.asarray(values, float), axis, -1)
    if values.ndim == 1:
        values = values[np.isfinite(values)]  # so that the sum of float64 is rounded as NumPy's is
    finite = np.isfinite(values)
    count = finite.sum(axis=-1)
    mean = np.where(count > 0, np.where(finite, values, 0).sum(axis=-1) / np.maximum(count, 1), np.nan)
    deviation = np.where(finite, values, mean[..., None]) - mean[..., None]
    variance = (deviation * deviation).sum(axis=-1) / np.maximum(count - 1, 1)
    std = np.where(count > 1, np.sqrt(variance), np.nan)
    return Summary(mean, std, count) if values.ndim > 1 else Summary(float(mean), float(std), int(count))


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are known; None if there are none.

    For values that are written as JSON, where None stands for NaN and infinity; they have seven digits already.
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# --- Clusters -----------------------------------------------------------------------------------------------


def align_clusters(
    accuracy: Float[np.ndarray, "*batch evaluated_round C D"],
) -> Float[np.ndarray, "*batch evaluated_round C D"]:
    """Numbers clusters by their distributions, in the one-to-one matching with the largest sum of last accuracies."""
    # The distribution in which a cluster specialises is random, so clusters of two seeds cannot be compared by number.
    # All evaluations have one permutation. Unmatched clusters follow in their old order; NaN is matched last.
    from scipy.optimize import linear_sum_assignment  # late: it takes a quarter of a second

    accuracy = np.asarray(accuracy)
    known = np.asarray(np.isfinite(accuracy).any(axis=(-2, -1)))
    place = known.shape[-1] - 1 - np.argmax(known[..., ::-1], axis=-1)  # after the end of a run there is NaN
    last = np.take_along_axis(accuracy, place[..., None, None, None], axis=-3)[..., 0, :, :]
    last = np.nan_to_num(last, nan=-1.0)
    aligned = accuracy.copy()
    for run in np.ndindex(last.shape[:-2]):
        cluster, distribution = linear_sum_assignment(last[run], maximize=True)
        matched = cluster[np.argsort(distribution)]
        rest = np.setdiff1d(np.arange(last.shape[-2]), matched)
        aligned[run] = accuracy[run][:, [*matched, *rest]]
    return aligned


# --- Headings -----------------------------------------------------------------------------------------------

# Headings of the metrics that tables on the terminal show, in their order.
_MAIN = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "preferred_model_accuracy": "preferred",
    "average_accuracy": "average",
    "unseen_average_accuracy": "average unseen",
}
# Also those of a task without accuracies, and where messages that are not finite are dropped.
_LOSSES = {"average_loss": "average loss", "unseen_average_loss": "average loss unseen"}
_DROPPED = {"dropped_messages": "dropped"}


def main_columns(names: Collection[str]) -> dict[str, str]:
    """The headings of the main metrics among ``names``, by metric, and of all scores."""
    headings = (_MAIN if "average_accuracy" in names else _MAIN | _LOSSES) | _DROPPED
    of_scores = ((name, heading_of(name)) for name in sorted(names))
    headings |= {name: words for name, words in of_scores if words is not None}
    return {name: words for name, words in headings.items() if name in names}
