"""What formulas of metrics share: arrays of NumPy or JAX with the same number of axes, and means over known clients.

Ranks of methods over blocks (partitions, data sets) say whether their differences are more than chance. Source: Demsar,
"Statistical comparisons of classifiers over multiple data sets", JMLR 7 (2006), 1-30.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fljax.core.names import check_unlabelled
from fljax.protocol import NumpyArray

Array = jax.Array | NumpyArray

# Equal differences of accuracies may differ by this many machine precisions (eps).
ROUNDING = 8


def aligned(*values: Any) -> tuple[Any, ...]:
    """The namespace, then the arrays with the same number of axes (new axes in front)."""
    xp: Any = jnp if any(isinstance(v, jax.Array) for v in values) else np
    if sum(np.ndim(v) > 0 for v in values) > 1:
        check_unlabelled("values by client", values)
    arrays = [v if isinstance(v, Array | np.generic) else xp.asarray(v) for v in values]
    rank = max(a.ndim for a in arrays)
    if rank == 0:
        raise ValueError("expected arrays whose last axis is the clients, got a scalar")
    # Plain Python numbers take the dtype of the arrays. Means and counts are float32 or wider.
    dtype = next(a.dtype for a in arrays if a.ndim)
    arrays = [a if hasattr(v, "ndim") else a.astype(dtype) for v, a in zip(values, arrays, strict=True)]
    arrays = [a.astype(xp.float32) if a.dtype.itemsize == 2 and a.dtype.kind not in "iu" else a for a in arrays]
    return xp, *(xp.reshape(a, (1,) * (rank - a.ndim) + a.shape) for a in arrays)


def without_rounding(xp: Any, threshold: Any, gain: Any) -> Any:
    """The threshold, lower by as much as rounding may move a difference of two fractions."""
    return threshold - ROUNDING * float(xp.finfo(gain.dtype).eps)


def mean_over(xp: Any, values: Any, valid: Any) -> Any:
    """Mean of the valid values over the last axis; NaN if there are none."""
    n = xp.sum(valid, axis=-1)
    total = xp.sum(xp.where(valid, values, 0.0), axis=-1)
    return xp.where(n > 0, total / xp.maximum(n, 1).astype(total.dtype), xp.nan)


def fraction(compare: Any, a: Any, b: Any) -> Any:
    """The share of clients with both values for which ``compare(a, b)`` holds; NaN if there are none."""
    xp, a, b = aligned(a, b)
    return mean_over(xp, compare(a, b).astype(a.dtype), ~(xp.isnan(a) | xp.isnan(b)))


def sum_over(xp: Any, values: Any, valid: Any) -> Any:
    """Sum of the valid values over the last axis; NaN if there are none."""
    total = xp.sum(xp.where(valid, values, 0.0), axis=-1)
    return xp.where(xp.any(valid, axis=-1), total, xp.nan)


class Ranking(NamedTuple):
    """The comparison of k methods over n blocks."""

    ranks: Float[np.ndarray, "n k"]  # 1 for the best; equal values share the mean of their ranks
    average: Float[np.ndarray, " k"]
    friedman: float  # chi-squared with k - 1 degrees of freedom, corrected for ties; NaN for k < 3 or n < 2
    p: float  # where all methods are alike; NaN where ``friedman`` is
    critical_difference: float  # Nemenyi's, of average ranks; NaN for one block or one method
    alpha: float


def ranking(values: Float[np.ndarray, "n k"], *, lower: bool = False, alpha: float = 0.05) -> Ranking:
    """Ranks of methods (columns) over blocks (rows), Friedman's test and Nemenyi's critical difference."""
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
    """Nemenyi's critical difference of average ranks: ``q * sqrt(k * (k + 1) / (6 * n))``; NaN for k or n below 2."""
    from scipy.stats import studentized_range

    if methods < 2 or blocks < 2:
        return float("nan")
    q = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / np.sqrt(2)
    return q * float(np.sqrt(methods * (methods + 1) / (6 * blocks)))


def alike(average: Float[np.ndarray, " k"], critical_difference: float) -> list[tuple[int, ...]]:
    """The largest groups (two or more places, best first) whose average ranks differ by no more than that."""
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
