"""Equilibria of small games with known solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from fljax import games
from fljax.games import PayoffTable
from fljax.games.strategic.gains import as_precise_as
from tests.games.played import effort, full, mean_estimation, two_clients

EFFORT = full(effort, (1, 0), 3)
PENNIES = two_clients([[1, -1], [-1, 1]], [[-1, 1], [1, -1]])
DILEMMA = two_clients([[2, 0], [3, 1]], [[2, 3], [0, 1]])
# Two clients who like to be together, one of them here and the other one there.
MEETING = two_clients([[3, 0], [0, 2]], [[2, 0], [0, 3]])


def sets_of(table: PayoffTable, chosen: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in table.choices[chosen].tolist()]


def with_noise(table: PayoffTable, sd: float, seeds: int = 6) -> PayoffTable:
    noise = np.random.default_rng(0).normal(size=(seeds, *table.payoffs.shape[1:]))
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0, ddof=1)
    return table._replace(payoffs=table.payoffs + sd * noise, seeds=tuple(range(seeds)))


def test_exactly_one_client_makes_an_effort() -> None:
    result = games.pure_equilibria(EFFORT, half_width=0)
    assert sorted(sets_of(EFFORT, result.certain)) == [(0, 1, 1), (1, 0, 1), (1, 1, 0)]
    np.testing.assert_array_equal(result.certain, result.possible)
    honest = result.regret[EFFORT.honest]
    assert honest == pytest.approx(0.3 - (np.exp(-2) - np.exp(-3)))


def test_an_arms_race_in_mean_estimation() -> None:
    table = full(mean_estimation, (1, 2, 4), 3)
    assert sets_of(table, games.pure_equilibria(table, half_width=0).certain) == [(2, 2, 2)]


def test_the_order_of_profiles_makes_no_difference() -> None:
    order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
    mixed = EFFORT._replace(payoffs=EFFORT.payoffs[:, order], choices=EFFORT.choices[order])
    for name, values in games.pure_equilibria(EFFORT, half_width=0)._asdict().items():
        other = getattr(games.pure_equilibria(mixed, half_width=0), name)
        np.testing.assert_array_equal(other, values[order] if np.ndim(values) else values)
    graph = games.best_response_graph(mixed)
    moved = {
        (*mixed.choices[start], *mixed.choices[end]) for start, end in zip(graph.source, graph.target, strict=True)
    }
    graph = games.best_response_graph(EFFORT)
    usual = {
        (*EFFORT.choices[start], *EFFORT.choices[end]) for start, end in zip(graph.source, graph.target, strict=True)
    }
    assert moved == usual
    play = games.correlated_equilibria(mixed).best_play
    np.testing.assert_allclose(play, games.correlated_equilibria(EFFORT).best_play[order], atol=1e-9)


def test_an_estimated_equilibrium_is_certain_or_possible() -> None:
    """Both clients lose 1 by leaving the equilibrium; gains are off by twice what payoffs are off by."""
    table = with_noise(DILEMMA, 0.1)
    half = games.payoff_half_width(table)
    assert half == pytest.approx(student.ppf(1 - 0.025 / 8, 5) * 0.1 / np.sqrt(6))  # both sides of 8 payoffs
    result = games.pure_equilibria(table, half_width=half)
    assert sets_of(DILEMMA, result.certain) == sets_of(DILEMMA, result.possible) == [(1, 1)]
    np.testing.assert_allclose([result.low, result.high], [result.regret - 2 * half, result.regret + 2 * half])
    result = games.pure_equilibria(table, half_width=0.51)
    assert not result.certain.any()
    assert sets_of(DILEMMA, result.possible) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert games.pure_equilibria(table, half_width=half, tolerance=2.0).certain.all()


def test_gains_of_equilibria_are_paired_by_seed() -> None:
    """What differs between seeds alone is in no gain; the bounds are those of 8 gains with 6 seeds."""
    table = with_noise(DILEMMA, 0.1)
    table = table._replace(payoffs=table.payoffs + 50 * np.arange(6)[:, None, None])
    assert games.payoff_half_width(table) > 50
    result = games.pure_equilibria(table)
    assert sets_of(DILEMMA, result.certain) == sets_of(DILEMMA, result.possible) == [(1, 1)]
    gains = np.stack([table.payoffs[:, 1, 0] - table.payoffs[:, 3, 0], table.payoffs[:, 2, 1] - table.payoffs[:, 3, 1]])
    half = student.ppf(1 - 0.025 / 8, 5) * gains.std(axis=1, ddof=1) / np.sqrt(6)
    assert (result.regret[3], result.high[3]) == (pytest.approx(-1), pytest.approx((gains.mean(axis=1) + half).max()))
    assert result.low[3] == pytest.approx((gains.mean(axis=1) - half).max())


def test_a_tie_is_an_equilibrium() -> None:
    table = two_clients([[0.1 + 0.2, 0.0], [0.3, 0.0]], [[1.0, 1.0], [0.0, 0.0]])
    assert sets_of(table, games.pure_equilibria(table, half_width=0).certain) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert not len(games.best_response_graph(table).source)


def test_best_responses_of_a_dilemma_lead_to_its_equilibrium() -> None:
    graph = games.best_response_graph(DILEMMA)
    edges = list(zip(graph.source, graph.target, graph.client, graph.gain, strict=True))
    assert sorted(edges) == [(0, 1, 1, 1.0), (0, 2, 0, 1.0), (1, 3, 0, 1.0), (2, 3, 1, 1.0)]
    assert (graph.sinks.tolist(), graph.cycles) == ([False, False, False, True], ())
    still = games.best_response_graph(DILEMMA, margin=1.0)
    assert (len(still.source), still.sinks.all()) == (0, True)


def test_best_responses_of_matching_pennies_go_round() -> None:
    graph = games.best_response_graph(PENNIES)
    assert graph.cycles == ((0, 1, 3, 2),)
    assert not graph.sinks.any()


def test_equally_good_responses_are_all_edges() -> None:
    table = two_clients([[0, 0, 0], [1, 0, 0], [1, 0, 0]], np.zeros((3, 3)))
    graph = games.best_response_graph(table)
    assert sorted(zip(graph.source, graph.target, strict=True)) == [(0, 3), (0, 6)]


def test_the_potential_of_the_effort_game() -> None:
    """``P = 1 - exp(-sum p) - .3 sum p`` up to a constant: each client has the same benefit."""
    result = games.exact_potential(EFFORT)
    total = 3 - EFFORT.choices.sum(axis=1)
    expected = -np.exp(-total) - 0.3 * total
    np.testing.assert_allclose(result.values, expected - expected[0], atol=1e-12)
    assert result.exact
    assert result.defect == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_payoffs_of_single_precision_have_a_potential_up_to_their_precision(dtype: Any) -> None:
    """Also where a table has them in double precision, as those of runs, and with a cost that was subtracted since."""
    exact = full(lambda efforts: effort(efforts) - np.array([0.0, 0.07, 0.13]) * efforts, (1, 0), 3)
    single, largest = exact.payoffs.astype(np.float32), float(np.abs(exact.payoffs).max())
    table = exact._replace(payoffs=single.astype(dtype))
    result = games.exact_potential(table)
    assert 8e-12 * largest < result.defect < 8 * 2.0**-23 * largest  # beyond rounding in double precision
    assert result.exact
    np.testing.assert_allclose(result.values, games.exact_potential(exact).values, atol=1e-6)
    off = 0.01 * np.eye(8)[:, :3]
    assert not games.exact_potential(table._replace(payoffs=(table.payoffs + off).astype(dtype))).exact
    assert not games.exact_potential(exact._replace(payoffs=exact.payoffs + 1e-5 * off)).exact
    charged = as_precise_as(single - 0.1, single)
    np.testing.assert_array_equal(charged, charged.astype(np.float32))
    np.testing.assert_array_equal(as_precise_as(exact.payoffs - 0.1, exact.payoffs), exact.payoffs - 0.1)


def test_a_tie_in_single_precision_is_an_equilibrium() -> None:
    first = np.array([[0.3, 0.0], [0.3 + 1e-7, 0.0]], np.float32)
    table = two_clients(first, [[1.0, 1.0], [0.0, 0.0]])
    assert table.payoffs[0, 0, 0] < table.payoffs[0, 2, 0]
    assert games.pure_equilibria(table, half_width=0).certain[0]


@pytest.mark.parametrize("large", [1e6, 10**6, 10**9])
def test_whole_numbers_are_exact(large: float) -> None:
    """The prisoners' dilemma in cents of large sums, as floats or integers."""
    prisoners = large + np.array([[3, 0], [5, 1]])
    table = two_clients(prisoners, prisoners.T)
    table = table._replace(payoffs=table.payoffs.astype(prisoners.dtype))
    assert games.pure_equilibria(table, half_width=0).certain.tolist() == [False, False, False, True]
    assert games.best_response_graph(table).sinks.tolist() == [False, False, False, True]
    seeds = table._replace(payoffs=np.repeat(table.payoffs, 5, axis=0), seeds=tuple(range(5)))
    assert games.certificate(seeds, tolerance=1).verdict == "VIOLATED"  # who defects gains 2
    assert games.certificate(seeds, tolerance=2).verdict == "NO EFFECT SEEN"
    together = seeds._replace(payoffs=seeds.payoffs + np.array([[0], [0], [0], [6]], prisoners.dtype))
    assert games.pair_certificate(together, tolerance=3).verdict == "VIOLATED"  # both defect and gain 4


