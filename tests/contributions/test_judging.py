"""How estimates agree with the truth: printed numbers, scipy's, ties and unknown clients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from fljax.contributions import agreement, stability


def test_printed_numbers():
    found = agreement([1, 2, 3, 4], [1, 3, 2, 4])
    np.testing.assert_allclose((found.kendall, found.spearman), (0.666667, 0.8), atol=6e-7)
    np.testing.assert_allclose(agreement([1, 2, 2, 3], [1, 2, 3, 4]).kendall, 0.912871, atol=6e-7)


def tau_b(a, b):
    """The definition: concordant minus discordant pairs, over the geometric mean of the pairs that are no ties."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    first, second = (np.array([np.sign(x[i] - x[j]) for i, j in pairs]) for x in (a, b))
    return first @ second / np.sqrt(np.abs(first).sum() * np.abs(second).sum())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=8))
def test_ranks_with_ties(pairs: list[tuple[int, int]]) -> None:
    a, b = np.array(pairs, float).T
    found = agreement(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert np.isnan([found.kendall, found.spearman, found.best_found, found.worst_found]).all()
        return
    np.testing.assert_allclose(found.kendall, tau_b(a, b), atol=1e-12)
    scipys: Any = spearmanr(a, b)
    np.testing.assert_allclose(found.spearman, scipys.statistic, atol=1e-12)
    best = [i for i in range(len(a)) if a[i] == max(a)]
    np.testing.assert_allclose(found.best_found, np.mean([b[i] == max(b) for i in best]))


def test_shares_and_the_matched_total():
    found = agreement([2.0, 1.0, 1.0], [0.5, 0.3, 0.2])
    np.testing.assert_allclose(found.share_error, 0.05 + 0.05)
    np.testing.assert_allclose(found.deviation, [0, -0.05, 0.05], atol=1e-12)
    assert (found.best_found, found.worst_found, found.compared) == (1, 0.5, 3)
    negative = agreement([2.0, 1.0, -4.0], [0.5, 0.3, 0.2])
    assert np.isnan(negative.share_error)
    assert np.isnan(negative.deviation).all()
    assert (negative.best_found, negative.worst_found) == (1, 1)


def test_a_sum_that_is_rounding_has_no_shares():
    """As of the first-order values, whose sum is 0 by their equation."""
    found = agreement(np.array([[0.3, -0.1, -0.2 + 1e-8], [0.3, -0.1, -0.1]]), [0.5, 0.3, 0.2])
    assert np.isnan(found.share_error).tolist() == [True, False]
    assert np.isnan(found.deviation).all(axis=1).tolist() == [True, False]
    assert np.isfinite(found.kendall).all()
    assert np.isnan(agreement([np.inf, 1.0], [0.5, 0.3]).share_error)


def test_unknown_clients_are_left_out():
    found = agreement([3.0, np.nan, 1.0, 2.0], [3.0, 9.0, 1.0, 2.0])
    assert (found.kendall, found.share_error, found.compared) == (pytest.approx(1), 0, 3)
    assert np.isnan(found.deviation).tolist() == [False, True, False, False]
    assert agreement([np.nan, np.nan], [1.0, 2.0]).compared == 0
    assert np.isnan(agreement([1.0], [1.0]).kendall)


def test_seeds_are_compared_one_by_one():
    truth = np.random.default_rng(0).normal(size=(3, 5))
    found = agreement(truth[:, None] * np.array([1, -1])[None, :, None], truth[:, None])
    np.testing.assert_allclose(found.kendall, [[1, -1]] * 3, atol=1e-12)
    assert found.deviation.shape == (3, 2, 5)
    assert agreement(truth[0], truth).kendall.shape == (3,)


def test_stability():
    rows = np.array([[1.0, 2, 3], [1, 2, 3], [3, 2, 1]])
    np.testing.assert_allclose(stability(rows), (1 - 1 - 1) / 3)
    assert np.isnan(stability(rows[:1]))
    assert np.isnan(stability([[1.0, 1], [1, 2]]))
