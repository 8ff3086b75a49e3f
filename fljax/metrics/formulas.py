"""Metrics of the papers, as pure functions on arrays whose last axis is the clients; leading axes are kept.

Accuracies and their differences are fractions. A client without test samples has NaN for its loss and accuracy, and
averages leave it out; a result without any client is NaN. The papers' comparisons are kept as printed: INCFL and MaxFL
require *better* (strict), IAFL *not worse* (ties count). NumPy gives NumPy; JAX gives JAX, also under ``jit``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Real

from fljax.metrics.arrays import Array, aligned, fraction, mean_over, sum_over, without_rounding

# --- One value per client -----------------------------------------------------------------------------------


def incentivised(
    loss: Float[Array, "*#batch client"], standalone_loss: Float[Array, "*#batch client"]
) -> Bool[Array, "*#batch client"]:
    """``1{f_k(w) < f_k(what_k)}``: strictly better than training alone. False where either is NaN.

    Args:
      loss: test loss ``f_k(w)`` of the model that the client would get.
      standalone_loss: test loss of its standalone model, or its threshold ``rho_k``.

    Source: INCFL, Definition 1. MaxFL's Definition 1 has the threshold ``rho_k`` as second argument.
    """
    _, loss, standalone_loss = aligned(loss, standalone_loss)
    return loss < standalone_loss


def preferred_accuracy(
    accuracy: Float[Array, "*#batch client"],
    standalone_accuracy: Float[Array, "*#batch client"],
    loss: Float[Array, "*#batch client"] | None = None,
    standalone_loss: Float[Array, "*#batch client"] | None = None,
    *,
    prefer: Literal["loss", "accuracy"] = "loss",
) -> Float[Array, "*#batch client"]:
    """Test accuracy of the model that each client chooses: the global one or its own.

    Args:
      accuracy: accuracy of the model that the client would get.
      standalone_accuracy: accuracy of its standalone model.
      loss: test loss of the model that the client would get; required for ``prefer="loss"``.
      standalone_loss: test loss of the standalone model (INCFL's metric), or the threshold ``rho_k`` (MaxFL's metric);
        required for ``prefer="loss"``.
      prefer: ``"loss"``: the client chooses the global model iff ``loss < standalone_loss`` (strict, as in the IPR or
        GM-Appeal); ``"accuracy"``: it chooses the more accurate model.

    Returns:
      Fractions; NaN if an accuracy, or a loss that decides, is NaN.

    Raises:
      ValueError: for another ``prefer``, or if the losses are missing.

    Source: INCFL, section 4 ("preferred model, either the global model or their solo-trained local model"; the model
    that a client prefers is that of Definition 1); MaxFL, section 5 ("whichever one satisfies the client's
    requirement", which is ``f_k(w) < rho_k``).
    """
    if prefer not in ("loss", "accuracy"):
        raise ValueError(f"expected how clients choose, got {prefer!r}; valid names are 'loss', 'accuracy'")
    if prefer == "accuracy":
        xp, a, b = aligned(accuracy, standalone_accuracy)
        return xp.maximum(a, b)
    if loss is None or standalone_loss is None:
        raise ValueError("expected loss and standalone_loss for prefer='loss', got None")
    xp, a, b, f, g = aligned(accuracy, standalone_accuracy, loss, standalone_loss)
    known = ~(xp.isnan(a) | xp.isnan(b) | xp.isnan(f) | xp.isnan(g))
    return xp.where(known, xp.where(f < g, a, b), xp.nan)


def personalised_model_accuracy_gain(
    accuracy: Float[Array, "*#batch client"], baseline_accuracy: Float[Array, "*#batch client"]
) -> Float[Array, "*#batch client"]:
    """``PMA_k = acc_k(theta_k) - acc_k(w)``, a difference of fractions.

    Args:
      accuracy: accuracy of the client's personalised model ``theta_k``.
      baseline_accuracy: accuracy of FedAvg's model ``w`` on the same test data.

    Source: IP-FL, section 6.4.
    """
    _, a, b = aligned(accuracy, baseline_accuracy)
    return a - b


# --- One value per population -------------------------------------------------------------------------------


def incentivised_participation_rate(
    loss: Float[Array, "*#batch client"], standalone_loss: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``IPR = (1/M) sum_k 1{f_k(w) < f_k(what_k)}``, a fraction. Strict: a tie does not count.

    Args:
      loss: test loss of the model that the client would get, after any tuning.
      standalone_loss: test loss of its standalone model.

    Source: INCFL, equation (1).
    """
    return fraction(lambda a, b: a < b, loss, standalone_loss)


def global_model_appeal(
    loss: Float[Array, "*#batch client"], threshold: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``GM-Appeal = (1/M) sum_k 1{f_k(w) < rho_k}``, a fraction. Strict: a tie does not count.

    Args:
      loss: test loss ``f_k(w)`` of the global model, before a client tunes it; or the training loss of the tuned model,
        for the appeal after local tuning (MaxFL, Table 4).
      threshold: ``rho_k``, the loss that the client requires. MaxFL's experiments (section 5) use the training loss
        ``F_k(what_k)`` of the standalone model. With its test loss ``f_k(what_k)`` (MaxFL's example in section 2), this
        is INCFL's IPR.

    Source: MaxFL, Definition 1 and equation (1).
    """
    return fraction(lambda a, b: a < b, loss, threshold)


def ipr_loss(
    loss: Float[Array, "*#batch client"], standalone_loss: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``(1/M) sum_k 1{f(theta_k) <= f(what_k)}``, a fraction. Not strict: a tie counts.

    Args:
      loss: loss of the client's reward model; IAFL uses one global test set for all clients.
      standalone_loss: loss of its standalone model on the same data.

    Source: IAFL, section 6.1.
    """
    return fraction(lambda a, b: a <= b, loss, standalone_loss)


def ipr_accuracy(
    accuracy: Float[Array, "*#batch client"], standalone_accuracy: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``(1/M) sum_k 1{acc(theta_k) >= acc(what_k)}``, a fraction. Not strict: a tie counts.

    Args:
      accuracy: accuracy of the client's reward model; IAFL uses one global test set for all clients.
      standalone_accuracy: accuracy of its standalone model on the same data.

    Source: IAFL, section 6.1.
    """
    return fraction(lambda a, b: a >= b, accuracy, standalone_accuracy)


def preferred_model_accuracy(
    accuracy: Float[Array, "*#batch client"],
    standalone_accuracy: Float[Array, "*#batch client"],
    loss: Float[Array, "*#batch client"] | None = None,
    standalone_loss: Float[Array, "*#batch client"] | None = None,
    *,
    prefer: Literal["loss", "accuracy"] = "loss",
) -> Float[Array, "*batch"]:
    """Mean over clients of ``preferred_accuracy`` (same arguments and errors), a fraction.

    Source: INCFL, section 4; MaxFL, section 5 ("preferred-model test accuracy").
    """
    chosen = preferred_accuracy(accuracy, standalone_accuracy, loss, standalone_loss, prefer=prefer)
    return average_accuracy(chosen)


def average_accuracy(accuracy: Float[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``(1/M) sum_k acc_k``, a fraction: all clients have the same weight, whatever their number of samples.

    Source: INCFL, MaxFL and IAFL.
    """
    xp, values = aligned(accuracy)
    return mean_over(xp, values, ~xp.isnan(values))


def maximum_accuracy(accuracy: Float[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``max_k acc_k``, a fraction.

    Source: IAFL, section 6.1.
    """
    xp, values = aligned(accuracy)
    valid = ~xp.isnan(values)
    top = xp.max(xp.where(valid, values, -xp.inf), axis=-1)
    return xp.where(xp.any(valid, axis=-1), top, xp.nan)


def accuracy_increase(
    accuracy: Float[Array, "*#batch client"], standalone_accuracy: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``(1/M) sum_k (acc(theta_k) - acc(what_k))``, a difference of fractions.

    With FedAvg's accuracy as second argument this is IP-FL's average PMA.

    Source: IAFL, section 6.1.
    """
    return average_accuracy(personalised_model_accuracy_gain(accuracy, standalone_accuracy))


def pearson_correlation(a: Float[Array, "*#batch client"], b: Float[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``corr_k(a_k, b_k)`` in [-1, 1] over the clients with both values.

    Args:
      a: e.g. the accuracy of each client's final model.
      b: e.g. its standalone accuracy, or the probability with which it participates.

    Returns:
      The correlation; NaN if ``a`` or ``b`` is constant over clients (the papers print "undefined") or has an infinity.

    Source: IAFL, section 6.1.
    """
    xp, a, b = aligned(a, b)
    valid = ~(xp.isnan(a) | xp.isnan(b))
    infinite = xp.any(valid & (xp.isinf(a) | xp.isinf(b)), axis=-1)
    valid = valid & ~infinite[..., None]

    def centred(values: Array) -> tuple[Array, Array]:
        mean = mean_over(xp, values, valid)[..., None]
        low = xp.min(xp.where(valid, values, xp.inf), axis=-1)
        high = xp.max(xp.where(valid, values, -xp.inf), axis=-1)
        # Comparing the extremes detects constants exactly; a variance would have rounding errors.
        return xp.where(valid, values - mean, 0.0), low < high

    (da, varies_a), (db, varies_b) = centred(a), centred(b)
    defined = varies_a & varies_b

    def norm(d: Array) -> Array:
        return xp.sqrt(xp.where(defined, xp.sum(d * d, axis=-1), 1.0))

    r = xp.sum(da * db, axis=-1) / xp.where(defined, norm(da) * norm(db), 1.0)
    return xp.where(defined, xp.clip(r, -1.0, 1.0), xp.nan)


def contribution_correlation(
    accuracy: Float[Array, "*#batch client"], contribution: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``corr_k(acc(theta_k), p_k)`` in [-1, 1]: whether clients that contribute more get better models.

    Args:
      accuracy: accuracy of each client's model.
      contribution: ``p_k`` in the last round before the evaluation; a share, a number of samples, a reputation.

    Returns:
      As for ``pearson_correlation``.

    Source: IAFL, section 6.3 and Table 3, where contributions are participation rates.
    """
    return pearson_correlation(accuracy, contribution)


def opt_outs(gain: Float[Array, "*#batch client"], *, threshold: Any = 0.0) -> Float[Array, "*batch"]:
    """``sum_k 1{PMA_k < delta_k}``: the number of clients that opt out. Strict: a gain of exactly delta_k stays.

    So does a gain that is below delta_k by rounding alone. Nobody leaves the run: the scenario ``opting_out`` has a
    ``delta`` of its own.

    Args:
      gain: ``personalised_model_accuracy_gain``.
      threshold: ``delta_k``, a number or one per client.

    Returns:
      A number of clients (floating; NaN if no client has a gain).

    Source: IP-FL, section 6.4.
    """
    xp, gain, threshold = aligned(gain, threshold)
    valid = ~(xp.isnan(gain) | xp.isnan(threshold))
    count = xp.sum(
        xp.where(valid & (gain < without_rounding(xp, threshold, gain)), 1.0, 0.0).astype(gain.dtype), axis=-1
    )
    return xp.where(xp.any(valid, axis=-1), count, xp.nan)


def participation_rate(gain: Float[Array, "*#batch client"], *, threshold: Any = 0.0) -> Float[Array, "*batch"]:
    """``1 - opt_outs / M``, a fraction of the clients that have a gain (same arguments as ``opt_outs``).

    Source: IP-FL, section 6.4.
    """
    xp, gain, threshold = aligned(gain, threshold)
    return fraction(lambda a, b: a >= b, gain, without_rounding(xp, threshold, gain))


def gini_coefficient(values: Real[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``G = sum_j sum_k |x_j - x_k| / (2 M^2 mean(x))``: the inequality of values over clients.

    Twice the area between the Lorenz curve and the diagonal: 0 if all clients have the same value, ``(M - 1) / M`` if
    one client has everything.

    Args:
      values: ``x_k``, at least 0, e.g. each client's tokens.

    Returns:
      In [0, 1); 0 if all values are 0, NaN if no client has a value.

    Source: C. Gini, "Variabilità e mutabilità" (1912); here of IP-FL's tokens.
    """
    xp, values = aligned(values)
    values = values if xp.issubdtype(values.dtype, xp.floating) else values.astype(float)
    valid = ~xp.isnan(values)
    ordered = xp.sort(xp.where(valid, values, xp.inf), axis=-1)
    count = xp.sum(valid, axis=-1, keepdims=True)
    place = xp.reshape(xp.arange(1, values.shape[-1] + 1), (1,) * (values.ndim - 1) + (-1,))
    ordered = xp.where(place <= count, ordered, 0.0)
    # The value in place i is subtracted from M - i others and has i - 1 subtracted from it.
    apart = xp.sum((2 * place - count - 1).astype(ordered.dtype) * ordered, axis=-1)
    total = xp.sum(ordered, axis=-1)
    scale = count[..., 0].astype(ordered.dtype) * total
    share = xp.where(scale > 0, apart / xp.where(scale > 0, scale, 1.0), 0.0)
    return xp.where(count[..., 0] > 0, share, xp.nan)


def spread_over_clients(values: Float[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``sqrt((1/M) sum_k (x_k - mean(x))^2)``: the standard deviation over clients, of all of them and so with M.

    Source: T. Li et al., "Fair Resource Allocation in Federated Learning" (2020), Definition 1, compares variances.
    """
    xp, values = aligned(values)
    valid = ~xp.isnan(values)
    off = xp.where(valid, values - mean_over(xp, values, valid)[..., None], 0.0)
    return xp.sqrt(mean_over(xp, off * off, valid))


def worst_share(values: Float[Array, "*#batch client"], *, share: float = 0.1) -> Float[Array, "*batch"]:
    """The mean of the ``ceil(share M)`` smallest values over the M clients that have one.

    Args:
      values: ``x_k``, of which higher is better.
      share: of the clients, above 0 and at most 1; 0.1 is the worst decile, 1 gives the mean.

    Raises:
      ValueError: if ``share`` is out of range.

    Source: T. Li et al., "Fair Resource Allocation in Federated Learning" (2020), Table 1 ("worst 10%").
    """
    if not 0 < share <= 1:
        raise ValueError(f"expected share to be above 0 and at most 1, got {share!r}")
    xp, values = aligned(values)
    valid = ~xp.isnan(values)
    ordered = xp.sort(xp.where(valid, values, xp.inf), axis=-1)
    # 0.1 of 10 clients is 1 client, whatever the rounding of the product.
    count = xp.ceil(xp.sum(valid, axis=-1, keepdims=True).astype(values.dtype) * share - 1e-4)
    place = xp.arange(values.shape[-1]).astype(values.dtype)
    worst = xp.reshape(place, (1,) * (values.ndim - 1) + (-1,)) < count
    return mean_over(xp, ordered, worst)


def jain_index(values: Real[Array, "*#batch client"]) -> Float[Array, "*batch"]:
    """``(sum_k x_k)^2 / (M sum_k x_k^2)``: 1 if all clients have the same value, ``1/M`` if one client has everything.

    Args:
      values: ``x_k``, at least 0.

    Returns:
      In [1/M, 1]; 1 if all values are 0, NaN if no client has a value.

    Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination" (1984).
    """
    xp, values = aligned(values)
    values = values if xp.issubdtype(values.dtype, xp.floating) else values.astype(float)
    valid = ~xp.isnan(values)
    mean, square = mean_over(xp, values, valid), mean_over(xp, values * values, valid)
    index = xp.where(square > 0, mean * mean / xp.where(square > 0, square, 1.0), 1.0)
    return xp.where(xp.any(valid, axis=-1), index, xp.nan)


def incentive_margin(
    loss: Float[Array, "*#batch client"], standalone_loss: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``sum_k max(f_k(what_k) - f_k(w), 0)``: by how much incentivised clients gain, in units of the loss.

    Args:
      loss: test loss ``f_k(w)`` of the model that the client would get. An infinite loss adds 0.
      standalone_loss: test loss of its standalone model; or what it requires, ``rho_k``.

    Source: INCFL, section 2, below equation (1).
    """
    xp, loss, standalone_loss = aligned(loss, standalone_loss)
    valid = ~(xp.isnan(loss) | xp.isnan(standalone_loss))
    better = valid & (loss < standalone_loss)
    gap = xp.where(better, standalone_loss, 0.0) - xp.where(better, loss, 0.0)
    return sum_over(xp, gap, valid)


def surrogate_objective(
    loss: Float[Array, "*#batch client"], threshold: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``F~(w) = (1/M) sum_k sigma(F_k(w) - rho_k)`` in [0, 1], which INCFL and MaxFL minimise.

    Args:
      loss: training loss ``F_k(w)`` of the global model.
      threshold: ``rho_k``, what the client requires: ``F_k(what_k)`` in INCFL.

    Source: INCFL, equation (3); MaxFL, equation (3).
    """
    xp, loss, threshold = aligned(loss, threshold)
    valid = ~(xp.isnan(loss) | xp.isnan(threshold))
    apart = valid & (loss != threshold)  # equal ones may both be infinite
    gap = xp.where(apart, loss, 0.0) - xp.where(apart, threshold, 0.0)
    return mean_over(xp, _sigmoid(xp, gap), valid)


def _sigmoid(xp: Any, gap: Any) -> Any:
    """Without overflow: the exponential is of a number that is not positive."""
    small = xp.exp(-xp.abs(gap))
    return xp.where(gap >= 0, 1.0, small) / (1.0 + small)


# --- Over seeds ---------------------------------------------------------------------------------------------


def standard_deviation(values: Float[Array, "*axes"], axis: int = 0) -> Float[Array, "*other_axes"]:
    """Sample standard deviation over seeds (divided by n - 1) without NaN seeds; NaN for fewer than two seeds.

    INCFL and MaxFL print it over 3 seeds.
    """
    return _spread(values, axis)[0]


def standard_error(values: Float[Array, "*axes"], axis: int = 0) -> Float[Array, "*other_axes"]:
    """``standard_deviation / sqrt(n)`` over the n seeds that are not NaN; NaN for fewer than two. IAFL prints it."""
    deviation, n = _spread(values, axis)
    return deviation / n**0.5


def _spread(values: Any, axis: int) -> tuple[Any, Any]:
    xp, values = aligned(values)
    values = xp.moveaxis(values, axis, -1)
    valid = ~xp.isnan(values)
    n = xp.sum(valid, axis=-1).astype(values.dtype)
    off = xp.where(valid, values - mean_over(xp, values, valid)[..., None], 0.0)
    variance = xp.sum(off * off, axis=-1) / xp.maximum(n - 1, 1)
    return xp.where(n > 1, xp.sqrt(variance), xp.nan), xp.maximum(n, 1)


# --- Over evaluations ---------------------------------------------------------------------------------------


def rounds_to_target(
    values: Float[np.ndarray, "*batch evaluated_round"],
    rounds: Real[np.ndarray, " evaluated_round"],
    target: float,
    *,
    lower: bool = False,
) -> Float[np.ndarray, "*batch"]:
    """``min {t_e : x_e >= target}``: the number of rounds done at the first evaluation that reaches the target.

    It is as exact as evaluations are frequent: the target may have been reached between two of them. Later evaluations
    below the target change nothing.

    Args:
      values: ``x_e``, the metric by evaluation; NaN reaches no target.
      rounds: ``t_e``, rounds done at the evaluations, ascending.
      target: the value to reach; equality reaches it.
      lower: whether lower is better: ``x_e <= target``.

    Returns:
      NaN where the target was not reached.

    Source: IP-FL, Figures 2 and 9 (speed of convergence).
    """
    with np.errstate(invalid="ignore"):
        reached: Bool[np.ndarray, "*batch evaluated_round"] = values <= target if lower else values >= target
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    first = np.asarray(rounds, float)[np.argmax(reached, axis=-1)]
    return np.where(np.any(reached, axis=-1), first, np.nan)
