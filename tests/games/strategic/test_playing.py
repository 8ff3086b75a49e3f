"""Profiles that are played: which ones, in one program, and the payoffs of mean estimation, which are known."""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, games
from fljax.engine import Over, Plan
from fljax.games.strategic.playing import JOINING, profiles, with_losses_lost
from fljax.scenarios import ByReport, Strategy
from fljax.training import Local
from tests.compiled import compilations
from tests.games.mean_estimation import PLAN, TARGETS, TASK, estimation, fixed_point, utilities
from tests.games.test_retraining import few, plan

LIES = {"double": Strategy(own=2.0), "four times": Strategy(own=4.0), "zero rider": Strategy(own=0.0)}
SCALES = np.array([1.0, 2.0, 4.0, 0.0])  # by strategy
ROUNDS = 300
CLIENTS = len(TARGETS)
RATES: Any = np.array([2.0, 1.0, 0.5])


@pytest.mark.parametrize("shape", ["unilateral", "pairs", "join", "symmetric", "full"])
def test_profiles(shape: Any) -> None:
    """Their number, each once, and everybody honest in the first."""
    found = profiles(shape, 4, 2 if shape == "join" else 3)
    count = {"unilateral": 9, "pairs": 13, "join": 16, "symmetric": math.comb(6, 2), "full": 81}[shape]
    assert found.shape == (count, 4)
    assert len(np.unique(found, axis=0)) == count
    assert not found[0].any()


def test_two_clients_play_the_same_strategy() -> None:
    rows = [[0, 0, 0], [1, 1, 0], [2, 2, 0], [1, 0, 1], [2, 0, 2], [0, 1, 1], [0, 2, 2]]
    assert profiles("pairs", 3, 3).tolist() == rows


def test_deviators_are_some_clients() -> None:
    assert profiles("unilateral", 3, 3, (2,)).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]


@pytest.fixture(scope="module")
def table() -> games.PayoffTable:
    return games.payoffs(PLAN, estimation(), rounds=ROUNDS, deviations=LIES, shape="full", seeds=[3])


def test_profiles_of_ones_own_are_rows_of_the_full_table(table: games.PayoffTable) -> None:
    rows = np.array([17, 0, 42])
    found = games.payoffs(
        PLAN, estimation(), rounds=ROUNDS, deviations=LIES, shape=table.choices[rows], seeds=[3], outside=None
    )
    assert found.honest == 1
    assert np.array_equal(found.payoffs, table.payoffs[:, rows])


def test_payoffs_are_those_of_the_fixed_point(table: games.PayoffTable) -> None:
    """Of every profile in which somebody sends an update; else the model stays the initial one, 0."""
    assert table.strategies == ("honest", *LIES)
    assert (table.seeds, table.honest, table.payoffs.shape) == ((3,), 0, (1, 64, 3))
    scale = SCALES[table.choices]
    some = scale.any(axis=1)
    np.testing.assert_allclose(table.payoffs[0, some], utilities(scale[some]), atol=2e-4)
    np.testing.assert_allclose(table.payoffs[0, ~some], -np.square([TARGETS]) / 2)


def test_gains_of_the_far_client(table: games.PayoffTable) -> None:
    """Oracle M: honest w = 2 and u = (-2, -1/2, -9/2); the gains of client 2, and what the others lose by the third."""
    honest = table.payoffs[0, table.honest]
    np.testing.assert_allclose(honest, (-2.0, -0.5, -4.5), atol=1e-4)
    places = [np.flatnonzero((table.choices == (0, 0, k)).all(axis=1))[0] for k in (1, 2, 3)]
    gains = table.payoffs[0, places, 2] - honest[2]
    np.testing.assert_allclose(gains, (1.96875, 3.375, -5.625), atol=2e-4)
    np.testing.assert_allclose(table.payoffs[0, places[1], :2] - honest[:2], (-4.125, -2.625), atol=2e-4)


