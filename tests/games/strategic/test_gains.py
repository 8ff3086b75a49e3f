"""Gains of unilateral deviations and the certificate, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import games
from fljax.games import PayoffTable
from fljax.games.strategic.gains import confirm, name_of_cell
from tests.games.played import GAINS, full, mean_estimation, unilateral
from tests.refusals import refuses


def test_gains_losses_and_welfare_are_paired_by_seed() -> None:
    gains = games.unilateral_gains(unilateral(GAINS))
    np.testing.assert_allclose(gains.gains, GAINS, atol=1e-15)
    np.testing.assert_allclose(gains.losses, 0.1 * GAINS, atol=1e-15)
    np.testing.assert_allclose(gains.welfare, 0.8 * GAINS, atol=1e-15)
    assert gains.clients.tolist() == [0, 1, 2]
    assert [name_of_cell(gains, cell) for cell in range(3)] == [f"client {i}: lie" for i in range(3)]


def test_gains_from_scaling_updates_in_mean_estimation() -> None:
    """Client 2 moves the mean from 2 to 2.75 by s = 2, to 3.5 by s = 4 and to 0.5 by s = 0."""
    table = full(mean_estimation, (1, 2, 4, 0), 3)
    gains = games.unilateral_gains(table)
    np.testing.assert_allclose(gains.honest, [[-2, -0.5, -4.5]])
    of_last = gains.clients == 2
    np.testing.assert_allclose(gains.gains[0, of_last], [1.96875, 3.375, -5.625])
    assert np.array(gains.deviations)[of_last].tolist() == ["2", "4", "0"]
    np.testing.assert_allclose(gains.changes[0, of_last][1, :2], [-4.125, -2.625])
    assert len(gains.clients) == 9


def test_the_share_of_clients_that_gain_from_joining() -> None:
    """Honest payoffs are .50, .51 and .52 with the first seed, and .505 is the outside option."""
    gains = games.unilateral_gains(unilateral(GAINS, outside=0.505))
    assert gains.participation is not None
    np.testing.assert_allclose(gains.participation[0], [1 / 3, -1 / 3, 0])
    assert games.unilateral_gains(unilateral(GAINS, outside=None)).participation is None


def test_the_certificate_of_three_cells() -> None:
    result = games.certificate(unilateral(GAINS), tolerance=0.05)
    np.testing.assert_allclose(result.bounds.mean, [0.015, -0.02, 0.001], atol=1e-15)
    np.testing.assert_allclose(result.bounds.error, [0.005, 0.003162, 0.001140], atol=5e-7)
    assert result.bounds.critical == pytest.approx(3.186316, abs=5e-7)
    np.testing.assert_allclose(result.bounds.low, [-0.000932, -0.030076, -0.002633], atol=5e-7)
    np.testing.assert_allclose(result.bounds.high, [0.030932, -0.009924, 0.004633], atol=5e-7)
    assert (result.verdict, result.seeds_needed) == ("CERTIFIED", None)
    assert result.epsilon_high == pytest.approx(0.030932, abs=5e-7)
    assert (result.epsilon_low, result.worst) == (pytest.approx(-0.000932, abs=5e-7), 0)
    assert "CERTIFIED at 0.05, largest gain in [-0.0009" in repr(result)
    assert "worst client 0: lie, 3 cells, 5 seeds" in repr(result)


def test_accuracies_in_single_precision_that_differ_by_the_tolerance() -> None:
    """Of 40 test rows a client gains two with each seed, 0.05; in single precision that is a little more or less."""
    honest = np.arange(20, 30)
    payoffs = np.stack([honest, honest + 2], axis=1)[..., None].astype(np.float32) / np.float32(40)
    table = PayoffTable(payoffs.astype(float), np.array([[0], [1]]), ("honest", "lie"), tuple(range(10)))
    result = games.certificate(table, tolerance=0.05)
    assert 0 < np.abs(result.gains.gains - 0.05).max() < 1e-7
    assert result.verdict == "NO EFFECT SEEN"
    single = games.ex_post(result)
    assert (single.violated, single.above.tolist()) == (0, [0])
    assert games.certificate(table, tolerance=0.049).verdict == "VIOLATED"


def test_a_gain_that_is_the_tolerance_up_to_rounding_asks_for_no_seeds() -> None:
    """Client 0 gains 0.3 - 0.2, a bit more than 0.1 in floats and the same with all seeds; client 1 is undecided."""
    payoffs = np.full((20, 3, 2), 0.2)
    payoffs[:, 1, 0] = 0.1 + 0.2
    payoffs[:, 2, 1] += np.where(np.arange(20) % 2, 0.3, -0.14)
    table = PayoffTable(payoffs, np.array([[0, 0], [1, 0], [0, 1]]), ("honest", "lie"), tuple(range(20)))
    result = games.certificate(table, tolerance=0.1)
    assert (result.verdict, result.verdicts) == ("INCONCLUSIVE", ("NO EFFECT SEEN", "INCONCLUSIVE"))
    assert result.seeds_needed is None  # no number bounds the gain of client 0


def test_the_number_of_seeds_that_would_decide() -> None:
    """``(c sd / (tolerance - mean))^2`` with sd = .01118 of cell 0, whose mean .015 is on either side."""
    result = games.certificate(unilateral(GAINS), tolerance=0.01)
    assert (result.verdict, result.verdicts) == ("INCONCLUSIVE", ("INCONCLUSIVE", "CERTIFIED", "CERTIFIED"))
    assert result.seeds_needed == int(np.ceil((3.186316 * 0.005 * np.sqrt(5) / 0.005) ** 2)) == 51
    below = games.certificate(unilateral(GAINS), tolerance=0.02)
    assert (below.verdict, below.seeds_needed) == ("INCONCLUSIVE", 51)
    at_zero = games.certificate(unilateral(GAINS + np.array([0.005, 0, 0])), tolerance=0.0)
    assert at_zero.verdict == "VIOLATED"
    assert at_zero.seeds_needed is None
    mean = float(below.bounds.mean[0])
    never = games.certificate(unilateral(GAINS), tolerance=mean)
    assert (never.verdict, never.seeds_needed) == ("INCONCLUSIVE", None)


def test_the_worst_cell_is_chosen_with_other_seeds() -> None:
    """Cell 1 is the largest of the first two seeds by luck; the others say what it gains."""
    gains = np.array([[0.0, 0.9], [0.0, 0.7], [0.3, 0.1], [0.3, -0.1], [0.3, 0.3]])
    result = confirm(gains)
    assert (result.cell, result.mean) == (1, pytest.approx(0.1))
    half = 4.302653 * 0.2 / np.sqrt(3)  # t with 2 degrees of freedom
    assert (result.low, result.high) == (pytest.approx(0.1 - half, abs=1e-6), pytest.approx(0.1 + half, abs=1e-6))
    table = unilateral(gains)
    assert games.certificate(table, tolerance=1.0).worst == 1
    assert games.certificate(table, tolerance=1.0).confirmed == pytest.approx(result)
    refuses(lambda: confirm(gains[:1]), "expected at least 2 seeds, some to choose")


def test_a_gain_that_is_equal_in_all_seeds_is_its_own_bound() -> None:
    result = games.certificate(unilateral(np.full((6, 2), [0.03, 0.0])), tolerance=0.0)
    np.testing.assert_allclose([result.bounds.low, result.bounds.high], [[0.03, 0], [0.03, 0]], atol=1e-15)
    assert result.bounds.error.tolist() == [0, 0]
    assert result.verdicts[0] == result.verdict == "VIOLATED"
    steady = np.random.default_rng(0).normal(0.3, 0.2, size=(6, 1))
    mixed = games.certificate(unilateral(np.hstack([steady, np.zeros((6, 1))])), tolerance=10.0, method="max_t")
    assert (mixed.verdict, mixed.verdicts) == ("INCONCLUSIVE", ("CERTIFIED", "NO EFFECT SEEN"))
    assert mixed.bounds.error[1] == 0 < mixed.bounds.error[0]


def test_individual_rationality() -> None:
    """Honest payoffs are .50, .51 and .52 with the first seed, and .03 more with each seed after it."""
    table = unilateral(GAINS, outside=0.545)
    result = games.individual_rationality(table)
    assert result.share == pytest.approx((3 + 2 + 0 + 0 + 0) / 3 / 5)
    shares = np.array([1, 2 / 3, 0, 0, 0])
    half = 2.776445 * shares.std(ddof=1) / np.sqrt(5)
    assert (result.low, result.high) == (0, pytest.approx(min(1, shares.mean() + half), abs=1e-6))
    np.testing.assert_allclose(result.surplus.mean, [0.015, 0.025, 0.035])
    same = games.certificate(table, tolerance=0.1).rationality
    assert same is not None
    assert same[:3] == result[:3]
    alone = unilateral(GAINS, outside=None)
    assert games.certificate(alone, tolerance=0.1).rationality is None
    refuses(lambda: games.individual_rationality(alone), "expected a table with outside options")


def test_a_diverged_run_counts_as_the_worst_utility_and_is_listed() -> None:
    table = unilateral(GAINS, outside=0.4)
    payoffs = table.payoffs.copy()
    payoffs[1, 2], payoffs[3, 0] = np.nan, np.nan
    gains = games.unilateral_gains(table._replace(payoffs=payoffs))
    assert gains.gains[1, 1] == pytest.approx(0.4 - table.payoffs[1, 0, 1])  # the outside option is the smallest payoff
    assert gains.gains[3, 0] == pytest.approx(table.payoffs[3, 1, 0] - 0.4)
    assert games.diverged_cells(gains) == (
        "2 runs diverged and count as the worst utility: honest with seed 3, client 1: lie with seed 1"
    )
    assert games.diverged_cells(games.unilateral_gains(table)) is None
    lower = games.unilateral_gains(table._replace(payoffs=payoffs), worst=-1.0)
    assert lower.gains[1, 1] == pytest.approx(-1.0 - table.payoffs[1, 0, 1])


def test_a_gain_that_is_the_tolerance_is_within_it() -> None:
    """0.4 - 0.3 is above 0.1 in double precision."""
    payoffs = np.repeat([[[0.3], [0.4]]], 5, axis=0)
    table = PayoffTable(payoffs, np.array([[0], [1]]), ("honest", "lie"), tuple(range(5)))
    assert games.certificate(table, tolerance=0.1).verdict == "NO EFFECT SEEN"
    assert games.certificate(table, tolerance=0.0999).verdict == "VIOLATED"
