"""How sure a client's gain is: standard errors by its number of test rows, and decisions that noise may have made."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Real

from fljax.metrics.arrays import Array, aligned, fraction, mean_over, sum_over, without_rounding

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