def test_the_arms_race_cancels(table: games.PayoffTable) -> None:
    """The only pure equilibrium of {1, 2, 4}^3 is (4, 4, 4), with the payoffs of honest clients."""
    payoff = {tuple(row): table.payoffs[0, place] for place, row in enumerate(table.choices.tolist())}

    def is_equilibrium(profile: tuple[int, ...]) -> bool:
        others = ((*profile[:i], k, *profile[i + 1 :]) for i in range(CLIENTS) for k in range(3))
        return all(payoff[other][i] <= payoff[profile][i] + 1e-3 for other in others for i in _changed(profile, other))

    found = [profile for profile in itertools.product(range(3), repeat=CLIENTS) if is_equilibrium(profile)]
    assert found == [(2, 2, 2)]
    np.testing.assert_allclose(payoff[2, 2, 2], payoff[0, 0, 0], atol=2e-4)
    assert fixed_point([4, 4, 4]) == fixed_point([1, 1, 1]) == 2


def _changed(one: tuple[int, ...], other: tuple[int, ...]) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]


def test_outside_everybody_has_its_own_mean(table: games.PayoffTable) -> None:
    assert table.outside is not None
    np.testing.assert_allclose(table.outside, np.zeros((1, CLIENTS)), atol=1e-4)


@pytest.mark.thorough
def test_other_shapes_have_the_same_payoffs(table: games.PayoffTable) -> None:
    known = {tuple(row): table.payoffs[0, place] for place, row in enumerate(table.choices.tolist())}
    for shape in ("unilateral", "symmetric"):
        found = games.payoffs(PLAN, estimation(), rounds=ROUNDS, deviations=LIES, shape=shape, outside=False, seeds=[3])
        assert found.outside is None
        for place, row in enumerate(found.choices.tolist()):
            np.testing.assert_allclose(found.payoffs[0, place], known[tuple(row)], atol=1e-6)


@pytest.mark.thorough
def test_who_joins() -> None:
    """The mean of those that join; who stays away has its own. All train, and pay for it."""
    utility = games.Utility(cost=[0.0, 0.25, 0.5])
    table = games.payoffs(PLAN, estimation(), rounds=ROUNDS, shape="join", utility=utility)
    assert table.strategies == JOINING
    assert table.outside is not None
    cost = np.array([0.0, 0.25, 0.5])
    np.testing.assert_allclose(table.outside, [-cost], atol=1e-4)
    for place, row in enumerate(table.choices):
        joins = row == 0
        mean = np.mean(np.array(TARGETS)[joins]) if joins.any() else 0
        expected = np.where(joins, -((mean - np.array(TARGETS)) ** 2) / 2, 0) - cost
        np.testing.assert_allclose(table.payoffs[0, place], expected, atol=1e-4)


@pytest.mark.in_turn
@pytest.mark.parametrize("shape", ["unilateral", "join"])
def test_each_mechanism_has_the_payoffs_that_it_has_alone(shape: Any) -> None:
    """To the bit on a CPU; all are runs of one program, whatever their number. One that diverges costs no other."""
    settings: dict[str, Any] = {"rounds": 3, "seeds": 2, "shape": shape, "utility": games.Utility(cost=0.25)}
    settings |= {"block": 16, "deviations": None if shape == "join" else LIES}

    def play(rates: np.ndarray) -> tuple[games.PayoffTable, ...]:
        return games.payoffs(PLAN, estimation(), over=Over({"server_lr": rates}), **settings)

    tables = play(RATES)
    with compilations() as seen:
        again = play(np.append(RATES, [1.5, 1e30]))
    assert seen == []
    assert np.isnan(again[4].payoffs[:, 0]).all()
    for rate, table, other in zip(RATES, tables, again[:3], strict=True):
        plan = PLAN._replace(arguments={**PLAN.arguments, "server_lr": float(rate)})
        for field, value in games.payoffs(plan, estimation(), **settings)._asdict().items():
            np.testing.assert_array_equal(getattr(table, field), value)
            np.testing.assert_array_equal(getattr(other, field), value)


