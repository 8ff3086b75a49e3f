"""Laws of verdicts, on drawn payoffs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import games
from fljax.games.strategic.gains import concluded
from tests.games.played import unilateral

UNIT, SPREAD = st.floats(-1, 1, width=32), st.sampled_from([0.0, 0.0, 0.001, 0.3])


@st.composite
def drawn(draw: st.DrawFn) -> tuple[np.ndarray, float, games.Attack]:
    """Gains with noise, without it, and rare ones; a tolerance; an attack with any interval around its mean."""
    seeds, cells = draw(st.integers(5, 20)), draw(st.integers(1, 4))
    noise = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(seeds, cells))
    spread, mean = (np.array(draw(st.lists(kind, min_size=cells, max_size=cells))) for kind in (SPREAD, UNIT))
    tolerance = draw(st.sampled_from([0.0, 0.02, 0.5, 2.0]))
    middle, below, above = draw(UNIT), draw(st.floats(0, 1)), draw(st.floats(0, 1))
    attack = games.Attack(0, (("own", 2.0),), 5, middle, middle, middle - below, middle + above)
    return mean + spread * noise, tolerance, attack


@given(drawn())
def test_nothing_above_the_tolerance_is_certified(asked: tuple[np.ndarray, float, games.Attack]) -> None:
    """By a cell, by the attack, or by bounds without a width, which bound nothing."""
    gains, tolerance, attack = asked
    result = games.certificate(unilateral(gains, outside=None), tolerance=tolerance)
    same = {"tolerance": result.tolerance, "confidence": 0.95, "method": "bonferroni"}
    attacked = concluded(result.gains, result.bounds, attack=attack, **same)  # type: ignore[arg-type]
    for each in (result, attacked):
        if (each.bounds.mean > each.tolerance + 1e-6).any():
            assert each.verdict not in ("CERTIFIED", "NO EFFECT SEEN")
        if each.verdict == "CERTIFIED":
            assert (each.bounds.high - each.bounds.low > 0).all()
            assert set(each.verdicts) == {"CERTIFIED"}
        assert (each.verdict == "VIOLATED") >= ("VIOLATED" in each.verdicts)
    if attack.mean > result.tolerance + 1e-6:
        assert attacked.verdict in ("VIOLATED", "INCONCLUSIVE")
    if attack.low > result.tolerance + 1e-6:
        assert attacked.verdict == "VIOLATED"
    if attack.high <= result.tolerance:
        assert attacked.verdict == result.verdict
    assert (attacked.seeds_needed is None) or attacked.verdict == "INCONCLUSIVE"


def test_a_rare_gain_that_was_not_drawn_is_not_certified() -> None:
    """A lie that pays .5 in one of twenty draws shows nothing in 20 seeds with probability .36."""
    result = games.certificate(unilateral(np.zeros((20, 1)), outside=None), tolerance=0.02)
    assert (result.verdict, result.verdicts, result.seeds_needed) == ("NO EFFECT SEEN", ("NO EFFECT SEEN",), None)


def test_the_largest_harmful_gain_is_beside_the_largest() -> None:
    """Client 0 gains 1 by what is good for the other one, and client 1 gains .2 at the cost of client 0."""
    payoffs = np.random.default_rng(0).normal(0, 1e-3, size=(20, 3, 2))
    payoffs[:, 1] += [1.0, 0.1]
    payoffs[:, 2] += [-0.3, 0.2]
    table = games.PayoffTable(payoffs, np.array([[0, 0], [1, 0], [0, 1]]), ("honest", "lie"), tuple(range(20)))
    result = games.certificate(table, tolerance=0.5)
    assert (result.verdict, result.worst) == ("VIOLATED", 0)
    assert result.harmful is not None
    assert (result.harmful.cell, result.harmful.count) == (1, 1)
    assert result.harmful.low < 0.2 < result.harmful.high < 0.21
    only = games.certificate(table._replace(payoffs=payoffs[:, :2], choices=table.choices[:2]), tolerance=0.5)
    assert only.harmful is None


@pytest.mark.thorough
@pytest.mark.parametrize("cells", [1, 12])
def test_each_side_holds_as_often_as_is_said(cells: int) -> None:
    """No true mean is above the bounds in 95 % of the draws, nor below them; both hold in about 90 %."""
    drawn, rng = 3000, np.random.default_rng(1)
    inside = np.zeros(2)
    for _ in range(drawn):
        bounds = games.certificate(unilateral(rng.normal(size=(8, cells)), outside=None), tolerance=1.0).bounds
        inside += [(bounds.high >= 0).all(), (bounds.low <= 0).all()]
    assert (inside / drawn > 0.94).all()
    assert (inside / drawn < 0.975).all()
