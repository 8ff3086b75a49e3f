"""Error bars over seeds of one number, or of K numbers at once, and how often one client is worth more than another.

What seeds redraw (the partition, initial weights, the noise of training) decides what a bar is about. Say it beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.contributions.coalitions import Numbers
from fljax.core.labels import plain
from fljax.core.names import unknown

LEAST_SEEDS = 5  # with fewer seeds bounds say next to nothing, and rest on the normal distribution alone
METHODS = ("bonferroni", "max_t", "hoeffding")
_DRAWS, _NUMBERS = 4_000, 2_000_000  # resamples in all, and numbers of those that are in memory at a time
_ROWS = 100  # rows of a resample: more change its quantiles by a hundredth
_ROUNDING = 1e-12  # relative to the largest value


class ErrorBars(NamedTuple):
    """The mean over seeds and its t-interval, each ``[...]``.

    Attributes:
      mean: over the seeds.
      error: the standard error ``sd / sqrt(R)`` of the mean over R seeds.
      low: ``mean - t error``, with the quantile t of Student's distribution with R - 1 degrees of freedom.
      high: ``mean + t error``.
    """

    mean: Float[np.ndarray, ...]
    error: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]


def error_bars(values: Numbers, level: float = 0.95) -> ErrorBars:
    """``mean +- t_{R-1} sd / sqrt(R)`` over R seeds; the bars of one seed are NaN.

    Args:
      values: ``[R, ...]``, one row for each seed; contributions ``[R, N]``, for example.
      level: of the two-sided interval, between 0 and 1.

    Returns:
      Arrays ``[...]``. A NaN in a seed makes its entries NaN.

    Raises:
      ValueError: if there is no seed, or ``level`` is not between 0 and 1.
    """
    table = np.asarray(plain(values), float)
    if not table.ndim or not len(table):
        raise ValueError(f"expected values of at least one seed on the first axis, got shape {table.shape}")
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, got {level}")
    seeds, mean = len(table), table.mean(axis=0)
    if seeds == 1:
        unknown = np.full_like(mean, np.nan)
        return ErrorBars(mean, unknown, unknown, unknown)
    from scipy.stats import t as student  # late: it takes a quarter of a second

    error = np.sqrt(np.sum((table - mean[None]) ** 2, axis=0) / (seeds - 1) / seeds)
    half = student.ppf((1 + level) / 2, seeds - 1) * error
    return ErrorBars(mean, error, mean - half, mean + half)


def wins(values: Numbers) -> Float[np.ndarray, "N N"]:
    """``[i, j]``: the share of the seeds in which client i has more than client j.

    A tie is a win of neither. Seeds in which one of the two is NaN do not count; without another seed the share is NaN.

    Args:
      values: ``[R, N]``.

    Raises:
      ValueError: if ``values`` has not two axes.
    """
    table = np.asarray(plain(values), float)
    if table.ndim != 2:
        raise ValueError(f"expected values by seed and client, got shape {table.shape}")
    first, second = table[:, :, None], table[:, None, :]
    known = np.sum(~(np.isnan(first) | np.isnan(second)), axis=0)
    return np.where(known > 0, np.sum(first > second, axis=0) / np.maximum(known, 1), np.nan)


class Bounds(NamedTuple):
    """Bounds of K means over seeds that hold at once.

    Attributes:
      mean: ``[K]``.
      error: ``[K]``, the standard errors ``sd / sqrt(R)``; 0 where all seeds agree, up to rounding.
      low: ``[K]``.
      high: ``[K]``.
      critical: the c of ``mean +- c error``; NaN for "hoeffding".
    """

    mean: Float[np.ndarray, " K"]
    error: Float[np.ndarray, " K"]
    low: Float[np.ndarray, " K"]
    high: Float[np.ndarray, " K"]
    critical: float


def simultaneous_bounds(
    values: Numbers,
    confidence: float = 0.95,
    *,
    method: str = "bonferroni",
    span: tuple[float, float] | None = None,
    seed: int = 0,
) -> Bounds:
    """Bounds of K means over R seeds: with probability ``confidence`` no mean is above ``high``; likewise for ``low``.

    With ``alpha = 1 - confidence``:

    - "bonferroni": ``mean +- c sd / sqrt(R)`` with ``c = t_{R-1, 1 - alpha / K}``, for values whose means are normal.
    - "max_t": the same with a c that is smaller where values are correlated: the quantile ``1 - alpha`` of
      ``max_k |mean*_k - mean_k| / error*_k``, but no more than Bonferroni's. Each resample ``*`` has R rows, which are
      sums of the seeds' deviations with normal weights (a multiplier bootstrap); a single value has Student's
      distribution then. Drawing seeds again would give bounds that are too narrow for few seeds and many values.
    - "hoeffding": ``mean +- (b - a) sqrt(log(K / alpha) / (2 R))`` for values in ``[a, b]``, of any distribution.

    A value that is equal in all seeds has no error, and its bounds are its mean ("bonferroni" and "max_t").

    Args:
      values: ``[R, K]``, one row for each seed, at least 5.
      confidence: between 0 and 1.
      method: "bonferroni", "max_t" or "hoeffding".
      span: ``(a, b)``, between which all values are by definition; for "hoeffding" alone.
      seed: of the weights of "max_t".

    Raises:
      ValueError: for fewer than 5 seeds, values that are not finite or not inside ``span``, or an unknown method.

    Source: Dunn, "Multiple comparisons among means" (1961); Chernozhukov, Chetverikov and Kato, "Gaussian
    approximations and multiplier bootstrap for maxima of sums" (2013); Hoeffding, "Probability inequalities for sums of
    bounded random variables" (1963).
    """
    table = np.asarray(plain(values), float)
    _check_bounded(table, confidence, method, span)
    seeds, count = table.shape
    mean, alpha = table.mean(axis=0), 1 - confidence
    error = np.sqrt(np.sum((table - mean[None]) ** 2, axis=0) / (seeds - 1) / seeds)
    error = np.where(error <= _ROUNDING * np.abs(table).max(), 0.0, error)
    if span is not None:
        half = np.full(count, (span[1] - span[0]) * np.sqrt(np.log(count / alpha) / (2 * seeds)))
        return Bounds(mean, error, mean - half, mean + half, np.nan)
    from scipy.stats import t as student  # late: it takes a quarter of a second

    critical = float(student.ppf(1 - alpha / count, seeds - 1))
    if method == "max_t":
        largest = _largest_error(table - mean[None], error, confidence, np.random.default_rng(seed))
        critical = min(critical, largest)
    return Bounds(mean, error, mean - critical * error, mean + critical * error, critical)


def _largest_error(centred: np.ndarray, error: np.ndarray, confidence: float, drawn: np.random.Generator) -> float:
    """The quantile of the largest t-value of normal values that are correlated as these are."""
    seeds, rows = len(centred), min(len(centred), _ROWS)
    scaled = centred[:, error > 0] / error[error > 0]
    if not scaled.size:
        return 0.0
    # Rows times the root are normal, with the correlations of the values.
    root = np.linalg.qr(scaled, mode="r") / np.sqrt(seeds * (seeds - 1))
    largest = np.empty(_DRAWS)
    block = max(1, _NUMBERS // (rows * max(root.shape)))
    for begin in range(0, _DRAWS, block):
        count = min(block, _DRAWS - begin)
        sample = drawn.normal(size=(count, rows, len(root))) @ root
        means, spread = sample.mean(axis=1), sample.std(axis=1, ddof=1)
        largest[begin : begin + count] = np.abs(means / spread).max(axis=1) * np.sqrt(rows)
    return float(np.quantile(largest, confidence))


def _check_bounded(table: np.ndarray, confidence: float, method: str, span: tuple[float, float] | None) -> None:
    if table.ndim != 2 or not table.shape[1]:
        raise ValueError(f"expected values by seed and at least one column, got shape {table.shape}")
    if len(table) < LEAST_SEEDS:
        raise ValueError(f"expected at least {LEAST_SEEDS} seeds for bounds, got {len(table)}")
    if not np.isfinite(table).all():
        raise ValueError("expected finite values for bounds, got some that are not")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    if (span is not None) != (method == "hoeffding"):
        wants = "a span (a, b) of all values" if span is None else "a span for the method 'hoeffding' alone"
        raise ValueError(f"expected {wants}, got span {span} for {method!r}")
    if span is not None and not (span[0] < span[1] and span[0] <= table.min() and table.max() <= span[1]):
        raise ValueError(f"expected values in the span {span}, got some from {table.min():g} to {table.max():g}")