@pytest.mark.thorough
def test_all_default_deviations_are_runs_of_one_program(tmp_path: pathlib.Path) -> None:
    """With INCFL: reports, riders and efforts; a second call goes on with nothing left, to the same bits."""
    arguments = {**plan().arguments, "threshold": 0.9}
    incfl, federation = Plan(algorithms.incfl, arguments), few(3)
    play = functools.partial(games.payoffs, incfl, federation, rounds=2, seeds=2, checkpoint=tmp_path)
    games.payoffs(incfl, federation, rounds=1, deviations={"rider": Strategy(own=0.0)})  # it compiles small programs
    with compilations() as programs:
        table = play()
    before = len(programs)
    deviations = games.usual_deviations(games.messages_of(incfl, federation))
    assert table.strategies == ("honest", *deviations)
    assert len(table.choices) == 1 + 3 * len(deviations)
    alone = fljax.simulate(incfl, federation, rounds=2, seeds=2).metrics["test_accuracy"].values[:, -1]
    np.testing.assert_allclose(table.payoffs[:, 0], alone, atol=1e-6)
    again = play()
    np.testing.assert_array_equal(again.payoffs, table.payoffs)
    # The runs, and small programs that make their inputs, of which other tests may have compiled some.
    assert before < len(deviations), programs


@pytest.mark.in_turn
@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deviations": {}}, "expected at least one deviation, got none"),
        ({"deviations": {"honest": Strategy(own=2.0)}}, "by names other than 'honest'"),
        ({"deviations": {"a": 2.0}}, "got 'a' of type float"),
        ({"deviations": {"a": Strategy()}}, "got 'a', which is honest"),
        ({"deviations": {"a": Strategy(own=1.0, noise_decay=1.0)}}, "got 'a', which is honest"),
        ({"deviations": {"a": Strategy(own=[1.0, 2.0])}}, "expected one number for own of the deviation 'a'"),
        ({"deviations": {"a": Strategy(effort=2.0)}}, r"strategy\.effort"),
        (
            {"deviations": {"a": Strategy(factor=ByReport(size=2.0))}},
            r"in what the algorithm reads, got 'a' of one which never reads size \(it asks for no report\)",
        ),
        ({"deviations": {"a": Strategy(flip=0.5)}}, "got 'a' of one which never reads labels of classes"),
        ({"shape": "triples"}, "expected shape to be unilateral, pairs, join, symmetric or full, got 'triples'"),
        ({"shape": "join"}, 'expected no deviations for the shape "join"'),
        ({"shape": "full", "deviators": [0]}, 'deviators for the shape "unilateral" alone'),
        ({"deviators": [0, 0]}, "different ids of clients for deviators"),
        ({"deviators": [3]}, "ids of the clients 0 to 2, got 3"),
        (
            {"max_runs": 10, "seeds": 2},
            "expected at most 10 runs, got 22 for 10 profiles and 1 of clients alone with 2 seeds; max_runs allows",
        ),
        ({"utility": games.Utility(price=1.0)}, "whose server keeps tokens for a price of tokens"),
        (
            {"shape": np.array([[1, 0, 0]])},
            r"profiles \[P, 3\] of places of strategies from 0 to 3, of which one is all",
        ),
        ({"shape": np.array([[0, 0, 0], [4, 0, 0]])}, "of places of strategies from 0 to 3"),
        ({"shape": np.zeros((1, 2), int)}, r"expected profiles \[P, 3\] of places"),
        ({"shape": np.zeros((1, 3), int), "deviators": [0]}, 'expected deviators for the shape "unilateral" alone'),
        ({"over": Over()}, r"fljax\.Over of arguments alone, a row for each mechanism, got Over\(\)"),
        ({"over": Over({"server_lr": RATES}, np.ones((3, 3), bool))}, "fljax.Over of arguments alone"),
        ({"over": Over({"server_lr": -RATES})}, r"expected server_lr to be one finite number of at least 0, got -2\.0"),
        ({"over": Over({"rate": RATES})}, "expected one of the arguments task, .*, got 'rate'"),
        ({"over": Over({"server_lr": RATES}), "outside": "mechanism"}, "that all mechanisms share, got 'mechanism'"),
        ({"over": Over({"local": Local(0.25, 1, steps=1)._replace(learning_rate=RATES)})}, "differ in local, got None"),
        ({"over": Over({"server_lr": RATES}), "max_runs": 30}, "got 31 for 10 profiles of 3 mechanisms and 1 of"),
    ],
)
def test_bad_questions_are_refused_before_anything_runs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        games.payoffs(PLAN, estimation(), **{"rounds": 1, "deviations": LIES} | changes)


