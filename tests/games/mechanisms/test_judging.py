"""What a search compares: objectives, and regrets by client or by lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fljax.games.mechanisms.judging import Cells, judged, objectives_of, scores
from fljax.games.mechanisms.playing import Game

GAME = Game(lambda *_: np.zeros((1, 1, 1, 1)), 3, {"a": None, "b": None})
DEVIATORS = np.array([0, 2])


@pytest.mark.parametrize("roles", [True, False])
def test_regret_is_the_largest_mean_gain_of_a_cell_or_of_a_lie(roles: bool) -> None:
    cells = Cells.of(GAME, DEVIATORS, roles)
    profiles = cells.profiles(3)
    assert profiles.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 0, 1], [0, 0, 2]]
    random = np.random.default_rng(0)
    payoffs, outside = random.normal(size=(4, 5, 6, 3)), random.normal(size=(6, 3))
    found = judged(payoffs, cells, cells.groups, "mean", outside)
    for candidate, (honest, *lies) in enumerate(payoffs):
        by_cell = [(lie - honest)[:, client] for lie, client in zip(lies, (0, 0, 2, 2), strict=True)]
        groups = by_cell if roles else [(by_cell[0] + by_cell[2]) / 2, (by_cell[1] + by_cell[3]) / 2]
        gains = [group.mean() for group in groups]
        best = int(np.argmax(gains))
        assert (found.group[candidate], found.regret[candidate]) == (best, pytest.approx(gains[best]))
        assert found.error[candidate] == pytest.approx(groups[best].std(ddof=1) / np.sqrt(6))
        assert found.objective[candidate] == pytest.approx(honest.mean())
        assert found.worse_off[candidate] == pytest.approx((honest < outside).mean())
    worse = np.maximum(found.worse_off - 0.3, 0)
    expected = found.objective - 5 * np.maximum(found.regret - 0.1, 0) - worse
    np.testing.assert_allclose(scores(found, 0.1, 0.3, 5.0), expected)


def test_some_lies_are_those_of_the_whole_and_others_are_unknown() -> None:
    cells = Cells.of(GAME, DEVIATORS, roles=True)
    payoffs = np.random.default_rng(1).normal(size=(4, 5, 6, 3))
    whole = judged(payoffs, cells, cells.groups, "mean", None)
    some = judged(payoffs[:, [0, 2, 3]], cells.of_groups(np.array([1, 2])), cells.groups, "mean", None)
    assert np.array_equal(some.gains[:, [1, 2]], whole.gains[:, [1, 2]])
    assert np.isneginf(some.gains[:, [0, 3]]).all()
    honest = judged(payoffs[:, :1], cells.of_groups(np.arange(0)), cells.groups, "mean", None)
    assert honest.regret.tolist() == [0.0] * 4
    assert np.isnan(honest.worse_off).all()


def test_a_run_that_diverged_has_the_smallest_payoff() -> None:
    payoffs = np.random.default_rng(2).normal(size=(2, 5, 6, 3))
    least, cells = payoffs.min(), Cells.of(GAME, DEVIATORS, roles=True)
    payoffs[1, 0, 1:] = np.nan
    mean = (payoffs[1, 0, 0].sum() + 15 * least) / 18
    found = judged(payoffs, cells, cells.groups, "mean", None)
    assert found.objective[1] == pytest.approx(mean)
    assert np.isfinite(found.regret).all()
    payoffs[1, 0] = np.nan
    assert judged(payoffs, cells, cells.groups, "mean", None).objective[1] == -np.inf


def test_objectives() -> None:
    honest = np.array([[0.1, 0.5, 0.9], [0.3, 0.2, 0.8]])
    outside = np.array([[0.2, 0.2, 0.2], [0.2, 0.2, 0.7]])
    expected: dict[Any, float] = {
        "mean": honest.mean(),
        "participation": 4 / 6,
        "worst_decile": (0.1 + 0.2) / 2,
        "nash": np.log(np.maximum(honest - outside, 1e-3)).mean(),
        (lambda payoffs: payoffs.max()): 0.85,
    }
    for objective, value in expected.items():
        assert objectives_of(objective, honest, outside).mean() == pytest.approx(value)
    with pytest.raises(ValueError, match=r"expected the objective .* to return one number"):
        objectives_of(lambda payoffs: payoffs, honest, outside)
