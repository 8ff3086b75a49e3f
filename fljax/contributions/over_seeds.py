"""Error bars over seeds, and how often one client is worth more than another one.

What seeds redraw (the partition, initial weights, the noise of training) decides what such a bar is about. Say it
beside the bar.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.contributions.coalitions import Numbers


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
    table = np.asarray(values, float)
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
    table = np.asarray(values, float)
    if table.ndim != 2:
        raise ValueError(f"expected values by seed and client, got shape {table.shape}")
    first, second = table[:, :, None], table[:, None, :]
    known = np.sum(~(np.isnan(first) | np.isnan(second)), axis=0)
    return np.where(known > 0, np.sum(first > second, axis=0) / np.maximum(known, 1), np.nan)
