"""The least core and the nucleolus: printed numbers, the definition, and other linear programs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fljax.contributions import least_core, nucleolus, shapley
from fljax.contributions.solutions import members_of
from tests.contributions import games

drawn = st.tuples(st.integers(1, 4), st.integers(0, 1000)).map(
    lambda pair: np.random.default_rng(pair[1]).integers(-4, 8, 2 ** pair[0]) / 4
)


@pytest.mark.parametrize(
    ("values", "excess", "payoff", "last"),
    [
        (games.THREE, 0.11, (0.29, 0.39, 0.12), (0.30, 0.39, 0.11)),
        (games.MAJORITY, 1 / 3, (1 / 3,) * 3, (1 / 3,) * 3),
        (games.GLOVE, 0, (1, 0, 0), (1, 0, 0)),
        (games.MINERS, 0, (1 / 2,) * 4, (1 / 2,) * 4),
    ],
)
def test_printed_numbers(values, excess, payoff, last):
    found = least_core(values)
    np.testing.assert_allclose(found.excess, excess, atol=1e-8)
    np.testing.assert_allclose(found.payoff, payoff, atol=1e-8)
    np.testing.assert_allclose(nucleolus(values), last, atol=1e-8)


def test_the_game_of_roots():
    np.testing.assert_allclose(least_core(games.root_of_sizes(1, 2, 4)).excess, 0.589487, atol=6e-7)


def test_which_coalitions_are_tight():
    found = least_core(games.THREE)
    gap = members_of(3) @ found.payoff - (games.THREE - games.THREE[0])
    np.testing.assert_allclose(found.slack[1:-1], gap[1:-1] + 0.11, atol=1e-8)
    assert found.slack[[0, -1]].tolist() == [0, 0]
    assert np.flatnonzero(found.tight).tolist() == [0b001, 0b010, 0b101]


@given(drawn)
def test_no_payoff_has_a_smaller_excess_and_none_is_more_equal(values: np.ndarray) -> None:
    """Payoffs on a grid and near the optimum are not better; the program of the squares agrees."""
    found, members = least_core(values), members_of(int(np.log2(len(values))))
    clients = members.shape[1]
    total = values[-1] - values[0]
    np.testing.assert_allclose(found.payoff.sum(), total, atol=1e-8)
    if clients == 1:
        assert found.excess == -np.inf
        return
    game = values - values[0]

    def excess(payoff: np.ndarray) -> float:
        return float((game - members @ payoff)[1:-1].max())

    np.testing.assert_allclose(excess(found.payoff), found.excess, atol=1e-7)
    random = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1.0):
        for step in random.normal(scale=scale, size=(50, clients)):
            assert excess(found.payoff + step - step.mean()) >= found.excess - 1e-8
    other = minimize(
        lambda payoff: payoff @ payoff,
        found.payoff,
        jac=lambda payoff: 2 * payoff,
        constraints=[
            {"type": "eq", "fun": lambda payoff: payoff.sum() - total},
            {"type": "ineq", "fun": lambda payoff: (members @ payoff - game)[1:-1] + found.excess + 1e-9},
        ],
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    assert found.payoff @ found.payoff <= other.fun + 1e-6


def sorted_excesses(values: np.ndarray, payoff: np.ndarray) -> np.ndarray:
    members = members_of(len(payoff))
    return np.sort((values - values[0] - members @ payoff)[1:-1])[::-1]


@given(drawn)
def test_the_nucleolus_has_the_least_sorted_excesses(values: np.ndarray) -> None:
    found = nucleolus(values)
    np.testing.assert_allclose(found.sum(), values[-1] - values[0], atol=1e-8)
    if len(found) == 1:
        return
    best = sorted_excesses(values, found)
    np.testing.assert_allclose(best[0], least_core(values).excess, atol=1e-7)
    random = np.random.default_rng(1)
    steps = [random.normal(scale=scale, size=len(found)) for scale in (1e-2, 0.1, 1.0) for _ in range(40)]
    steps += [np.eye(len(found))[i] * 0.05 for i in range(len(found))]
    for step in steps:
        other = sorted_excesses(values, found + step - step.mean())
        differs = np.flatnonzero(np.abs(other - best) > 1e-7)
        assert not len(differs) or other[differs[0]] > best[differs[0]]


def test_the_core_of_a_convex_game_has_the_shapley_values():
    values = members_of(4).sum(axis=1) ** 2.0
    assert least_core(values).excess <= 1e-9
    for order in itertools.islice(itertools.permutations(range(4)), 6):
        assert least_core(values[members_of(4)[:, list(order)] @ [1, 2, 4, 8]]).excess <= 1e-9
    np.testing.assert_allclose(least_core(values).payoff, shapley(values), atol=1e-8)
    np.testing.assert_allclose(nucleolus(values), shapley(values), atol=1e-8)


def test_the_value_of_nobody_is_subtracted_everywhere():
    np.testing.assert_allclose(least_core(games.THREE + 5).payoff, least_core(games.THREE).payoff, atol=1e-8)
    np.testing.assert_allclose(nucleolus(games.THREE + 5), nucleolus(games.THREE), atol=1e-8)


def test_fewer_coalitions_give_a_lower_bound():
    known = np.ones(8, bool)
    known[0b010] = False
    found = least_core(games.THREE, known)
    assert found.excess < 0.11
    assert not found.tight[0b010]
    hidden = np.where(known, games.THREE, np.nan)
    np.testing.assert_allclose(least_core(hidden, known).excess, found.excess)
    alone = least_core(games.THREE, np.zeros(8, bool))
    assert alone.excess == -np.inf
    np.testing.assert_allclose(alone.payoff, [0.8 / 3] * 3)


def test_seeds_one_client_and_diverged_coalitions():
    table = np.stack([games.THREE, 2 * games.THREE, np.full(8, np.nan), np.full(8, 0.25)])[:, None]
    found = least_core(table)
    assert (found.excess.shape, found.payoff.shape) == ((4, 1), (4, 1, 3))
    assert found.slack.shape == found.tight.shape == (4, 1, 8)
    np.testing.assert_allclose(found.excess[:, 0], [0.11, 0.22, np.nan, 0], atol=1e-8)
    np.testing.assert_allclose(found.payoff[1, 0], (0.58, 0.78, 0.24), atol=1e-8)
    assert np.isnan(found.payoff[2]).all()
    assert np.isnan(nucleolus(table)[2]).all()
    np.testing.assert_allclose(nucleolus(table)[[1, 3], 0], [(0.6, 0.78, 0.22), (0, 0, 0)], atol=1e-8)
    one = least_core([0.25, 1.0])
    assert (float(one.excess), one.payoff.tolist()) == (-np.inf, [0.75])
    assert nucleolus([0.25, 1.0]).tolist() == [0.75]
    with pytest.raises(ValueError, match=r"expected a value for each of 2\^N coalitions"):
        least_core(np.zeros(5))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("unknown", [np.nan, np.inf, 4.0])
def test_what_is_not_known_changes_nothing(scale: float, unknown: float):
    """Also not the scale to which tolerances are relative."""
    values = np.array([0, 1, 2, 5, 1.5, 4, 6, 9]) * scale
    known = np.arange(8) != 5
    least = least_core(np.where(known, values, unknown), known)
    np.testing.assert_allclose(least.payoff / scale, (2, 4, 3), rtol=1e-6)
    np.testing.assert_array_equal(least.tight, least_core(values, known).tight)


def test_coalitions_that_bound_nothing() -> None:
    """Client 2 is in none of them, so it may pay any sum to the others."""
    found = least_core(games.THREE, np.isin(np.arange(8), [1, 2, 3]))
    assert found.excess == -np.inf
    assert np.isnan(found.payoff).all()
    assert not found.tight.any()
