"""Ranks of methods: SciPy's test, and the critical differences that Demsar (2006) prints."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from fljax.metrics.arrays import alike, critical_difference, ranking

VALUES = np.random.default_rng(0).normal(size=(7, 4)).round(1)


@pytest.mark.parametrize("values", [VALUES, np.round(VALUES)])  # the second has ties
@pytest.mark.parametrize("lower", [False, True])
def test_friedmans_statistic_is_that_of_scipy(values: np.ndarray, lower: bool) -> None:
    found = ranking(values, lower=lower)
    expected = friedmanchisquare(*values.T)
    assert (found.friedman, found.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))


def test_ranks_by_hand() -> None:
    found = ranking(np.array([[0.9, 0.8, 0.8], [0.1, 0.3, 0.2]]))
    np.testing.assert_array_equal(found.ranks, [[1, 2.5, 2.5], [3, 1, 2]])
    np.testing.assert_array_equal(found.average, [2, 1.75, 2.25])
    np.testing.assert_array_equal(ranking(np.array([[0.9, 0.8]]), lower=True).ranks, [[2, 1]])


# Demsar (2006), Table 5 (a): q of Nemenyi's test by the number of methods.
@pytest.mark.parametrize(
    ("methods", "alpha", "q"), [(2, 0.05, 1.960), (4, 0.05, 2.569), (10, 0.05, 3.164), (5, 0.1, 2.459)]
)
def test_critical_differences_are_the_printed_ones(methods: int, alpha: float, q: float) -> None:
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14, alpha) == pytest.approx(expected, abs=1e-3)


def test_what_is_too_small_for_a_test() -> None:
    found = ranking(np.array([[0.1, 0.2]]))
    assert math.isnan(found.friedman)
    assert math.isnan(found.critical_difference)
    assert math.isnan(ranking(np.ones((3, 4))).friedman)  # all methods are equal everywhere


def test_groups_of_methods_that_are_alike() -> None:
    average = np.array([1.0, 3.5, 1.8, 2.6])
    assert alike(average, 1.0) == [(0, 2), (2, 3), (3, 1)]
    assert alike(average, 1.7) == [(0, 2, 3), (2, 3, 1)]
    assert alike(average, 0.1) == []


@pytest.mark.parametrize(
    ("values", "alpha", "words"),
    [
        (np.array([[0.1, np.nan]]), 0.05, "expected a finite value of every method in every block"),
        (np.zeros((0, 2)), 0.05, "expected a finite value"),
        (np.ones((2, 2)), 1.5, "expected alpha between 0 and 1, got 1.5"),
    ],
)
def test_wrong_values_are_refused(values: np.ndarray, alpha: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ranking(values, alpha=alpha)
