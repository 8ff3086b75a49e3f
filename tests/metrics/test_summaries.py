"""Statistics over seeds, by hand and beside NumPy's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fljax import metrics


def test_neither_nan_nor_infinity_counts_over_seeds() -> None:
    assert metrics.over_seeds([1.0, np.nan, 3.0, np.inf, 8.0]) == (4.0, pytest.approx(math.sqrt(13)), 3)
    mean, std, count = metrics.over_seeds([np.nan, 2.0])
    assert (mean, math.isnan(std), count) == (2.0, True, 1)
    mean, std, count = metrics.over_seeds([-np.inf])
    assert (math.isnan(mean), math.isnan(std), count) == (True, True, 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_an_axis_of_seeds(axis: int) -> None:
    values = np.random.default_rng(0).normal(size=(12, 5, 7))
    values[3, :2] = np.nan
    values[:, 4, 1:] = np.inf
    values[:, 4, 0] = np.nan
    summary = metrics.over_seeds(values, axis)
    masked = np.ma.masked_invalid(values)
    np.testing.assert_allclose(summary.mean, masked.mean(axis=axis).filled(np.nan), rtol=1e-12)
    np.testing.assert_allclose(summary.std, np.ma.filled(masked.std(axis=axis, ddof=1), np.nan), rtol=1e-12)
    np.testing.assert_array_equal(summary.count, masked.count(axis=axis))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100, 1000])
def test_one_row_is_numpys_mean_and_std_to_the_bit(count: int) -> None:
    values = np.random.default_rng(count).normal(0.7, 0.1, count)
    values[1::4] = np.nan
    known = values[np.isfinite(values)]
    summary = metrics.over_seeds(values)
    assert summary[::2] == (float(known.mean()), known.size)
    assert math.isnan(summary.std) if known.size < 2 else summary.std == float(known.std(ddof=1))
