"""Error bars over seeds and shares of wins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fljax.contributions import error_bars, wins


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


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"at least one seed on the first axis, got shape \(0, 3\)"):
        error_bars(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="expected a level between 0 and 1, got 95"):
        error_bars(np.zeros((2, 3)), 95)
    with pytest.raises(ValueError, match=r"expected values by seed and client, got shape \(3,\)"):
        wins(np.zeros(3))
