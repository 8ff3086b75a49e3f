"""Error bars over seeds and shares of wins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from fljax.contributions import error_bars, simultaneous_bounds, wins


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_bars_are_those_of_a_t_test(level):
    values = np.random.default_rng(0).normal(size=(6, 4, 3))
    found, other = error_bars(values, level), ttest_1samp(values, 0, axis=0).confidence_interval(level)
    np.testing.assert_allclose(found.mean, values.mean(axis=0))
    np.testing.assert_allclose(found.error, values.std(axis=0, ddof=1) / np.sqrt(6))
    np.testing.assert_allclose(found.low, other.low)
    np.testing.assert_allclose(found.high, other.high)


def test_one_seed_and_unknown_values():
    one = error_bars([[1.0, 2.0]])
    assert one.mean.tolist() == [1.0, 2.0]
    assert np.isnan([one.error, one.low, one.high]).all()
    found = error_bars([[1.0, np.nan], [3.0, 2.0]])
    assert (found.mean[0], found.error[0]) == (2.0, 1.0)
    assert np.isnan([each[1] for each in found]).all()
    same = error_bars(np.ones((3, 2)))
    assert same.error.tolist() == [0, 0]


def test_wins():
    found = wins([[1.0, 2.0, 2.0], [3.0, 2.0, np.nan], [3.0, 1.0, np.nan]])
    np.testing.assert_allclose(found, [[0, 2 / 3, 0], [1 / 3, 0, 0], [1, 0, 0]])
    assert np.isnan(wins([[1.0, np.nan]])[0, 1])


@pytest.mark.parametrize(
    ("seeds", "count", "half"), [(10, 60, 1.398), (20, 60, 0.818), (50, 60, 0.471), (20, 10, 0.640), (20, 300, 0.976)]
)
def test_simultaneous_half_widths_in_standard_deviations(seeds, count, half):
    values = np.random.default_rng(0).normal(size=(seeds, count))
    bounds = simultaneous_bounds(values)
    np.testing.assert_allclose((bounds.high - bounds.mean) / values.std(axis=0, ddof=1), half, atol=5e-4)
    np.testing.assert_allclose(bounds.mean - bounds.low, bounds.high - bounds.mean)


def test_hoeffdings_bounds_need_many_seeds():
    """Half a width of .02 for 60 values in [-1, 1] takes 35,450 seeds."""
    bounds = simultaneous_bounds(np.zeros((35_450, 60)), method="hoeffding", span=(-1, 1))
    np.testing.assert_allclose([-bounds.low, bounds.high], 0.02, atol=1e-6)
    assert np.isnan(bounds.critical)


def test_the_largest_error_of_correlated_values_is_smaller():
    """Copies of a value have its own two-sided interval; bounds of independent values are Bonferroni's."""
    drawn = np.random.default_rng(1)
    copies = np.repeat(drawn.normal(size=(8, 1)), 40, axis=1)
    first = simultaneous_bounds(copies, method="max_t")
    assert first.critical == pytest.approx(student.ppf(0.975, 7), rel=0.05)
    assert first.critical == simultaneous_bounds(copies, method="max_t").critical
    assert first.critical != simultaneous_bounds(copies, method="max_t", seed=1).critical
    apart = drawn.normal(size=(8, 40))
    bounds = simultaneous_bounds(apart, method="max_t")
    assert 0.95 * student.ppf(1 - 0.05 / 40, 7) < bounds.critical <= simultaneous_bounds(apart).critical
    np.testing.assert_allclose(bounds.high - bounds.mean, bounds.critical * bounds.error)


@pytest.mark.thorough
@pytest.mark.parametrize("shared", [0.0, 0.9])
@pytest.mark.parametrize("method", ["bonferroni", "max_t"])
def test_bounds_hold_as_often_as_they_say(method, shared):
    """Of 40 normal values with mean 0, some upper bound is below 0 in at most 5 % of 200 tables, up to noise."""
    drawn, seeds, wrong = np.random.default_rng(2), 5, 0
    for _ in range(200):
        common, apart = drawn.normal(size=(seeds, 1)), drawn.normal(size=(seeds, 40))
        values = np.sqrt(shared) * common + np.sqrt(1 - shared) * apart
        wrong += bool((simultaneous_bounds(values, method=method).high < 0).any())
    assert wrong / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_values_without_a_deviation_are_their_bounds():
    values = np.stack([np.full(6, 0.1), np.arange(6.0)], axis=1)
    for method in ("bonferroni", "max_t"):
        bounds = simultaneous_bounds(values, method=method)
        assert bounds.error[0] == 0
        assert bounds.low[0] == bounds.high[0] == bounds.mean[0]
        assert bounds.low[1] < bounds.mean[1]
    assert simultaneous_bounds(np.ones((5, 2)), method="max_t").critical == 0