def test_a_game_of_many_clients_has_a_number_that_can_be_read() -> None:
    federation = estimation(tuple(range(60)))
    with pytest.raises(ValueError, match=r"got more than 10\^15 for so many profiles"):
        games.payoffs(PLAN, federation, rounds=1, deviations=LIES, shape="full")


def test_utilities_of_honest_clients_are_finite(table: games.PayoffTable) -> None:
    """A diverged run has none, and its payoffs stay NaN; but not all of them."""
    seeds = table._replace(payoffs=np.repeat(table.payoffs, 2, axis=0), seeds=(3, 4))
    seeds.payoffs[1, 0, 2] = np.nan
    with_losses_lost(seeds, np.array([False, True]))
    with pytest.raises(ValueError, match="finite utilities of honest clients, got nan of client 2 with seed 4"):
        with_losses_lost(seeds, np.array([False, False]))
    with pytest.raises(ValueError, match="expected a run of honest clients that stays finite, got runs that diverge"):
        with_losses_lost(seeds, np.array([True, True]))


def squared(algorithm: Any, state: Any, scores: Any) -> Any:
    """A utility of one's own: minus the squared distance of the model, which is twice the loss."""
    return -2 * scores["test_loss"].values


@pytest.mark.thorough
def test_a_utility_of_ones_own(table: games.PayoffTable) -> None:
    lies = {"double": LIES["double"]}
    found = games.payoffs(PLAN, estimation(), rounds=ROUNDS, deviations=lies, utility=squared, seeds=[3])
    np.testing.assert_allclose(found.payoffs[:, 0], 2 * table.payoffs[:, 0], rtol=1e-5)


@pytest.mark.thorough
def test_a_deviation_with_an_infinite_loss_has_diverged() -> None:
    """The model has not: its square is too large. The certificate lists the run."""
    lies = {"against": Strategy(own=-4.0)}
    found = games.payoffs(PLAN, estimation(), rounds=290, deviations=lies, seeds=5, deviators=[0])
    assert np.isnan(found.payoffs[:, 1]).all()
    assert np.isfinite(found.payoffs[:, 0]).all()
    result = games.certificate(found, tolerance=0.1)
    assert result.gains.diverged.all()
    assert result.verdict == "NO EFFECT SEEN"


@pytest.mark.in_turn
def test_saved_runs_of_another_body_of_the_utility_are_refused(tmp_path):
    """An edited function has the same name, and the runs that are saved have the older utilities."""
    play = functools.partial(games.payoffs, PLAN, estimation(), rounds=1, deviations={"double": LIES["double"]})
    play(utility=squared, checkpoint=tmp_path, outside=False)
    edited = types.FunctionType(
        (lambda algorithm, state, scores: -3 * scores["test_loss"].values).__code__, globals(), "squared"
    )
    edited.__module__, edited.__qualname__ = squared.__module__, squared.__qualname__
    with pytest.raises(ValueError, match=r"expected the run of the checkpoints in .* got another one"):
        play(utility=edited, checkpoint=tmp_path, outside=False)


@pytest.mark.thorough
def test_an_honest_run_that_diverges_has_no_payoffs() -> None:
    """Its steps are far too long."""
    wild = PLAN._replace(arguments={**PLAN.arguments, "local": Local(1e30, 1, steps=1)})
    with pytest.raises(ValueError, match="expected a run of honest clients that stays finite, got runs that diverge"):
        games.payoffs(wild, estimation(), rounds=3, deviations={"rider": Strategy(own=0.0)})


def test_clients_without_test_rows_have_no_utility() -> None:
    federation = estimation()
    clients = federation.clients
    lacking = clients._replace(test=clients.test._replace(size=jnp.array([1, 0, 1], jnp.int32)))
    with pytest.raises(ValueError, match="test rows of every client for its utility, got none of client 1"):
        games.payoffs(PLAN, federation._replace(clients=lacking), rounds=1)
    assert TASK.score is None
