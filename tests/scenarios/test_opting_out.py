"""Dynamic opting out, recomputed from saved states."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import Tokens, fedavg, ipfl
from fljax.engine import simulate
from fljax.engine.rounds.states import by_id
from fljax.scenarios import appeal_based, opting_out
from fljax.training import Local
from tests.laws.compare import assert_same
from tests.scenarios.tools import LOCAL, TASK, run
from tests.toys.federation import tiny_federation

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]

BASELINE = np.array([0.91, 0.47, 0.61, 0.0, 0.71], np.float32)  # no tie with any accuracy
ROUNDS, EVERY = 13, 3


@pytest.fixture(scope="module")
def federation():
    return by_id(tiny_federation())


def accuracies(model, federation, part):
    found = []
    for id in range(5):
        rows = getattr(federation.clients, part)
        index = np.asarray(rows.index)[id, : int(rows.size[id])]
        x, y = np.asarray(federation.examples.x)[index], np.asarray(federation.examples.y)[index]
        found.append(np.mean((x @ np.asarray(model.weight) + np.asarray(model.bias)).argmax(axis=1) == y))
    return np.array(found)


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("split", ["valid", "train"])
def test_the_pool_is_what_saved_models_say(comes_back, split, federation):
    inner = fedavg(TASK, LOCAL, clients_per_round=3)
    algorithm = opting_out(inner, baseline=jnp.asarray(BASELINE), every=EVERY, comes_back=comes_back, split=split)
    states, records = run(algorithm, federation, ROUNDS)
    gone, decisions = np.zeros(5, bool), []
    for t, record in enumerate(records):
        if t % EVERY == 0:
            gain = accuracies(states[t].server.inner.model, federation, split) - BASELINE
            np.testing.assert_allclose(record["gain"], gain, rtol=1e-5, atol=1e-6)
            if t > 0:
                gone = gain < 0 if comes_back else gone | (gain < 0)
                decisions.append(tuple(gone))
        np.testing.assert_array_equal(record["opted_out"], gone)
        there = record["cohort_id"][record["cohort_present"]]
        assert not gone[there].any()
        assert len(there) == min(3, 5 - gone.sum())
        assert int(record["polled"]) == (5 if t % EVERY == 0 else 0)
    assert 0 < sum(gone) < 5


def test_when_all_have_left_nothing_moves(federation):
    states, records = run(opting_out(fedavg(TASK, LOCAL), baseline=2.0, every=2), federation, 5)
    assert records[1]["cohort_present"].any()
    assert not records[2]["cohort_present"].any()
    assert_same(states[2].server.inner, states[5].server.inner)


def test_around_ipfl_those_who_left_neither_bid_nor_train(federation):
    inner = ipfl(TASK, LOCAL, clients_per_cluster=2, tokens=Tokens(initial=20))
    _, records = run(opting_out(inner, baseline=jnp.asarray(BASELINE), every=2), federation, 8)
    assert records[-1]["opted_out"].any()
    for record in records:
        assert not record["bid"][record["opted_out"]].any()
        assert not record["membership"][record["opted_out"]].any()
        assert record["tokens"].sum() + record["pool"].sum() == 100


SLOW = fedavg(TASK, Local(0.05, 4, steps=2), clients_per_round=3)


@pytest.fixture(scope="module")
def slow_run(federation):
    """FedAvg that still learns in the last round: its states, and its accuracies after 0, 1, ... rounds."""
    states, _ = run(SLOW, federation, ROUNDS)
    table = np.stack([accuracies(state.server.model, federation, "train") for state in states]).astype(np.float32)
    assert len({tuple(row) for row in table[::EVERY]}) > 3  # so that another row would be seen
    return states, table


@pytest.mark.parametrize("inner", ["fedavg", "polled"])
@pytest.mark.parametrize("extra", [0, 3])
def test_fedavg_loses_nobody_to_itself(inner, extra, federation, slow_run):
    """With a table of its own accuracies; also around a scenario that asks in every round, and with rows too many."""
    plain, table = slow_run
    table = np.concatenate([table[:ROUNDS], np.ones((extra, 5), np.float32)])
    algorithm = appeal_based(SLOW, threshold=1e9) if inner == "polled" else SLOW
    algorithm = opting_out(algorithm, baseline=jnp.asarray(table), every=EVERY, split="train")
    states, records = run(algorithm, federation, ROUNDS)
    for t, record in enumerate(records):
        assert not record["opted_out"].any()
        np.testing.assert_allclose(record["gain"], 0, atol=1e-6, err_msg=f"round {t}")
    model = states[-1].server.inner.model
    jax.tree.map(np.testing.assert_array_equal, model, plain[-1].server.model)


@pytest.mark.parametrize(("missing", "leave"), [(1e-7, 0), (1e-3, 5)])
def test_what_is_missing_by_rounding_alone_does_not_count(missing, leave, federation, slow_run):
    _, table = slow_run
    above = jnp.asarray(table + np.float32(missing))
    _, records = run(opting_out(SLOW, baseline=above, every=EVERY, split="train"), federation, EVERY + 1)
    assert records[EVERY]["opted_out"].sum() == leave


def test_only_the_rows_of_decisions_are_read(federation):
    """Rows between them may be unknown. Where the row of a decision is, everybody stays."""
    table = np.full((ROUNDS, 5), np.nan, np.float32)
    table[EVERY] = BASELINE
    found, records = run(opting_out(fedavg(TASK, LOCAL), baseline=jnp.asarray(table), every=EVERY), federation, ROUNDS)
    gain = accuracies(found[EVERY].server.inner.model, federation, "valid") - BASELINE
    for t, record in enumerate(records):
        if EVERY <= t < 2 * EVERY:
            np.testing.assert_allclose(record["gain"], gain, atol=1e-6)
        else:
            assert np.isnan(record["gain"]).all()
        np.testing.assert_array_equal(record["opted_out"], (gain < 0) & (t >= EVERY))
    assert 0 < (gain < 0).sum() < 5
    assert int(found[-1].diverged) == -1


def test_a_table_of_too_few_rounds_is_refused(federation):
    algorithm = opting_out(fedavg(TASK, LOCAL), baseline=jnp.zeros((3, 5)), every=2)
    with pytest.raises(
        ValueError, match="expected at most 3 rounds, for which the table of opting_out has rows, got 4"
    ):
        simulate(algorithm, federation, rounds=4)
    first = simulate(algorithm, federation, rounds=2, evaluate_every=1)
    with pytest.raises(ValueError, match=r"expected at most 3 rounds, .* got 4"):
        simulate(algorithm, federation, rounds=2, initial=first.state)
    last = simulate(algorithm, federation, rounds=1, initial=first.state, evaluate_every=1)
    np.testing.assert_array_equal(last.records["opted_out"], False)


def test_nobody_loses_to_itself_in_double_precision(x64):
    """Accuracies of a model in single precision are compared in single precision, whatever the baseline is in."""
    data = by_id(tiny_federation())
    inner = fedavg(TASK, LOCAL, clients_per_round=3)
    plain = simulate(inner, data, rounds=2)
    shares = np.round(plain.metrics["test_accuracy"].values[0, 0] * np.asarray(data.clients.test.size, float))
    baseline = shares / np.asarray(data.clients.test.size, float)
    found = simulate(opting_out(inner, baseline=baseline, every=1, split="test"), data, rounds=1)
    gain = found.records["gain"].values[0, 0]
    np.testing.assert_allclose(gain, 0, atol=1e-6)
    states, records = run(opting_out(inner, baseline=jnp.asarray(baseline), every=1, split="test"), data, rounds=1)
    assert states[0].server.accuracy.dtype == jnp.float64
    assert (records[0]["gain"] >= -8 * np.finfo(np.float32).eps).all()
