"""Gains of single seeds: quantiles that occurred, and how many seeds are violated at most."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fljax import games
from fljax.games.strategic.gains import share_at_most
from tests.games.played import GAINS, unilateral


def test_quantiles_are_gains_that_occurred() -> None:
    result = games.ex_post(games.certificate(unilateral(GAINS), tolerance=0.012), (0.5, 0.9, 1.0))
    np.testing.assert_allclose(
        result.quantiles, [[0.015, -0.02, 0.001], [0.03, -0.01, 0.004], [0.03, -0.01, 0.004]], atol=1e-14
    )
    np.testing.assert_allclose(result.largest, [0.015, 0.03, 0.03], atol=1e-14)  # with seed 2 that of cell 2
    np.testing.assert_allclose(result.above, [3 / 5, 0, 0])
    assert (result.violated, result.levels) == (3 / 5, (0.5, 0.9, 1.0))


def test_the_share_of_violated_seeds() -> None:
    """Without a hit, ``(1 - p)^R = .05``; with s of R hits at most so many are drawn with probability .05."""
    assert share_at_most(0, 20, 0.95) == pytest.approx(1 - 0.05 ** (1 / 20))
    assert share_at_most(20, 20, 0.95) == 1
    p = share_at_most(3, 5, 0.95)
    drawn = sum(math.comb(5, k) * p**k * (1 - p) ** (5 - k) for k in range(4))
    assert drawn == pytest.approx(0.05)


def test_a_gain_that_is_the_tolerance_is_not_above_it() -> None:
    table = unilateral(np.full((5, 2), 0.03))
    assert games.ex_post(games.certificate(table, tolerance=0.03)).violated == 0
    assert games.ex_post(games.certificate(table, tolerance=0.02)).violated == 1