def test_a_game_without_a_potential() -> None:
    result = games.exact_potential(PENNIES)
    assert (result.defect, result.exact, np.isnan(result.values).all()) == (8.0, False, True)
    assert games.exact_potential(DILEMMA).exact
    assert not games.exact_potential(full(mean_estimation, (1, 2, 4), 3)).exact


def test_a_cycle_of_strategies_that_are_not_neighbours() -> None:
    """The second difference of strategies 0 and 2 is that of 0 and 1 plus that of 1 and 2."""
    steps = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]])
    assert games.exact_potential(two_clients(steps, np.zeros((3, 3)))).defect == 4.0


def test_correlated_equilibria_of_the_effort_game() -> None:
    result = games.correlated_equilibria(EFFORT)
    assert (result.worst, result.best) == (pytest.approx(1.405985, abs=5e-7), pytest.approx(1.879130, abs=5e-7))
    welfare = EFFORT.payoffs[0].sum(axis=1)
    for value, play in ((result.best, result.best_play), (result.worst, result.worst_play)):
        assert play.sum() == pytest.approx(1)
        assert play @ welfare == pytest.approx(value)
        for client in range(3):  # whoever is told a strategy gains nothing by the other
            for strategy in (0, 1):
                told = np.flatnonzero(EFFORT.choices[:, client] == strategy)
                other = told + (1 - 2 * strategy) * 2 ** (2 - client)
                gain = EFFORT.payoffs[0, other, client] - EFFORT.payoffs[0, told, client]
                assert play[told] @ gain <= 1e-8


