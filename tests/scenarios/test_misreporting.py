"""Clients that misreport are, to the server, clients whose values are those that they report."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import Bidding, Tokens, fedavg, fedem, iafl, ifca, incfl, ipfl, mwfed, scaffold
from fljax.engine import Plan, simulate, sweep
from fljax.engine.programs import program
from fljax.engine.rounds.states import by_id
from fljax.protocol import Poll, Seat
from fljax.protocol.messages import Report
from fljax.scenarios import appeal_based, byzantine, misreporting, opting_out
from tests.scenarios.tools import LOCAL, POPULATION, TASK, run

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
WHO: Any = np.array([0, 1, 0, 0, 1], bool)


def same(one: Any, other: Any) -> None:
    """Two results agree in metrics and records."""
    assert set(one.records) == set(other.records)
    for table in ("metrics", "records"):
        for name, found in getattr(one, table).items():
            if not name.startswith(("seconds_", "execution_", "memory_")):
                np.testing.assert_allclose(found, getattr(other, table)[name], rtol=1e-5, atol=1e-6, err_msg=name)


THRESHOLD: Any = np.array([0.9, 0.7, 1.1, 0.8, 1.0])
CONTRIBUTION: Any = np.array([0.9, 0.4, 1.0, 0.7, 0.2])


@pytest.mark.parametrize("build", [incfl, mwfed])
def test_thresholds(build, federation):
    said = np.where(WHO, 2 * THRESHOLD - 0.5, THRESHOLD)
    lying = misreporting(build(TASK, LOCAL, threshold=THRESHOLD), report="threshold", factor=2, offset=-0.5, who=WHO)
    found = simulate(lying, federation, rounds=3, seeds=(0, 1))
    same(found, simulate(build(TASK, LOCAL, threshold=said), federation, rounds=3, seeds=(0, 1)))
    honest = simulate(build(TASK, LOCAL, threshold=THRESHOLD), federation, rounds=3, seeds=(0, 1))
    assert not np.allclose(found.metrics["average_loss"], honest.metrics["average_loss"])


@pytest.mark.parametrize("table", [False, True], ids=["fixed", "by round"])
def test_contributions(table, federation):
    given: Any = np.stack([CONTRIBUTION, CONTRIBUTION[::-1]]) if table else CONTRIBUTION
    said: Any = np.where(WHO, given + 0.5, given)
    lying = misreporting(iafl(TASK, LOCAL, contribution=given), report="contribution", offset=0.5, who=WHO)
    found, expected = (
        simulate(each, federation, rounds=3, seeds=(0, 1)) for each in (lying, iafl(TASK, LOCAL, contribution=said))
    )
    same(found, expected)
    for round in range(3):
        np.testing.assert_allclose(
            found.records["contribution"].values[0, round], said[min(round, 1)] if table else said, rtol=1e-6
        )
    # They are asked for it before each round, and are sent nothing for that.
    model = 4 * sum(leaf.size for leaf in jax.tree.leaves(TASK.init(jax.random.key(0))))
    assert (found.records["polled"] == POPULATION).all()
    assert (found.records["bytes_up"] == POPULATION * (model + 4)).all()
    assert (found.records["bytes_down"] == POPULATION * model).all()


def test_contributions_that_are_no_numbers(federation):
    """NaN counts as 0, and infinity as the largest: neither is a divergence of the run."""
    said: Any = np.array([0.9, np.nan, np.inf, 0.7, 0.2])
    found = simulate(iafl(TASK, LOCAL, contribution=said), federation, rounds=2)
    assert found.diverged == ()
    np.testing.assert_array_equal(found.records["rate"].values[0, 1], [0, 0, 1, 0, 0])
    assert (found.metrics["test_loss"].values[0, -1, 2] < found.metrics["test_loss"].values[0, 0, 2]).all()
    lying = misreporting(iafl(TASK, LOCAL, contribution=CONTRIBUTION), report="contribution", offset=np.inf, ids=[1])
    assert simulate(lying, federation, rounds=2).diverged == ()


def test_whole_contributions_may_be_misreported_by_halves(federation):
    whole: Any = [3, 1, 2, 1, 1]
    lying = misreporting(iafl(TASK, LOCAL, contribution=whole), report="contribution", factor=0.4, ids=(0, 1))
    found = simulate(lying, federation, rounds=1).records["contribution"]
    np.testing.assert_allclose(found[0, 0], [1.2, 0.4, 2, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("report", ["contribution", "loss"])
def test_what_is_at_least_0(report, federation):
    rewarded, weighed = iafl(TASK, LOCAL, contribution=CONTRIBUTION), incfl(TASK, LOCAL, threshold=1.0)
    inner = rewarded if report == "contribution" else weighed
    record = run(misreporting(inner, report=report, offset=-50.0, ids=range(POPULATION)), federation, 1)[1][0]
    assert ((record[report] == 0) if report == "contribution" else (record[report] < 0)).all()


def test_a_factor_of_0_is_a_fixed_answer(federation):
    """Also where the truth is infinite."""
    infinite: Any = np.array([np.inf, 0.7, 1.1, 0.8, 1.0])
    build = lambda value: incfl(TASK, LOCAL, threshold=value)  # noqa: E731
    lying = misreporting(build(infinite), report="threshold", factor=0.0, offset=0.9, ids=[0])
    found = simulate(lying, federation, rounds=2)
    assert found.diverged == ()
    same(found, simulate(build(np.where(np.isinf(infinite), 0.9, infinite)), federation, rounds=2))


def test_around_a_scenario_that_asks_and_inside_of_it(federation):
    """Outside, it is the scenario that is told something else; inside, the algorithm alone is."""
    inner = ipfl(TASK, LOCAL, clients_per_cluster=3, tokens=Tokens(initial=40.0))
    nothing = {"report": "accuracy", "factor": 0.0, "fraction": 1.0}
    outside = misreporting(opting_out(inner, baseline=0.05, every=1), **nothing)
    assert run(outside, federation, 2)[1][1]["opted_out"].all()
    inside = run(opting_out(misreporting(inner, **nothing), baseline=0.05, every=1), federation, 2)
    plain = run(opting_out(inner, baseline=0.05, every=1), federation, 2)
    np.testing.assert_array_equal(inside[1][1]["opted_out"], plain[1][1]["opted_out"])
    assert not inside[1][1]["opted_out"].all()
    for (states, _), said in ((inside, 0.0), (plain, None)):
        told = np.asarray(states[1].ballots.inner.accuracy)
        assert (told == said).all() if said is not None else told.any()


def test_a_run_that_goes_on_has_contributions_of_its_own(federation):
    first = simulate(iafl(TASK, LOCAL, contribution=CONTRIBUTION), federation, rounds=1)
    again = simulate(iafl(TASK, LOCAL, contribution=1 - CONTRIBUTION), federation, rounds=1, initial=first.state)
    np.testing.assert_allclose(again.records["contribution"][0, 0], 1 - CONTRIBUTION, rtol=1e-6)


def test_contributions_inside_scenarios_that_ask_every_round(federation):
    inner = iafl(TASK, LOCAL, contribution=CONTRIBUTION)
    plain = simulate(inner, federation, rounds=3)
    for wrapped in (
        appeal_based(inner, threshold=1e9),
        opting_out(inner, baseline=-1.0, every=2),
        byzantine(inner, fraction=0.4, noise=0.0, loss_increase=0.0, count_all=True),
    ):
        found = simulate(wrapped, federation, rounds=3)
        np.testing.assert_allclose(found.records["contribution"], plain.records["contribution"])
        np.testing.assert_allclose(found.metrics["test_loss"], plain.metrics["test_loss"], rtol=1e-5)
    # Who would leave is judged only in rounds that decide.
    found = simulate(opting_out(inner, baseline=0.1, every=2), federation, rounds=4).records["gain"].values[0]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    assert (found[0] != found[2]).any()


@pytest.mark.parametrize("build", [fedavg, ifca, fedem])
def test_sizes(build, federation):
    options = {} if build is fedem else {"weights": "size"}
    algorithm = build(TASK, LOCAL, clients_per_round=None, **options)
    lying = misreporting(algorithm, report="size", factor=3.2, ids=[4])
    record = run(lying, federation, 1)[1][0]
    honest = run(algorithm, federation, 1)[1][0]
    order = np.argsort(record["cohort_id"])
    size = np.asarray(by_id(federation).clients.train.size, float)
    said = np.where(np.arange(POPULATION) == 4, np.round(3.2 * size), size)
    if build is ifca:
        cluster = record["chosen_cluster"][order]
        np.testing.assert_array_equal(cluster, honest["chosen_cluster"][order])
        total = np.bincount(cluster, said, 2)[cluster]
    else:
        total = said.sum()
    np.testing.assert_allclose(record["weight"][order], said / total, rtol=1e-6)


def test_a_size_stays_a_whole_number_from_0(federation):
    algorithm = fedavg(TASK, LOCAL, clients_per_round=None)
    for offset, weight in ((-1e9, 0.0), (1e12, 1.0)):
        record = run(misreporting(algorithm, report="size", offset=offset, ids=[2]), federation, 1)[1][0]
        np.testing.assert_allclose(record["weight"][record["cohort_id"] == 2], weight, atol=1e-6)


def test_losses_are_those_of_byzantine_clients_without_noise(federation):
    inner = incfl(TASK, LOCAL, threshold=THRESHOLD)
    found = simulate(misreporting(inner, report="loss", offset=1.5, who=WHO), federation, rounds=3)
    honest = simulate(inner, federation, rounds=3).records["loss"]
    ids = found.records["cohort_id"].values
    np.testing.assert_allclose(found.records["loss"][:, 0], (honest + np.where(WHO[ids], 1.5, 0))[:, 0], rtol=1e-5)
    same(found, simulate(byzantine(inner, loss_increase=1.5, noise=0.0, who=WHO, count_all=True), federation, rounds=3))


def test_bids(federation):
    """Who says that the worse model is worth more to it bids for that one; accuracies are settled as they are."""
    bidding = Bidding("argmax", fill_empty=0)
    inner = ipfl(
        TASK, LOCAL, clients_per_cluster=3, tokens=Tokens(initial=40.0), bidding=bidding, importance="accuracy"
    )
    states, found = run(misreporting(inner, report="bid", factor=-1.0, offset=1.0, fraction=1.0), federation, 2)
    _, honest = run(inner, federation, 2)
    told = states[2].ballots  # of round 1: in round 0 nobody bids, so that both runs have the same models
    accuracy = np.asarray(told.accuracy)
    np.testing.assert_allclose(told.bid, 1 - accuracy, rtol=1e-6)
    clear = np.abs(accuracy[:, 0] - accuracy[:, 1]) > 1e-3
    assert clear.any()
    for record in (found[1], honest[1]):
        assert (record["bid"][clear].sum(axis=1) == 1).all()
    np.testing.assert_array_equal(found[1]["bid"].argmax(axis=1)[clear], accuracy.argmin(axis=1)[clear])
    np.testing.assert_array_equal(honest[1]["bid"].argmax(axis=1)[clear], accuracy.argmax(axis=1)[clear])
    for name in ("tokens", "paid", "reimbursed", "utility"):
        np.testing.assert_array_equal(found[1][name], honest[1][name])


def test_profiles_are_runs_of_one_program(federation):
    inner = incfl(TASK, LOCAL, threshold=THRESHOLD)
    build = lambda who, offset: misreporting(inner, report="threshold", who=who, offset=offset)  # noqa: E731
    cells = [(np.eye(POPULATION)[k], 0.1 * k + 0.2) for k in range(POPULATION)]
    plans = [Plan(build, {"who": jnp.asarray(who), "offset": offset}) for who, offset in cells]
    assert len({program.partition_plan(plan, by_id(federation))[0] for plan in plans}) == 1
    results = sweep(plans, federation, rounds=2)
    assert len({float(each.metrics["average_loss"][0, -1]) for each in results}) == POPULATION
    for (who, offset), result in zip(cells, results, strict=True):
        same(result, simulate(build(who, offset), federation, rounds=2))


def test_what_an_algorithm_does_not_ask_for(federation):
    inner = scaffold(TASK, LOCAL)
    same(
        simulate(misreporting(inner, report="loss", offset=9.0, fraction=1.0), federation, rounds=2),
        simulate(inner, federation, rounds=2),
    )


def test_rounds(federation):
    """A table: only in its round does the client lie, and metrics may leave it out."""
    table: Any = np.zeros((2, POPULATION), bool)
    table[1, 3] = True
    inner = incfl(TASK, LOCAL, threshold=THRESHOLD, clients_per_round=None)
    found = simulate(misreporting(inner, report="loss", offset=50.0, who=table, count_all=False), federation, rounds=2)
    honest = simulate(inner, federation, rounds=1)
    np.testing.assert_allclose(found.records["weight"][:, 0], honest.records["weight"][:, 0])
    row = found.records["cohort_id"].values[0, 1] == 3
    assert found.records["weight"].values[0, 1][row] < 1e-12
    assert np.isnan(found.metrics["test_loss"].values[..., 3]).all()


@pytest.mark.unchecked
def test_they_tell_the_truth_before_and_after_some_rounds() -> None:
    """A client of IP-FL that bids ``1 - importance`` bids for the cluster that suits it least."""
    bid = jnp.asarray([0.9, 0.2])
    inner = fedavg(TASK, LOCAL)._replace(poll=Poll(lambda key, seat, down, client, data: Report(bid=bid)))
    lying: Any = misreporting(inner, report="bid", factor=-1, offset=1, ids=[1], rounds=[2, 4])
    for round in range(6):
        for id in (0, 1):
            seat = Seat(jnp.int32(round), jnp.int32(id), jnp.int32(0))
            found = lying.poll.ask(jax.random.key(0), seat, (), (), ())  # pyright: ignore[reportArgumentType]
            np.testing.assert_allclose(found.bid, 1 - bid if id == 1 and round in (2, 3) else bid, rtol=1e-6)
