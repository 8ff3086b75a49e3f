"""Coalitions that are retrained: which ones, how many, and the table that they make."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, games
from fljax.contributions.solutions import members_of
from fljax.engine import Plan
from fljax.games.comparing import chosen_members, planned
from fljax.games.values import estimate, in_words
from fljax.protocol import Federation
from fljax.training import Local
from tests.refusals import refuses
from tests.toys.federation import TRAIN, tiny_federation
from tests.toys.task import logistic_regression

LOCAL = Local(0.3, 4, steps=3)
ROUNDS = 2


def plan(local: Local = LOCAL, clients_per_round: int | None = None) -> Plan:
    arguments = {"task": logistic_regression(), "local": local, "clients_per_round": clients_per_round}
    return Plan(algorithms.fedavg, arguments)


def few(clients: int) -> Federation:
    """The first clients of the tiny federation; the others are unseen no more than before."""
    whole = tiny_federation()
    order = np.argsort(np.asarray(whole.clients.id))[:clients]
    return whole._replace(clients=fljax.trees.take(whole.clients, order), unseen=None)


def test_all_coalitions_and_those_of_leave_one_out() -> None:
    np.testing.assert_array_equal(chosen_members(None, 3), members_of(3))
    rows = chosen_members("leave_one_out", 20)
    assert sorted(rows.sum(axis=1)) == [0, *[19] * 20, 20]
    assert chosen_members("leave_one_out", 1).tolist() == [[False], [True]]


def test_chosen_coalitions() -> None:
    expected = [[True, False, True], [False, False, False]]
    assert chosen_members([{0, 2}, ()], 3).tolist() == expected
    assert chosen_members(np.array(expected), 3).tolist() == expected


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("among", "words"),
    [
        (None, 'expected among= for more than 16 clients, got 17 clients, which have 131,072 coalitions; among="leave'),
        ("all", "'leave_one_out', coalitions or None, got 'all'"),
        ([], "at least one coalition, got none"),
        ([{0}, {0}], r"each coalition of among once, got \{0\} twice"),
        ([{17}], "coalitions of the clients 0 to 16, got 17"),
        ([{-1}], "got -1"),
        ([{True}], "got True"),
        ([{"a"}], "got 'a'"),
        (np.zeros((2, 3), bool), r"bools \[M, 17\], got bool \[2, 3\]"),
        (np.zeros((2, 17)), r"got float64 \[2, 17\]"),
    ],
)
def test_other_coalitions_are_refused(among: Any, words: str) -> None:
    refuses(lambda: chosen_members(among, 17), words)


def test_many_clients_have_a_number_that_can_be_read() -> None:
    refuses(lambda: chosen_members(None, 100), r"got 100 clients, which have 2\^100 coalitions")


def test_client_steps() -> None:
    federation, members = tiny_federation(), members_of(5)
    sizes = members.sum(axis=1)
    found = estimate(plan(), federation, members, rounds=4, seeds=2)
    assert (found.runs, found.client_steps) == (64, 4 * 2 * 3 * sizes.sum())
    drawn = estimate(plan(clients_per_round=2), federation, members, rounds=4, seeds=2)
    assert drawn.client_steps == pytest.approx(4 * 2 * 3 * np.minimum(sizes, 2).sum())
    epochs = estimate(plan(Local(0.3, 4, epochs=2)), federation, np.eye(5, dtype=bool), rounds=1, seeds=1)
    assert epochs.client_steps == sum(2 * -(-size // 4) for size in TRAIN)
    unknown = estimate(Plan(algorithms.fedavg), federation, members, rounds=4, seeds=2)
    assert np.isnan(unknown.client_steps)
    assert in_words(unknown) == "64 runs, 3,072 bytes"
    assert in_words(found._replace(client_steps=2_048_000.0, seconds=65.0)) == (
        "64 runs, 2.05 million client-steps, 3,072 bytes, 1 min 5 s"
    )


@pytest.mark.in_turn
@pytest.mark.parametrize(("clients", "trainings"), [(10, 5_120), (12, 24_576)])
def test_all_coalitions_train_each_client_half_of_the_times(clients: int, trainings: int) -> None:
    """``N 2^(N - 1)`` trainings of clients a round; with 10 clients and 20 rounds of 20 steps 2.05 million steps."""
    whole = tiny_federation()
    many = fljax.trees.take(whole.clients, np.zeros(clients, int))._replace(id=jnp.arange(clients))
    federation = whole._replace(clients=many)
    one = estimate(plan(Local(0.1, 32, steps=1)), federation, members_of(clients), rounds=1, seeds=1)
    assert (one.runs, one.client_steps) == (2**clients, trainings)
    all_steps = estimate(plan(Local(0.1, 32, steps=20)), federation, members_of(clients), rounds=20, seeds=1)
    assert all_steps.client_steps == 400 * trainings


def test_too_many_runs_are_refused_with_the_numbers() -> None:
    words = r"expected at most 40 runs, got 64 runs, 960 client-steps, 3,072 bytes for 32 coalitions and 2 seeds"
    refuses(lambda: planned(plan(), tiny_federation(), None, rounds=2, seeds=2, max_runs=40), words)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_runs": 3}, "expected at most 3 runs"),
        ({"value": "accuracy"}, "expected one of the values"),
        ({"baseline": "zero"}, '"initial", "chance" or a number, got \'zero\''),
        ({"baseline": np.nan}, "or a number, got nan"),
        ({"value": "average_loss", "baseline": "chance"}, 'an accuracy and a task of classes for baseline="chance"'),
        (
            {"baseline": 0.1, "among": [()]},
            r"members beside baseline=0\.1, got that of nobody",
        ),
        ({"outside": "home"}, '"alone" or "global", got \'home\''),
    ],
)
def test_bad_questions_are_refused_before_anything_runs(changes: dict[str, Any], words: str) -> None:
    refuses(lambda: games.coalitions(plan(), few(2), rounds=ROUNDS, **changes), words)


@pytest.fixture(scope="module")
def table() -> games.CoalitionTable:
    return games.coalitions(plan(), few(2), rounds=ROUNDS, seeds=2)


@pytest.mark.in_turn
def test_all_coalitions_of_two_clients(table: games.CoalitionTable) -> None:
    np.testing.assert_array_equal(table.members, members_of(2))
    assert (table.values.shape, table.payoffs.shape) == ((2, 4), (2, 4, 2))
    assert np.isfinite(table.values).all()
    assert (table.metric, table.payoff, table.seeds, table.names) == (
        "average_accuracy",
        "test_accuracy",
        (0, 1),
        ("0", "1"),
    )
    assert table.cost.seconds > 0
    gain = table.values[:, -1] - table.values[:, 0]
    np.testing.assert_allclose(games.shapley(table).sum(axis=1), gain, atol=1e-15)


@pytest.mark.thorough
def test_nobody_has_the_value_of_the_initial_model(table: games.CoalitionTable) -> None:
    before = fljax.simulate(plan(), few(2), rounds=0, seeds=2).metrics["average_accuracy"]
    np.testing.assert_allclose(table.values[:, 0], before.isel(evaluated_round=0), rtol=1e-6)


def test_payoffs_of_members_make_the_value_of_all(table: games.CoalitionTable) -> None:
    np.testing.assert_allclose(table.payoffs[:, 3].mean(axis=1), table.values[:, 3], rtol=1e-6)


def test_who_is_outside_has_what_it_reaches_alone(table: games.CoalitionTable) -> None:
    for coalition, client in ((0, 0), (0, 1), (1, 1), (2, 0)):
        np.testing.assert_array_equal(table.payoffs[:, coalition, client], table.payoffs[:, 1 << client, client])


@pytest.mark.in_turn
def test_the_baseline_is_a_number(table: games.CoalitionTable) -> None:
    """The same program; v(empty) is not run. Of what others run, the payoff of an outsider is the common model's."""
    among = [{1}, {0, 1}, ()]
    found = games.coalitions(plan(), few(2), rounds=ROUNDS, seeds=2, among=among, baseline="chance", outside="global")
    np.testing.assert_allclose(found.values[:, 2], 1 / 3)
    np.testing.assert_array_equal(found.values[:, :2], table.values[:, [2, 3]])
    assert np.isnan(found.payoffs[:, 2]).all()
    assert np.isfinite(found.payoffs[:, 0]).all()
    assert found.baseline == "chance"


@pytest.mark.thorough
def test_a_coalition_is_a_run_of_its_own() -> None:
    """All clients, and the untrained model, as ``simulate`` has them."""
    federation = few(3)
    found = games.coalitions(plan(), federation, rounds=ROUNDS, seeds=2, value="average_loss")
    alone = fljax.simulate(plan(), federation, rounds=ROUNDS, seeds=2).metrics["average_loss"].values
    np.testing.assert_allclose(found.values[:, -1], -alone[:, -1], rtol=1e-5)
    np.testing.assert_allclose(found.values[:, 0], -alone[:, 0], rtol=1e-5)