def test_a_dilemma_has_a_single_correlated_equilibrium() -> None:
    result = games.correlated_equilibria(DILEMMA)
    assert (result.best, result.worst) == (pytest.approx(2), pytest.approx(2))
    np.testing.assert_allclose(result.best_play, [0, 0, 0, 1], atol=1e-9)


def test_the_symmetric_mixture_of_the_effort_game() -> None:
    mixture = np.tile([0.492142, 1 - 0.492142], (3, 1))
    np.testing.assert_allclose(games.mixed_regret(EFFORT, mixture), 0, atol=1e-6)
    assert (games.mixed_regret(EFFORT, np.tile([0.5, 0.5], (3, 1))) > 1e-3).all()
    pure = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    regret = games.pure_equilibria(EFFORT, half_width=0).regret[0]
    np.testing.assert_allclose(games.mixed_regret(EFFORT, pure), regret)


def test_mixtures_of_clients_with_different_payoffs() -> None:
    result = games.mixed_regret(MEETING, np.array([[0.6, 0.4], [0.4, 0.6]]))
    np.testing.assert_allclose(result, 0, atol=1e-12)
    # Client 0 expects 3 * .5 of "a" and 2 * .5 of "b", and client 1 1.2 and 1.2.
    np.testing.assert_allclose(games.mixed_regret(MEETING, np.array([[0.6, 0.4], [0.5, 0.5]])), [0.2, 0], atol=1e-12)


def test_mixed_equilibria_of_two_clients() -> None:
    result = games.mixed_equilibria(MEETING)
    expected = [[[1, 0], [1, 0]], [[0, 1], [0, 1]], [[0.6, 0.4], [0.4, 0.6]]]
    np.testing.assert_allclose(result.mixtures, expected, atol=1e-12)
    np.testing.assert_allclose(result.payoffs, [[3, 2], [2, 3], [1.2, 1.2]], atol=1e-12)
    assert (result.degenerate, result.odd) == (False, True)
    for last in (0, 1):  # with an odd and with an even number of pure equilibria
        table = two_clients([[1, 1], [1, last]], [[1, 1], [1, last]])
        assert games.mixed_equilibria(table).degenerate


@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([1.0, 1e-6, 1e6]), st.sampled_from([0.0, 1e3]))
def test_mixed_equilibria_are_equilibria_and_odd(seed: int, strategies: int, scale: float, shift: float) -> None:
    payoffs = scale * (np.random.default_rng(seed).normal(size=(2, strategies, strategies)) + shift)
    table = two_clients(*payoffs)
    result = games.mixed_equilibria(table)
    assert (result.degenerate, result.odd) == (False, True)
    for mixture in result.mixtures:
        np.testing.assert_allclose(games.mixed_regret(table, mixture) / scale, 0, atol=1e-9)
    pure = {tuple(mixture.argmax(axis=1).tolist()) for mixture in result.mixtures if (mixture.max(axis=1) == 1).all()}
    assert pure == set(sets_of(table, games.pure_equilibria(table, half_width=0).certain))


def test_a_diverged_run_counts_as_the_worst_utility() -> None:
    """Without the run of (1, 1), a client that would go there gets the smallest payoff, 0."""
    payoffs = DILEMMA.payoffs.copy()
    payoffs[0, 3] = np.nan
    table = DILEMMA._replace(payoffs=payoffs)
    assert sets_of(table, games.pure_equilibria(table, half_width=0).certain) == [(0, 1), (1, 0), (1, 1)]
