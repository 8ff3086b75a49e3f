"""Ranks of methods over blocks (partitions, data sets), and whether their differences are more than chance.

Source: Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", Journal of Machine Learning
Research 7, 1-30.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Ranking(NamedTuple):
    """The comparison of k methods over n blocks.

    Attributes:
      ranks: ``[n, k]`` of each block, 1 for the best; equal values share the mean of their ranks.
      average: ``[k]`` mean over the blocks.
      friedman: Friedman's statistic, chi-squared with k - 1 degrees of freedom, corrected for ties; NaN for fewer than
        three methods or two blocks.
      p: its probability where all methods are alike; NaN where ``friedman`` is.
      critical_difference: methods whose average ranks differ by more are different (Nemenyi); NaN for one block or one
        method.
      alpha: the level of the test.
    """

    ranks: Float[np.ndarray, "n k"]
    average: Float[np.ndarray, " k"]
    friedman: float
    p: float
    critical_difference: float
    alpha: float


def ranking(values: Float[np.ndarray, "n k"], *, lower: bool = False, alpha: float = 0.05) -> Ranking:
    """Ranks of methods, Friedman's test and Nemenyi's critical difference.

    Args:
      values: ``[n, k]``, a block in each row and a method in each column.
      lower: whether lower values are better.
      alpha: the level, between 0 and 1.

    Raises:
      ValueError: if a value is not finite, there is no method or block, or ``alpha`` is out of range.
    """
    from scipy.stats import chi2, rankdata  # late: it takes a quarter of a second

    values = np.asarray(values, float)
    blocks, methods = values.shape
    if not values.size or not np.isfinite(values).all():
        raise ValueError("expected a finite value of every method in every block, got none or one that is not finite")
    if not 0 < alpha < 1:
        raise ValueError(f"expected alpha between 0 and 1, got {alpha}")
    ranks = np.asarray(rankdata(values if lower else -values, axis=1), float)
    average = ranks.mean(axis=0)
    statistic, p = float("nan"), float("nan")
    if methods > 2 and blocks > 1:
        # The sum of squares of the ranks has the correction for ties in it.
        spread = float(((ranks - (methods + 1) / 2) ** 2).sum())
        between = blocks**2 * float(((average - (methods + 1) / 2) ** 2).sum())
        if spread > 0:
            statistic = (methods - 1) * between / spread
            p = float(chi2.sf(statistic, methods - 1))
    return Ranking(ranks, average, statistic, p, critical_difference(methods, blocks, alpha), alpha)


def critical_difference(methods: int, blocks: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of average ranks: ``q * sqrt(k * (k + 1) / (6 * n))``.

    ``k`` is ``methods`` and ``n`` is ``blocks``. ``q`` is the upper ``alpha`` quantile of the studentised range of k
    groups with infinitely many degrees of freedom, divided by ``sqrt(2)``.

    Args:
      methods: their number; NaN for fewer than two.
      blocks: their number; NaN for fewer than two.
      alpha: the level.
    """
    from scipy.stats import studentized_range

    if methods < 2 or blocks < 2:
        return float("nan")
    q = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / np.sqrt(2)
    return q * float(np.sqrt(methods * (methods + 1) / (6 * blocks)))


def alike(average: Float[np.ndarray, " k"], critical_difference: float) -> list[tuple[int, ...]]:
    """The largest groups of methods whose average ranks differ by at most the critical difference.

    Args:
      average: ``[k]`` average ranks.
      critical_difference: of ``ranking``.

    Returns:
      Groups of at least two methods, as their places from the best to the worst.
    """
    order = np.argsort(average, kind="stable")
    groups: list[tuple[int, ...]] = []
    end = 0
    ordered = average[order]
    for first in range(len(order)):
        near = np.flatnonzero(ordered - ordered[first] <= critical_difference)
        last = int(near.max(initial=first))
        if last > first and last + 1 > end:
            groups.append(tuple(int(place) for place in order[first : last + 1]))
            end = last + 1
    return groups
