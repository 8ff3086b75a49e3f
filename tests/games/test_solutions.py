"""What a table says, against the known solutions of small games."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import contributions, games
from tests.contributions.games import GLOVE, MAJORITY, THREE, root_of_sizes
from tests.games.known import THREE_SEEDS, among, table_of
from tests.refusals import refuses


def test_semivalues_of_a_game_of_three() -> None:
    table = table_of(THREE)
    expected = {
        games.shapley: [0.286667, 0.376667, 0.136667],
        games.banzhaf: [0.28, 0.37, 0.13],
        games.beta_shapley: [0.349333, 0.445333, 0.169333],
        games.leave_one_out: [0.2, 0.28, 0.1],
    }
    for solution, row in expected.items():
        np.testing.assert_allclose(solution(table), [row], atol=5e-7)
    np.testing.assert_allclose(games.beta_shapley(table, 1, 4), [[0.229333, 0.313333, 0.109333]], atol=5e-7)


def test_shapley_values_add_up_to_the_gain_of_all() -> None:
    table = table_of(THREE_SEEDS)
    np.testing.assert_allclose(games.shapley(table).sum(axis=1), THREE_SEEDS[:, -1] - THREE_SEEDS[:, 0], atol=1e-15)


def test_the_order_of_coalitions_makes_no_difference() -> None:
    table = table_of(THREE_SEEDS)
    mixed = among(table, [3, 1, 7, 0, 5, 2, 6, 4])
    assert games.is_complete(mixed)
    for solution in (games.shapley, games.banzhaf, games.leave_one_out):
        np.testing.assert_array_equal(solution(mixed), solution(table))
    assert games.convexity(mixed).count == games.convexity(table).count


def test_the_least_core_is_that_of_the_mean_table() -> None:
    core = games.least_core(table_of(THREE_SEEDS))
    expected = contributions.least_core(THREE_SEEDS.mean(axis=0))
    np.testing.assert_array_equal(core.payoff, expected.payoff)
    assert games.least_core(table_of(THREE)).excess == pytest.approx(0.11)


def test_a_table_of_some_coalitions_bounds_the_least_core() -> None:
    table = table_of(THREE)
    some = games.least_core(among(table, [0, 1, 2, 4, 3, 7]))
    assert np.isfinite(some.excess)
    assert some.excess <= games.least_core(table).excess
    assert games.least_core(among(table, [0, 1, 2, 3, 7])).excess == -np.inf  # client 2 is in no proper coalition
    refuses(lambda: games.least_core(among(table, [1, 2, 3])), "nobody and with all clients")


def test_violated_laws() -> None:
    table = table_of(THREE)
    assert (games.superadditivity(table).count, games.monotonicity(table).count) == (6, 0)
    assert (games.convexity(table).count, games.superadditivity(table).largest) == (5, pytest.approx(0.22))
    assert [law(table_of(GLOVE)).count for law in (games.superadditivity, games.convexity)] == [0, 1]


def test_leave_one_out_values_of_many_clients_need_few_coalitions() -> None:
    clients = 20
    members = np.concatenate([np.ones((1, clients)), 1 - np.eye(clients)[::-1]]).astype(bool)
    worths = np.linspace(0.1, 0.3, clients)
    values = (members @ worths)[None]
    table = table_of(THREE)._replace(
        values=values,
        members=members,
        payoffs=np.zeros((1, len(members), clients)),
        diverged=np.zeros(values.shape, bool),
        names=tuple(map(str, range(clients))),
    )
    np.testing.assert_allclose(games.leave_one_out(table), worths[None])
    found = games.worth(table)
    assert found["measure"].values.tolist() == ["leave_one_out"]
    assert np.isnan(found["excess"])
    assert "violations" not in found
    refuses(lambda: games.shapley(table), r"all 1,048,576 coalitions of 20 clients for Shapley values, got 21")
    refuses(lambda: games.by_code(table), "at most 16 clients")


def test_what_a_table_lacks_is_refused() -> None:
    some = among(table_of(THREE), [0, 1, 2, 3])
    refuses(lambda: games.superadditivity(some), "all 8 coalitions of 3 clients for superadditivity, got 4")
    refuses(lambda: games.leave_one_out(some), "those of all but one")
    found = games.worth(some)
    assert found.sizes["measure"] == 0
    assert (float(found["nobody"]), np.isnan(found["everybody"])) == (pytest.approx(0.1), True)


def test_the_worth_of_clients_over_seeds() -> None:
    table = table_of(THREE_SEEDS)
    found = games.worth(table, level=0.9)
    bars = contributions.error_bars(contributions.banzhaf(THREE_SEEDS), 0.9)
    row = found.sel(measure="banzhaf")
    for name, values in (("mean", bars.mean), ("low", bars.low), ("high", bars.high)):
        np.testing.assert_allclose(row[name], values)
    np.testing.assert_array_equal(row["worth"], contributions.banzhaf(THREE_SEEDS))
    core = found.sel(measure="least_core")
    np.testing.assert_allclose(core["mean"], games.least_core(table).payoff)
    assert np.isnan(core["low"]).all()
    assert found["name"].values.tolist() == ["a", "b", "c"]
    laws = found["violations"].sel(law=["superadditivity", "monotonicity", "convexity"])
    expected = [law(table, level=0.9).count for law in (games.superadditivity, games.monotonicity, games.convexity)]
    assert laws.values.tolist() == expected
    refuses(lambda: games.worth(table, level=2), "level between 0 and 1")


def test_the_share_of_seeds_with_a_core() -> None:
    """One left and two right gloves have a core, a majority of three has none."""
    found = games.worth(table_of([GLOVE, MAJORITY, GLOVE]))
    assert float(found["stable"]) == pytest.approx(2 / 3)
    assert float(games.worth(table_of(root_of_sizes(1, 2, 4)))["excess"]) == pytest.approx(0.589487, abs=1e-6)


def test_one_client() -> None:
    found = games.worth(table_of([[0.2, 0.7]]))
    np.testing.assert_allclose(found["mean"].values, 0.5)
    assert float(found["excess"]) == -np.inf


def test_a_diverged_coalition_makes_what_uses_it_unknown() -> None:
    values = np.array([THREE, THREE])
    values[1, 3] = np.nan
    table = table_of(values, diverged=np.isnan(values))
    found = games.worth(table)
    assert np.isnan(found["worth"].sel(measure="shapley", seed=1)).all()
    assert np.isfinite(found["worth"].sel(measure="shapley", seed=0)).all()
    assert np.isnan(found["mean"].sel(measure="shapley")).all()
    # Of the coalition of 0 and 1, leave-one-out reads what client 2 adds.
    left_out = found["worth"].sel(measure="leave_one_out", seed=1).values
    assert np.isnan(left_out).tolist() == [False, False, True]
    assert float(found["stable"]) == 0
    assert int(found["unknown"].sel(law="monotonicity")) > 0
