"""Training alone, as an algorithm and after federated training (fine-tuning), against doing it by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax
from fljax import training
from fljax.algorithms import fedavg, standalone
from fljax.engine import simulate
from fljax.engine.rounds.states import Purpose, client_key, round_key
from fljax.metrics.registry import COMPARED_WITH_STANDALONE, ON_REQUEST
from fljax.models import correct
from fljax.protocol import ClientData, Examples, Federation, LocalData, Rows, Seat, Subset, Task
from fljax.scenarios import finetuned
from fljax.training import Local
from tests.laws.compare import assert_close

SEED = 4
HOW = Local(0.3, 3, steps=2, decay=0.5)
TASK = Task(
    init=lambda key: {"w": 0.3 * jax.random.normal(key, (3, 4)), "b": jnp.zeros(4)},
    logits=lambda params, x, key=None: x @ params["w"] + params["b"][None, :],
    loss=optax.softmax_cross_entropy_with_integer_labels,
    score=correct,
)

SEAT = Seat(jnp.int32(0), jnp.int32(0), jnp.int32(0))
RUN = functools.partial(simulate, seeds=[SEED])


pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def data():
    """Three seen clients, stored by id, and two unseen ones."""
    rng = np.random.default_rng(2)
    examples = Examples(jnp.asarray(rng.normal(size=(20, 3)), jnp.float32), jnp.asarray(rng.integers(0, 4, 20)))

    def population(index, sizes):
        rows = Rows(jnp.asarray(index, jnp.int32), jnp.asarray(sizes, jnp.int32))
        return ClientData(jnp.arange(len(sizes), dtype=jnp.int32), rows, rows, rows)

    seen = population([[0, 1, 2, 3, 4], [5, 6, 7, 0, 0], [8, 9, 10, 11, 0]], [5, 3, 4])
    return Federation(examples, seen, population([[12, 13, 14, 15, 0], [16, 17, 0, 0, 0]], [4, 2]))


@functools.partial(jax.jit, static_argnames="how")
def by_hand(key, params, own, round, how):
    return training.train(key, params, own, task=TASK, local=how, round=round).params


def own(data, clients, k):
    return Subset(data.examples, Rows(clients.train.index[k], clients.train.size[k]))


def purpose_key(purpose, round, id):
    return client_key(round_key(jnp.uint32(SEED), purpose, round), jnp.int32(id))


def close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert_close(found, expected)


@pytest.mark.thorough
def test_standalone_is_training_alone(data):
    result = RUN(standalone(TASK, HOW), data, rounds=2)
    start = TASK.init(round_key(jnp.uint32(SEED), Purpose.INIT_SERVER))
    close(jax.tree.map(lambda leaf: leaf[0], result.state.server.model), start)  # nothing is aggregated
    for k in (0, 1):
        model = start
        for t in range(2):
            model = by_hand(purpose_key(Purpose.TRAIN, t, k), model, own(data, data.clients, k), t, HOW)
        close(result.deployed(k), model)
        # An unseen client trains on its own data for as many rounds, from the same model.
        model, key = start, purpose_key(Purpose.UNSEEN_DEPLOY, 2, k)
        for t in range(2):
            model = by_hand(jax.random.fold_in(key, t), model, own(data, data.unseen, k), t, HOW)
        close(result.deployed(k, unseen=True), model)
    assert "global_test_loss" not in result.metrics  # there is no model in common
    assert (result.records["bytes_up"] == 0).all()


def alone_and_not(data, jitted):
    """Metrics of ``standalone``, also inside a scenario and in blocks, and of FedAvg."""
    blocks = []
    reference = fljax.standalone(TASK, data, HOW, seeds=[SEED])
    tuned = finetuned(standalone(TASK, HOW), learning_rate=0.2, batch_size=2, steps=1)
    with jax.disable_jit(not jitted):
        run = functools.partial(RUN, federation=data, rounds=1, reference=reference)
        found = [run(each).metrics for each in (standalone(TASK, HOW), tuned, fedavg(TASK, HOW))]
        run(standalone(TASK, HOW), callbacks=[blocks.append])
    return blocks, found


@pytest.mark.thorough
@pytest.mark.parametrize("jitted", [True, False])
def test_training_alone_is_not_compared_with_standalone_models(data, jitted):
    (block,), (alone, tuned, together) = alone_and_not(data, jitted)
    for name in (
        f"{prefix}{each}" for prefix in ("", "unseen_") for each in COMPARED_WITH_STANDALONE - set(ON_REQUEST)
    ):
        assert together[name].notnull().all() or "correlation" in name, name
        for each in (alone, tuned):
            assert name not in each if "global_" in name or "threshold" in name else each[name].isnull().all(), name
        assert name not in block.metrics or np.isnan(block.metrics[name]).all()
    assert alone["average_accuracy"].notnull().all()
    assert alone["standalone_test_loss"].notnull().all()


@pytest.mark.thorough
def test_finetuned_is_training_what_is_deployed(data):
    inner = fedavg(TASK, HOW, clients_per_round=2)
    plain = RUN(inner, data, rounds=1)
    tuned = RUN(finetuned(inner, learning_rate=0.2, batch_size=2, steps=3), data, rounds=1)
    close(tuned.state.server, plain.state.server)
    model, how = plain.deployed(0), Local(0.2, 2, steps=3)
    for k in (0, 1):
        key = jax.random.fold_in(purpose_key(Purpose.DEPLOY, 1, k), 1)
        close(tuned.deployed(k), by_hand(key, model, own(data, data.clients, k), 0, how))
    key = jax.random.fold_in(purpose_key(Purpose.UNSEEN_DEPLOY, 1, 1), 1)
    close(tuned.deployed(1, unseen=True), by_hand(key, model, own(data, data.unseen, 1), 0, how))
    # The model in common stays that of the inner algorithm, and is judged beside the tuned ones.
    for prefix in ("", "unseen_"):
        for name in ("test_loss", "test_accuracy"):
            expected = plain.metrics[prefix + name].values
            np.testing.assert_allclose(tuned.metrics[f"{prefix}global_{name}"], expected, rtol=1e-5)
            np.testing.assert_allclose(plain.metrics[f"{prefix}global_{name}"], expected, rtol=1e-6)
        assert (tuned.metrics[prefix + "test_loss"] < tuned.metrics[f"{prefix}global_test_loss"]).all()


@pytest.mark.thorough
def test_who_finetunes_may_be_given(data):
    """By client, or by client and round; unseen clients all do."""
    inner = fedavg(TASK, HOW, clients_per_round=2)
    build = lambda who: finetuned(inner, learning_rate=0.2, batch_size=2, steps=3, who=who)  # noqa: E731
    plain, tuned = (RUN(each, data, rounds=1) for each in (inner, build(None)))
    for who in ([0, 1, 0], [[1, 1, 1], [0, 1, 0]]):  # after round 1
        some = RUN(build(np.array(who)), data, rounds=1)
        for name, unseen in (("test_loss", False), ("unseen_test_loss", True)):
            last = [each.metrics[name].values[0, -1] for each in (plain, tuned, some)]
            expected = last[1] if unseen else np.where([0, 1, 0], last[1], last[0])
            np.testing.assert_allclose(last[2], expected, rtol=1e-6)
            assert (last[0] != last[1]).all()
    with pytest.raises(ValueError, match="an entry for each of 3 clients, got 2"):
        RUN(build(np.array([0, 1])), data, rounds=1)


@pytest.mark.thorough
def test_finetuned_by_epochs(data):
    scenario = finetuned(fedavg(TASK, HOW), learning_rate=0.2, batch_size=2, epochs=1)
    start, rows, key = TASK.init(jax.random.key(0)), own(data, data.clients, 0), jax.random.key(1)
    found = jax.jit(lambda: scenario.deploy(key, SEAT, start, (), LocalData(rows, rows, rows)))()
    close(found, by_hand(jax.random.fold_in(key, 1), start, rows, 0, Local(0.2, 2, epochs=1)))


def test_finetuned_leaves_integers_alone():
    inner = fedavg(TASK, HOW)

    def deploy(key, seat, down, client, data):
        return {"model": down, "cluster": jnp.int32(3)}

    task = TASK._replace(logits=lambda own, x, key=None: TASK.logits(own["model"], x, key))
    inner = inner._replace(personal=deploy, task=task)
    scenario = finetuned(inner, learning_rate=0.2, batch_size=2, steps=1)
    examples = Examples(jnp.ones((2, 3)), jnp.zeros(2, jnp.int32))
    rows = Subset(examples, Rows(jnp.arange(2), jnp.int32(2)))
    start = TASK.init(jax.random.key(0))
    found = jax.jit(lambda: scenario.deploy(jax.random.key(1), SEAT, start, (), LocalData(rows, rows, rows)))()
    assert int(found["cluster"]) == 3
    assert not np.array_equal(found["model"]["w"], start["w"])
