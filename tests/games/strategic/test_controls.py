"""Controls: mechanisms whose gains are known."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import games
from fljax.games.strategic.splitting import ALIKE, DIFFERENT, FEE, KNOWN_GAIN, fee_for_honesty, known_mechanisms
from tests.games.mean_estimation import utilities
from tests.games.played import GAINS, unilateral


def test_the_known_gain_is_that_of_the_fixed_point() -> None:
    honest, lie = utilities([1, 1, 1], DIFFERENT), utilities([1, 1, 2], DIFFERENT)
    assert lie[2] - honest[2] == KNOWN_GAIN
    others = [utilities(scale, DIFFERENT)[i] - honest[i] for i, scale in ((0, [2, 1, 1]), (1, [1, 2, 1]))]
    assert max(others) < KNOWN_GAIN
    np.testing.assert_allclose(utilities([[1, 1, 1], [2, 1, 1]], ALIKE), 0)


@pytest.mark.in_turn
def test_mean_estimation_is_flagged_where_it_pays_and_certified_where_not() -> None:
    pays, does_not = known_mechanisms()
    assert (pays.verdict, does_not.verdict) == ("VIOLATED", "NO EFFECT SEEN")
    assert pays.passed
    assert does_not.passed
    assert pays.low == pytest.approx(KNOWN_GAIN, abs=1e-4)
    assert does_not.high == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("method", ["bonferroni", "max_t"])
def test_a_fee_for_honesty_is_flagged(method: str) -> None:
    """By twice the span of payoffs and the tolerance; what a deviation loses is at most the span."""
    gains = games.unilateral_gains(unilateral(GAINS))
    span = max(gains.payoffs.max(), gains.honest.max()) - min(gains.payoffs.min(), gains.honest.min())
    result = fee_for_honesty(gains, 0.05, 0.95, method)
    assert (result.name, result.expected, result.passed) == (FEE, "VIOLATED", True)
    assert result.known == pytest.approx(0.05 + span)
    assert 0.05 < result.low < GAINS.mean(axis=0).max() + 0.05 + 2 * span < result.high


def test_the_fee_where_all_payoffs_are_equal() -> None:
    table = unilateral(np.zeros((5, 2)))
    same = table._replace(payoffs=np.full_like(table.payoffs, 0.3))
    result = fee_for_honesty(games.unilateral_gains(same), 0.2, 0.95, "bonferroni")
    assert (result.passed, result.known, result.low) == (True, pytest.approx(1.2), pytest.approx(1.2))


@pytest.mark.parametrize("quiet", [False, True])  # a deviation without effect, whose bounds are narrow
def test_too_few_seeds_for_their_noise_are_told(quiet) -> None:
    """Gains of two sizes in five seeds: bounds of many cells are wider than the fee."""
    gains = np.tile(np.array([1.0, -1.0, 1.0, -1.0, 1.0])[:, None], (1, 400))
    gains[:, 7] *= not quiet
    result = fee_for_honesty(games.unilateral_gains(unilateral(gains)), 0.0, 0.999, "bonferroni")
    assert not result.passed
