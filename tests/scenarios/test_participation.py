"""Who takes part: appeal-based participation, dropout and availability, recomputed from saved states."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, incfl, scaffold
from fljax.algorithms.registry import REGISTRY
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol import Available, unlabelled
from fljax.scenarios import appeal_based, availability, dropout
from tests.scenarios.tools import LOCAL, POPULATION, TASK, losses, run, taking_part
from tests.toys.federation import client_rows

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]


THRESHOLD = np.array([0.55, 0.35, 0.55, 0.4, 0.5])


@pytest.mark.thorough
@pytest.mark.parametrize("empty_pool", ["skip", "all"])
@pytest.mark.parametrize("inner", ["fedavg", "incfl"])
def test_the_pool_is_what_saved_models_say(inner, empty_pool, federation):
    rho, after = jnp.asarray(THRESHOLD, jnp.float32), 3
    build = {
        "fedavg": fedavg(TASK, LOCAL, clients_per_round=2),
        "incfl": incfl(TASK, LOCAL, threshold=rho, clients_per_round=2),
    }[inner]
    algorithm = appeal_based(build, threshold=rho, after=after, empty_pool=empty_pool)
    states, records = run(algorithm, federation, 15)
    left = came_back = False
    before = np.ones(POPULATION, bool)
    for round, (state, record) in enumerate(zip(states, records, strict=False)):
        loss = losses(state.server.model, federation)
        np.testing.assert_allclose(record["polled_loss"], loss, rtol=1e-4)
        appealed = loss < THRESHOLD
        np.testing.assert_array_equal(record["appealed"], appealed)
        pool = np.ones(POPULATION, bool) if round < after else appealed
        if empty_pool == "all" and not pool.any():
            pool[:] = True
        assert record["pool_size"] == pool.sum()
        assert taking_part(record) <= set(np.flatnonzero(pool))
        assert len(taking_part(record)) == min(len(record["cohort_id"]), pool.sum())
        left |= bool((before & ~pool).any())
        came_back |= bool((~before & pool).any())
        before = pool
    assert left
    assert came_back


@pytest.mark.thorough
def test_an_empty_pool_stays_empty_or_asks_everybody(federation):
    inner = fedavg(TASK, LOCAL, clients_per_round=2)
    nobody = appeal_based(inner, threshold=0.0, after=2)
    states, records = run(nobody, federation, 5)
    assert [int(record["pool_size"]) for record in records] == [5, 5, 0, 0, 0]
    assert [len(taking_part(record)) for record in records] == [2, 2, 0, 0, 0]
    for state in states[3:]:
        np.testing.assert_array_equal(state.server.model.weight, states[2].server.model.weight)
    everybody, records = run(appeal_based(inner, threshold=0.0, after=2, empty_pool="all"), federation, 5)
    plain, _ = run(inner, federation, 5)
    np.testing.assert_array_equal(everybody[-1].server.model.weight, plain[-1].server.model.weight)
    assert all(int(record["pool_size"]) == 5 for record in records)


@pytest.mark.thorough
def test_what_appeals_is_what_would_be_deployed(federation):
    """A personalised method is judged by the personal model."""
    algorithm = REGISTRY["pfedme"].build(TASK, LOCAL, regularisation=1.0, clients_per_round=5)
    states, records = run(appeal_based(algorithm, threshold=1.0, after=9), federation, 3)
    own = [losses(jax.tree.map(lambda leaf, k=k: leaf[k], states[2].clients.personal), federation)[k] for k in range(5)]
    np.testing.assert_allclose(records[2]["polled_loss"], own, rtol=1e-4)
    assert np.abs(records[2]["polled_loss"] - losses(states[2].server.model, federation)).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pfedme", "perfedavg"])
def test_the_global_model_may_be_judged_as_in_the_paper(name, federation):
    """A personalised method is judged by the model that its clients receive."""
    algorithm = REGISTRY[name].build(TASK, LOCAL, clients_per_round=5)
    wrapped = appeal_based(algorithm, threshold=1.0, after=9, judged="global")
    states, records = run(wrapped, federation, 3)
    for state, record in zip(states, records, strict=False):
        np.testing.assert_allclose(record["polled_loss"], losses(state.server.model, federation), rtol=1e-4)
    deployed = run(appeal_based(algorithm, threshold=1.0, after=9), federation, 3)[1]
    assert np.abs(records[2]["polled_loss"] - deployed[2]["polled_loss"]).max() > 1e-3


@pytest.mark.thorough
def test_the_split_that_is_asked(federation):
    algorithm = appeal_based(fedavg(TASK, LOCAL), threshold=1.0, split="test")
    states, records = run(algorithm, federation, 1)
    model = states[0].server.model
    x, y = client_rows(federation, 3, "test")
    expected = TASK.loss(TASK.logits(model, jnp.asarray(x)), jnp.asarray(y)).mean()
    np.testing.assert_allclose(records[0]["polled_loss"][3], expected, rtol=1e-5)


@pytest.mark.thorough
def test_dropout_at_its_extremes(federation):
    inner = scaffold(TASK, LOCAL, clients_per_round=3)
    plain, _ = run(inner, federation, 3)
    never, _ = run(dropout(inner, rate=0.0), federation, 3)
    jax.tree.map(np.testing.assert_array_equal, plain[-1], never[-1])
    always, records = run(dropout(inner, rate=1.0), federation, 3)
    assert not any(taking_part(record) for record in records)
    jax.tree.map(np.testing.assert_array_equal, always[0].server, always[-1].server)
    jax.tree.map(np.testing.assert_array_equal, always[0].clients, always[-1].clients)


@pytest.mark.thorough
def test_dropout_by_client(federation):
    rate = jnp.asarray([0.0, 1.0, 0.5, 0.5, 0.0])
    _, records = run(dropout(fedavg(TASK, LOCAL, clients_per_round=None), rate=rate), federation, 60)
    present = np.array([[id in taking_part(record) for id in range(5)] for record in records])
    assert present[:, [0, 4]].all()
    assert not present[:, 1].any()
    assert 15 < present[:, 2].sum() < 45
    assert (present[:, 2] != present[:, 3]).any()  # each draws its own
    _, listed = run(dropout(fedavg(TASK, LOCAL, clients_per_round=None), rate=rate.tolist()), federation, 3)
    assert [taking_part(record) for record in listed] == [taking_part(record) for record in records[:3]]


TRACE = np.array([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]])


@pytest.mark.parametrize("ending", [".npy", ".csv", "array"])
def test_availability_follows_its_trace_and_repeats_it(ending, federation, tmp_path):
    trace: Any = TRACE
    if ending != "array":
        trace = str(tmp_path / f"trace{ending}")
        if ending == ".npy":
            np.save(trace, TRACE)
        else:
            np.savetxt(trace, TRACE, delimiter=",")
    inner = fedavg(TASK, LOCAL, clients_per_round=None)
    _, records = run(availability(inner, trace=trace), federation, 5)
    for round, record in enumerate(records):
        assert taking_part(record) == set(np.flatnonzero(TRACE[round % 3]))


@pytest.mark.thorough
def test_an_announced_absence_is_known_before_selection(federation):
    inner = fedavg(TASK, LOCAL, clients_per_round=2)
    _, surprised = run(availability(inner, trace=TRACE), federation, 30)
    _, announced = run(availability(inner, trace=TRACE, announced=True), federation, 30)
    for round, record in enumerate(announced):
        assert len(taking_part(record)) == min(2, TRACE[round % 3].sum())
    assert any(len(taking_part(record)) < 2 for record in surprised[::3])


@pytest.mark.thorough
def test_a_client_without_such_rows_is_asked_on_its_training_rows(federation):
    empty = federation.clients.valid._replace(size=jnp.zeros_like(federation.clients.valid.size))
    data = federation._replace(clients=federation.clients._replace(valid=empty))
    inner = fedavg(TASK, LOCAL, clients_per_round=2)
    _, asked = run(appeal_based(inner, threshold=1.0, split="valid"), data, 2)
    _, usual = run(appeal_based(inner, threshold=1.0), data, 2)
    np.testing.assert_allclose(asked[1]["polled_loss"], usual[1]["polled_loss"], rtol=1e-6)


def test_who_never_trained_with_pfedme_has_the_global_model(federation):
    algorithm = REGISTRY["pfedme"].build(TASK, LOCAL, regularisation=1.0, clients_per_round=2)
    states, records = run(appeal_based(algorithm, threshold=1.0, after=9), federation, 2)
    never = sorted(set(range(POPULATION)) - taking_part(records[0]))
    expected = losses(states[1].server.model, federation)[never]
    np.testing.assert_allclose(records[1]["polled_loss"][never], expected, rtol=1e-4)


def test_rates_and_traces_by_round_are_data(federation):
    """In a compiled function both may be arguments."""
    inner, data = fedavg(TASK, LOCAL, clients_per_round=None), by_id(federation)
    table = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 0]], float)

    @jax.jit
    def cohorts(rate: Any, trace: Any) -> list[Any]:
        state = initial_state(inner, data, jnp.uint32(0))
        found = []
        for round in range(3):
            state = state._replace(round=jnp.int32(round))
            for algorithm in (dropout(inner, rate=1 - rate), availability(inner, trace=trace)):
                found.append(unlabelled(one_round(algorithm, data, Layout(5, 1, 5), state)[1]))
        return found

    for place, record in enumerate(cohorts(table, table)):
        assert taking_part(jax.tree.map(np.asarray, record)) == set(np.flatnonzero(table[place // 2 % 2]))


def _cohort(algorithm: Any, round: int) -> set[int]:
    """Who answers in a round; the selection of FedAvg reads no server."""
    _, cohort, _ = algorithm.select(jax.random.key(0), jnp.int32(round), (), (), Available(POPULATION))
    return set(np.asarray(cohort.id)[np.asarray(cohort.present)].tolist())


def test_newcomers_answer_from_the_round_on_in_which_they_join() -> None:
    inner = fedavg(TASK, LOCAL, clients_per_round=None)
    for announced in (False, True):
        algorithm = availability(inner, newcomers=[1, 4], joins=3, announced=announced)
        assert [_cohort(algorithm, round) for round in (0, 2, 3, 9)] == [{0, 2, 3}] * 2 + [set(range(5))] * 2
    # The server that knows who can answer fills its cohort with others.
    few = availability(fedavg(TASK, LOCAL, clients_per_round=3), newcomers=[1, 4], joins=3, announced=True)
    assert _cohort(few, 0) == {0, 2, 3}


@pytest.mark.quick
def test_rates_by_round_and_client_from_a_file(tmp_path: pathlib.Path) -> None:
    inner, table = fedavg(TASK, LOCAL, clients_per_round=None), np.array([[1, 0, 1, 0, 0], [0, 0, 0, 1, 1.0]])
    np.savetxt(tmp_path / "rates.csv", table, delimiter=",")
    np.save(tmp_path / "rates.npy", table)
    for name in ("rates.csv", "rates.npy"):
        algorithm = dropout(inner, rate=tmp_path / name)
        assert [_cohort(algorithm, round) for round in range(3)] == [{1, 3, 4}, {0, 1, 2}, {1, 3, 4}]
