"""Evaluation on one test set of all clients: the short way gives what the long way gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, incfl, perfedavg
from fljax.data import stack
from fljax.engine import one_round, simulate
from fljax.engine.devices.layout import Layout
from fljax.engine.programs import program
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.states import by_id, initial_state, same_tests
from fljax.protocol import Algorithm, Federation, Rows, unlabelled
from fljax.scenarios import appeal_based, backdoor, byzantine, finetuned
from fljax.training import Local
from tests.laws.compare import assert_close
from tests.toys.federation import tiny_federation
from tests.toys.models_per_client import models_per_client
from tests.toys.quick import QUICK
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)
LANES = Layout(2, 1, 2)


def _common(seed: int = 0) -> Federation:
    """All are tested on the server's rows; client 1 has no training rows, client 3 no test rows; padding differs."""
    data = by_id(tiny_federation(seed))
    rows, size = np.asarray(data.held["test"].index), int(data.held["test"].size)

    def tested(clients: Any, without: int | None) -> Any:
        count = len(clients.id)
        index = np.zeros((count, size + 2), np.int32)
        index[:, :size] = rows[:size]
        index[:, size:] = np.arange(2 * count).reshape(count, 2)
        sizes = np.full(count, size, np.int32)
        if without is not None:
            sizes[without], index[without] = 0, 7
        return clients._replace(test=Rows(jnp.asarray(index), jnp.asarray(sizes)))

    seen, unseen = tested(data.clients, 3), tested(data.unseen, None)
    return data._replace(
        clients=seen._replace(train=seen.train._replace(size=seen.train.size.at[1].set(0))), unseen=unseen
    )


def _algorithms() -> dict[str, Algorithm]:
    plain = fedavg(TASK, LOCAL, clients_per_round=3)
    return {
        "fedavg": plain,
        "incfl": incfl(TASK, LOCAL, threshold=1.0),
        "a separate shared model": perfedavg(TASK, LOCAL),
        "no shared model": models_per_client(TASK, LOCAL, contribution=np.ones(5, np.float32)),
        "tuned": finetuned(plain, learning_rate=0.1, batch_size=2, steps=1),
        "probed": backdoor(plain, target=1, size=1, fraction=0.0),
        "not all count": byzantine(appeal_based(plain, threshold=1.0, after=1), fraction=0.4),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(_algorithms()))
def test_judging_once_equals_judging_everybody(name: str) -> None:
    algorithm, data, valid = _algorithms()[name], _common(), name in ("fedavg", "tuned")
    assert same_tests(data)

    @jax.jit
    def both() -> tuple[Any, Any]:
        state = initial_state(algorithm, data, jnp.uint32(4))
        state, _ = one_round(algorithm, data, LANES, state)
        judge = lambda common: evaluate_state(algorithm, data, LANES, state, valid=valid, common=common)  # noqa: E731
        return judge(False), judge(True)

    long, short = map(unlabelled, both.lower().compile(compiler_options=QUICK)())
    assert_close(dict(sorted(long.items())), dict(sorted(short.items())))
    absent = np.flatnonzero(np.isnan(short["test_loss"]))
    assert {1, 3} <= set(absent.tolist())
    assert (len(absent) > 2) == (name == "not all count")
    assert np.isfinite(short["unseen_test_accuracy"]).all()


@pytest.mark.thorough
def test_same_tests_looks_at_real_rows_of_seen_and_unseen_in_every_federation() -> None:
    data = _common()
    assert not same_tests(tiny_federation())
    assert same_tests(data._replace(unseen=None))
    assert same_tests(stack([data, _common(1)]))
    assert not same_tests(stack([data, by_id(tiny_federation())]))
    assert data.unseen is not None
    for place, (who, client) in enumerate((("clients", 2), ("unseen", 1))):
        own = getattr(data, who)
        other = own.test._replace(index=own.test.index.at[client, place].set(0))
        assert not same_tests(data._replace(**{who: own._replace(test=other)}))
        fewer = own.test._replace(size=own.test.size.at[client].add(-1))
        assert not same_tests(data._replace(**{who: own._replace(test=fewer)}))
    nobody = data.clients.test._replace(size=jnp.zeros(5, jnp.int32))
    assert not same_tests(data._replace(clients=data.clients._replace(test=nobody)))


@pytest.mark.in_turn
@pytest.mark.parametrize("wrapped", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_model_of_the_servers_own_is_judged_on_held_rows(wrapped: bool) -> None:
    data, algorithm = tiny_federation(), _algorithms()["no shared model"]
    if wrapped:
        algorithm = byzantine(algorithm, fraction=0.2, noise=0.1)
    result = simulate(algorithm, data, rounds=2, seeds=(0, 5), evaluate_every=1)
    found = result.metrics["server_test_accuracy"]
    assert found.dims == result.metrics["server_test_loss"].dims == ("seed", "evaluated_round")
    assert found.shape == (2, 3)
    server = result.state.server.inner if wrapped else result.state.server
    x, y = np.asarray(data.examples.x), np.asarray(data.examples.y)
    rows = np.asarray(data.held["test"].index)[: int(data.held["test"].size)]
    for seed in range(2):
        logits = np.asarray(TASK.logits(jax.tree.map(lambda leaf, s=seed: leaf[s], server.reference), x[rows]))
        loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), y[rows]]
        np.testing.assert_allclose(found[seed, -1], np.mean(logits.argmax(1) == y[rows]), rtol=1e-6)
        np.testing.assert_allclose(result.metrics["server_test_loss"][seed, -1], loss.mean(), rtol=1e-5)
    without = simulate(algorithm, data._replace(held={}), rounds=0)
    assert "server_test_accuracy" not in without.metrics


@pytest.mark.thorough
def test_simulate_judges_a_shared_model_once_where_it_can() -> None:
    algorithm = fedavg(TASK, LOCAL)
    data = stack([_common(), _common(1)])
    spec, inputs = program.partition_plan(algorithm, data)
    assert spec.common
    seeds = jnp.asarray([0, 1], jnp.uint32)
    state = program.start.trace(spec, LANES, inputs, seeds).out_info

    def products(spec: program.Spec) -> int:
        spec = spec._replace(valid=False)
        return str(program.evaluate_runs.trace(spec, LANES, inputs, state, jnp.int32(0)).jaxpr).count("dot_general")

    assert products(spec) == 1
    assert products(spec._replace(common=False)) > 1

    result = simulate(algorithm, data, rounds=1, seeds=(0, 1))
    accuracy = result.metrics["test_accuracy"].values
    assert np.isnan(accuracy[:, :, [1, 3]]).all()
    np.testing.assert_array_equal(accuracy[:, :, 0], accuracy[:, :, 4])
    np.testing.assert_array_equal(accuracy[:, :, 0], result.metrics["unseen_global_test_accuracy"].values[:, :, 1])
