"""Two clients that deviate together, in mean estimation."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import games
from tests.games.played import full, mean_estimation, two_clients


def with_seeds(table: games.PayoffTable, noise: float = 0.0) -> games.PayoffTable:
    drawn = noise * np.random.default_rng(0).normal(size=(6, *table.payoffs.shape[1:]))
    return table._replace(payoffs=table.payoffs + drawn, seeds=tuple(range(6)))


def test_pairs_of_mean_estimation() -> None:
    """Clients 1 and 2 double their updates: w = 12/5, and they have -.98 and -3.38 instead of -.5 and -4.5."""
    result = games.pair_certificate(with_seeds(full(mean_estimation, (1, 2), 3)), tolerance=0.1)
    assert (result.pairs.tolist(), result.deviations) == ([[1, 2], [0, 2], [0, 1]], ("2",) * 3)
    np.testing.assert_allclose(result.gains[0, 0], (-0.48 + 1.12) / 2)
    np.testing.assert_allclose(result.least[0, 0], -0.48)
    np.testing.assert_allclose(result.losses[0, 0], 2.4**2 / 2 - 2)  # of client 0, whose mean is 0
    assert (result.worst, result.verdict) == (int(result.gains[0].argmax()), "VIOLATED")
    assert result.confirmed.mean == pytest.approx(result.gains[0].max())


def test_whether_both_gain() -> None:
    """Both defect from a prisoner's dilemma and lose; in a game of coordination both gain."""
    dilemma = two_clients([[3, 0], [5, 1]], [[3, 5], [0, 1]])
    result = games.pair_certificate(with_seeds(dilemma), tolerance=0.0)
    assert (result.verdict, result.verdict_of_least, result.gains[0].tolist()) == (
        "NO EFFECT SEEN",
        "NO EFFECT SEEN",
        [-2],
    )
    together = two_clients([[1, 0], [0, 2]], [[1, 0], [0, 4]])
    result = games.pair_certificate(with_seeds(together), tolerance=1.5)
    assert (result.gains[0].tolist(), result.least[0].tolist()) == ([2], [1])
    assert (result.verdict, result.verdict_of_least) == ("VIOLATED", "NO EFFECT SEEN")
    noisy = games.pair_certificate(with_seeds(together, 5.0), tolerance=1.0)
    assert noisy.verdict == "INCONCLUSIVE"
