"""Prices of anarchy, stability and gaming."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import games
from tests.games.played import GAINS, effort, full, mean_estimation, unilateral

EFFORT = full(effort, (1, 0), 3)
RACE = full(mean_estimation, (1, 2, 4), 3)


def test_prices_of_the_effort_game() -> None:
    """Two clients should contribute, and one does."""
    total = games.welfare(EFFORT)[0]
    equilibria = games.pure_equilibria(EFFORT, half_width=0).certain
    assert total.max() == pytest.approx(1.993994, abs=5e-7)
    np.testing.assert_allclose(total[equilibria], 1.596362, atol=5e-7)
    result = games.prices_of(EFFORT, equilibria)
    assert (result.anarchy, result.stability) == (pytest.approx(1.249087, abs=5e-7), pytest.approx(1.249087, abs=5e-7))
    honest = 3 * (1 - np.exp(-3) - 0.3)
    assert result.gaming == pytest.approx((honest - 1.596362) / honest, abs=1e-6)
    assert result.gaming_of == "the worst equilibrium"


def test_an_arms_race_that_cancels_costs_nothing() -> None:
    """Losses have no prices; with 10 more for each client, all who scale by 4 have what honest clients have."""
    equilibria = games.pure_equilibria(RACE, half_width=0).certain
    assert np.isnan(games.prices_of(RACE, equilibria)[:3]).all()
    result = games.prices_of(RACE._replace(payoffs=RACE.payoffs + 10), equilibria)
    assert result.gaming == pytest.approx(0)
    # The mean of the best profile is the largest one that is closest to 2, where the honest mean is.
    assert result.anarchy == result.stability == pytest.approx(1)


def test_prices_without_an_equilibrium() -> None:
    nothing = np.zeros(8, bool)
    result = games.prices_of(EFFORT, nothing)
    assert np.isnan(result[:3]).all()
    assert result.gaming_of == ""
    table = unilateral(GAINS)
    by_deviation = games.prices_of(table, np.zeros(4, bool), certificate=games.certificate(table, tolerance=0.05))
    honest = table.payoffs[:, 0].sum(axis=1).mean()
    assert (by_deviation.gaming, by_deviation.gaming_of) == (pytest.approx(-0.8 * 0.015 / honest), "client 0: lie")


def test_when_prices_say_nothing() -> None:
    total, equilibria = np.array([1.0, 2.0, 4.0]), np.array([True, True, False])
    assert (games.price_of_anarchy(total, equilibria), games.price_of_stability(total, equilibria)) == (4.0, 2.0)
    for price in (games.price_of_anarchy, games.price_of_stability):
        assert np.isnan(price(total, np.zeros(3, bool)))
        assert np.isnan(price(total - 1.5, equilibria))
    assert np.isnan(games.price_of_anarchy(total - 1, equilibria))  # the worst equilibrium has nothing
    assert (games.price_of_stability(total - 1, equilibria), games.price_of_gaming(2.0, 1.5)) == (3.0, 0.25)
    assert games.price_of_gaming(2.0, 3.0) == -0.5
    assert np.isnan(games.price_of_gaming(0.0, -1.0))
    with pytest.raises(ValueError, match=r"expected equilibria by profile, 8 of them, got shape \(2,\)"):
        games.prices_of(EFFORT, np.ones(2, bool))
