"""What Ditto, APFL, FedALA, FedFomo and FedProto must equal, on clients of which everything can be computed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import apfl, ditto, fedala, fedfomo, fedproto, lg_fedavg, standalone
from fljax.algorithms.fedala import top_tensors
from fljax.algorithms.fedfomo import FedFomoUp
from fljax.core.trees import take
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import Judge, evaluate_state
from fljax.engine.rounds.states import by_id, initial_state
from fljax.models import MODELS
from fljax.protocol import Census, Cohort, Examples, Exchanged, LocalData, Round, Rows, Seat, Subset, Task, unlabelled
from fljax.training import Local
from tests.algorithms import quadratic
from tests.algorithms.quadratic import CENTRES, CURVATURE, ETA, START, how, run, trained
from tests.algorithms.rounds_tools import TASK, close, federation, history, missing, stored
from tests.toys.federation import tiny_federation
from tests.toys.quick import QUICK
from tests.toys.task import logistic_regression

NOTHING = Subset(Examples(jnp.zeros((0, 3)), jnp.zeros(0, jnp.int32)), Rows(jnp.zeros(0, jnp.int32), jnp.int32(0)))
NOT_READ = jax.random.key(0), Seat(jnp.int32(0), jnp.int32(0), jnp.int32(0)), LocalData(NOTHING, NOTHING, NOTHING)

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

ROUNDS, STEPS = 4, 2
POPULATION = len(CENTRES)
SHARED = quadratic.follow(START, STEPS, ROUNDS)  # uniform FedAvg
ALONE = [np.broadcast_to(START, CENTRES.shape)]
for _ in range(ROUNDS):
    ALONE.append(trained(ALONE[-1], STEPS))
ALONE = np.array(ALONE)
RAGGED, EQUAL = (5, 0, 3, 7, 2), (4, 4, 4, 4, 4)
EPOCHS = Local(0.3, 3, epochs=2, decay=0.7)


def same(found, expected, exact):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=10 * exact, atol=10 * exact), found, expected)


def ragged(build, sizes=RAGGED, rounds=3, task=TASK):
    """States of a run on clients with random batches."""
    algorithm = build(task, EPOCHS)
    return history(lambda numbers: algorithm, federation(sizes), rounds)[0]


# --- Ditto --------------------------------------------------------------------------------------------------


@functools.cache
def dittoed(steps):
    """Personal models take as many steps as global ones if none are given."""
    return lambda values: ditto(
        quadratic.quadratic(values["start"]),
        how(STEPS),
        personal_steps=steps,
        **({} if steps else {"regularisation": values["regularisation"], "personal_learning_rate": values["rate"]}),
    )


@pytest.mark.parametrize(
    ("regularisation", "rate", "steps"),
    [(0.0, ETA, None), (0.7, ETA, None), (2.0, ETA, None), (1.0, ETA, 120), (1e8, 1e-8, None)],
    ids=["standalone", "0.7", "2.0", "converged", "held fast"],
)
def test_ditto_on_quadratics(regularisation, rate, steps, exact):
    """v goes towards ``(a c + lambda w) / (a + lambda)`` by ``1 - eta (a + lambda)`` in every step.

    With a lambda of 0 it is standalone, and with 1e8 and the rate of an exact proximal step the received model.
    """
    states, _ = run(dittoed(steps), ROUNDS, regularisation=regularisation, rate=rate)
    same(states.server.model["w"], SHARED, exact)
    curvature, exact = CURVATURE[:, None], max(exact, 1e-7) if regularisation == 1e8 else exact
    for t in range(ROUNDS):
        target = (curvature * CENTRES + regularisation * SHARED[t]) / (curvature + regularisation)
        before = np.asarray(states.clients.personal["w"][t], np.float64)
        expected = target + (1 - rate * (curvature + regularisation)) ** (steps or STEPS) * (before - target)
        same(states.clients.personal["w"][t + 1], expected, exact)
    if regularisation == 0:
        same(states.clients.personal["w"], ALONE, exact)
    else:
        assert np.abs(states.clients.personal["w"] - ALONE).max() > 0.05


# --- APFL ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adaptive", "alpha"), [(False, 0.25), (True, 0.269)])
def test_one_step_of_apfl_by_hand(adaptive, alpha, exact):
    """``F = (x - 1)^2 / 2``, w = 0, v = .2, alpha = .25, eta = .1. The share moves before the step."""

    def build(values):
        algorithm = apfl(quadratic.quadratic(values["start"]), how(1, 0.1), alpha=0.25, adaptive=adaptive)

        def init_client(*arguments):
            client = algorithm.init_client(*arguments)
            return client._replace(own={"w": jnp.full_like(client.own["w"], 0.2)})

        return algorithm._replace(init_client=init_client)

    states, _ = run(build, 1, quadratic.clients(np.array([[1.0]]), 1.0), start=np.zeros(1))
    own = 0.2 + 0.1 * alpha * (1 - (alpha * 0.2 + (1 - alpha) * 0.1))  # with w after its step
    assert adaptive or own == pytest.approx(0.221875)
    same(states.server.model["w"][1], [0.1], exact)
    same((states.clients.alpha[1, 0], states.clients.own["w"][1, 0, 0]), (alpha, own), exact)


# --- FedALA -------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
def test_fedala_that_does_not_learn_on_quadratics(exact):
    build = lambda values: fedala(  # noqa: E731
        quadratic.quadratic(values["start"]), how(STEPS), layers=1, weight_learning_rate=values["rate"], most_epochs=3
    )
    states, _ = run(build, ROUNDS, rate=0.0)
    same(states.server.model["w"], SHARED, exact)
    moving, _ = run(build, ROUNDS, rate=1.0)
    assert np.abs(moving.server.model["w"] - SHARED).max() > 0.01


@pytest.mark.thorough
def test_fedala_with_weights_of_0_shares_the_lower_layers(exact):
    """As LG-FedAvg does, where all clients have equally many rows; ``w`` is the top tensor and ``b`` the lower one."""

    def frozen(*task):
        algorithm = fedala(*task, layers=1, weight_learning_rate=0.0, most_epochs=1)

        def init_client(*arguments):
            client = algorithm.init_client(*arguments)
            return client._replace(weights=jax.tree.map(jnp.zeros_like, client.weights))

        return algorithm._replace(init_client=init_client)

    found = ragged(frozen, EQUAL)
    expected = ragged(lambda *task: lg_fedavg(*task, shared=("b",)), EQUAL)
    same(found.server.model["b"], expected.server.shared["b"], exact)
    same(found.clients.model["w"], expected.clients.own["w"], exact)
    np.testing.assert_array_equal(found.clients.weights[0], 0)
    assert np.ptp(found.clients.model["w"][-1], axis=0).max() > 0.1


def test_weights_of_fedala_stay_between_0_and_1():
    found = ragged(lambda *task: fedala(*task, layers=0, weight_learning_rate=2.0), rounds=8)
    weights = np.concatenate([leaf.reshape(9, -1) for leaf in found.clients.weights], axis=1)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights[-1] == 0).any()
    assert ((weights[-1] > 0) & (weights[-1] < 1)).any()
    np.testing.assert_array_equal(weights[:2], 1)  # before the first round and after it


@pytest.mark.thorough
def test_no_layers_are_all_layers():
    everything, by_number = (ragged(lambda *task, p=p: fedala(*task, layers=p)) for p in (0, 2))
    jax.tree.map(np.testing.assert_array_equal, everything, by_number)
    assert np.min(everything.clients.weights[1]) < 1


@pytest.mark.thorough
def test_what_is_deployed_is_merged_and_nothing_is_learned(exact):
    algorithm = missing(fedala(TASK, EPOCHS, layers=1), ((), (1,), (1,)))
    states, _ = history(lambda numbers: algorithm, federation(), 3)
    state, data = take(states, -1), stored(federation())
    received = state.server.model
    for id in (1, 3):
        kept = take(state.clients, id)
        found, common = Judge(algorithm, data, state, state.round).deploy(take(data.clients, id), kept)
        same(found["b"], received["b"], exact)
        merged = kept.model["w"] + (received["w"] - kept.model["w"]) * kept.weights[0]
        same(found["w"], merged, exact)
        same(common, received, exact)
    # Client 0 has no data: whatever its weights, it uses what it receives.
    kept = take(state.clients, 0)
    assert not kept.trained
    kept = kept._replace(weights=jax.tree.map(jnp.zeros_like, kept.weights))
    found, _ = Judge(algorithm, data, state, state.round).deploy(take(data.clients, 0), kept)
    jax.tree.map(np.testing.assert_array_equal, found, received)
    assert np.abs(received["w"] - kept.model["w"]).max() > 1e-3


class Pair(NamedTuple):
    """Fields in the order of the model, which is not that of the alphabet."""

    second: Any
    first: Any


def top_names(task, layers):
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    found = jax.tree_util.tree_leaves_with_path(shapes)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found]
    return {path for path, is_top in zip(paths, top_tensors(task, layers), strict=True) if is_top}


def layer(name):
    return {f"{name}/kernel", f"{name}/bias"}


@pytest.mark.thorough
def test_top_tensors_follow_the_model():
    cnn = MODELS["cnn_a"]((28, 28, 1), 10)
    assert top_names(cnn, 1) == {"head/bias"}
    assert top_names(cnn, 2) == layer("head")
    assert top_names(cnn, 5) == layer("head") | layer("dense_1") | {"dense_0/bias"}
    assert top_names(cnn, 8) == layer("head") | layer("dense_1") | layer("dense_0") | layer("conv_1")
    assert len(top_names(cnn, 0)) == len(top_names(cnn, 10)) == 10
    deep = MODELS["mlp"]((4,), 3, hidden=(3,) * 12)
    assert top_names(deep, 6) == layer("head") | layer("dense_11") | layer("dense_10")
    resnet = MODELS["resnet18"]((8, 8, 3), 10)
    assert top_names(resnet, 2) == layer("head")
    assert all(name.startswith(("head", "block_7/shortcut", "block_7/second")) for name in top_names(resnet, 6))
    stem = top_names(resnet, 0) - top_names(resnet, len(top_names(resnet, 0)) - 4)
    assert stem == layer("stem/conv") | {"stem/norm/scale", "stem/norm/bias"}
    fields = TASK._replace(init=lambda key: Pair(jnp.zeros(1), jnp.zeros(1)))
    assert top_names(fields, 1) == {"first"}
    assert top_names(logistic_regression(), 1) == {"bias"}
    assert top_names(TASK, 1) == {"w"}


# --- FedFomo ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_fedfomo_that_is_sent_nothing_is_standalone(exact):
    build = lambda values: fedfomo(quadratic.quadratic(values["start"]), how(STEPS), models_sent=0)  # noqa: E731
    states, records = run(build, ROUNDS)
    same(states.server.models.values["w"], ALONE, exact)
    np.testing.assert_array_equal(states.server.affinity, np.broadcast_to(np.eye(4), (ROUNDS + 1, 4, 4)))
    np.testing.assert_array_equal(records["better"], 0)


def uploaded(values):
    """FedFomo with uploaded ``values["models"]``; client 0 alone takes part, last trained from ``values["before"]``."""
    algorithm = fedfomo(
        quadratic.quadratic(values["start"]), how(STEPS, values["rate"]), models_sent=values["models_sent"]
    )

    def init_server(key, census):
        server = algorithm.init_server(key, census)
        return server._replace(
            models=Exchanged({"w": values["models"]}), uploaded=jnp.ones(POPULATION, bool), affinity=values["affinity"]
        )

    def init_client(*arguments):
        return algorithm.init_client(*arguments)._replace(before={"w": values["before"]})

    return missing(algorithm._replace(init_server=init_server, init_client=init_client), ((1, 2, 3),))


CENTRE = CENTRES[0]
NEAR, FAR = CENTRE + 0.01, CENTRE + np.array([3.0, -4.0, 5.0])


@pytest.mark.quick
@pytest.mark.sampled(6)
@pytest.mark.parametrize("rate", [0.0, ETA], ids=["untrained", "trained"])
@pytest.mark.parametrize(
    ("before", "models", "start", "better"),
    [
        (START, [START, START, START, START], START, 0),
        (START, [FAR, FAR + 2, NEAR, FAR + 1], NEAR, 1),
        (START, [NEAR, FAR, FAR + 2, FAR + 1], NEAR, 1),
        (NEAR, [START, FAR, FAR + 2, FAR + 1], START, 0),
        (START, [START, FAR, FAR + 2, FAR + 1], START, 0),
    ],
    ids=["all equal", "one better", "only the own one better", "all worse", "never trained"],
)
def test_fedfomo_takes_what_is_better(before, models, start, better, rate, exact):
    values = {"models": np.stack(models), "before": before, "rate": rate, "affinity": np.eye(POPULATION)}
    states, records = run(lambda given: uploaded({**given, "models_sent": POPULATION}), 1, **values)
    expected = np.stack([trained(start, STEPS, rate)[0], *models[1:]])
    np.testing.assert_allclose(states.server.models.values["w"][1], expected, rtol=10 * exact, atol=20 * exact)
    np.testing.assert_allclose(states.clients.before["w"][1, 0], start, rtol=10 * exact, atol=20 * exact)
    assert records["better"][0].sum() == better
    step = states.server.affinity[1] - states.server.affinity[0]
    np.testing.assert_array_equal(step[1:], 0)
    loss = [quadratic.losses(model)[0] for model in (before, *models)]
    away = [np.linalg.norm(np.subtract(model, before)) for model in models]
    weights = [(loss[0] - other) / (far + 1e-5) for other, far in zip(loss[1:], away, strict=True)]
    np.testing.assert_allclose(step[0], weights, rtol=1e3 * exact, atol=1e3 * exact)


@pytest.mark.quick
@pytest.mark.sampled(2)
@pytest.mark.parametrize("liked", [[9.0, 0.0, 1.0, 0.0], [-9.0, 0.0, 1.0, 0.0]], ids=["sent", "not sent"])
def test_the_own_model_of_fedfomo_competes_once_whether_it_is_sent_or_not(liked, exact):
    """Client 0 is sent two models: its own and that of client 2, or those of clients 2 and 1."""
    models = np.stack([NEAR, FAR, (CENTRE + START) / 2, FAR + 1])
    affinity = np.eye(POPULATION)
    affinity[0] = liked
    values = {"models": models, "before": START, "rate": 0.0, "affinity": affinity}
    states, records = run(lambda given: uploaded({**given, "models_sent": 2}), 1, **values)
    loss = [quadratic.losses(model)[0] for model in (START, models[0], models[2])]
    away = [np.linalg.norm(model - START) for model in (models[0], models[2])]
    weights = np.array([(loss[0] - other) / (far + 1e-5) for other, far in zip(loss[1:], away, strict=True)])
    assert (weights > 0).all()
    assert records["better"][0].sum() == 2
    share = weights / weights.sum()
    expected = START + share[0] * (models[0] - START) + share[1] * (models[2] - START)
    np.testing.assert_allclose(states.server.models.values["w"][1, 0], expected, rtol=10 * exact, atol=20 * exact)
    step = (states.server.affinity[1] - states.server.affinity[0])[0]
    np.testing.assert_allclose(step[[0, 2]], weights, rtol=1e3 * exact, atol=1e3 * exact)
    assert (step[1] < 0) == (liked[0] < 0)  # a model that was not sent has no weight
    assert step[3] == 0


def test_models_are_sent_by_affinity_and_ties_go_to_the_lower_id():
    algorithm = fedfomo(TASK, EPOCHS, models_sent=3)
    server = algorithm.init_server(jax.random.key(0), Census(jnp.array([2, 2, 2, 0, 2]), jnp.zeros(5, jnp.int32)))
    seat = Seat(jnp.int32(0), jnp.int32(2), jnp.int32(0))
    assert not np.asarray(algorithm.down(server, seat).real).any()
    server = server._replace(uploaded=jnp.array([True, True, True, False, True]))
    assert algorithm.down(server, seat).id.tolist() == [2, 0, 1]
    liked = server._replace(affinity=server.affinity.at[2].set(jnp.array([-1.0, 0.5, 1.0, 9.0, 0.5])))
    assert algorithm.down(liked, seat).id.tolist() == [2, 1, 4]
    few = server._replace(uploaded=jnp.array([False, True, False, False, False]))
    down = algorithm.down(few, seat)
    assert np.asarray(down.id)[np.asarray(down.real)].tolist() == [1]


def test_strangers_of_fedfomo_get_the_mean_of_what_was_uploaded():
    algorithm: Any = fedfomo(TASK, EPOCHS, models_sent=0)
    server = algorithm.init_server(jax.random.key(0), Census(jnp.array([1, 3, 4]), jnp.zeros(3, jnp.int32)))
    unknown = Seat(jnp.int32(0), jnp.int32(-1), jnp.int32(0), known=False)
    start = take(server.models.values, 0)
    jax.tree.map(np.testing.assert_array_equal, algorithm.down(server, unknown).own, start)
    offset = lambda leaf: jnp.zeros((3, *leaf.shape)) + jnp.array([1.0, 2.0, 50.0]).reshape(3, *[1] * leaf.ndim)  # noqa: E731
    up = FedFomoUp(jax.tree.map(offset, start), jnp.zeros((3, 0)), jnp.zeros((3, 0), jnp.int32))
    cohort = Cohort(jnp.arange(3), jnp.zeros(3, jnp.int32), jnp.array([True, True, False]))
    moved, _ = algorithm.aggregate(server, up, Round(jax.random.key(0), jnp.int32(0), cohort, {}))
    expected = jax.tree.map(lambda leaf: leaf + 1.75, start)
    close(algorithm.down(moved, unknown).own, expected)
    close(algorithm.models(moved)["server_test"].model, expected)


# --- FedProto -----------------------------------------------------------------------------------------------

WIDTH, CLASSES = 6, 4
INNER = 0.6 * np.random.default_rng(2).normal(size=(3, WIDTH))
HEAD = 0.6 * np.random.default_rng(3).normal(size=(WIDTH, CLASSES))


def two_layers(head=HEAD):
    features = lambda params, x: jnp.tanh(x @ params["inner"])  # noqa: E731
    start = {"inner": INNER, "head": head}
    return Task(
        init=lambda key: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), start),
        logits=lambda params, x, key=None: features(params, x) @ params["head"],
        loss=TASK.loss,
        features=features,
        classes=CLASSES,
        width=WIDTH,
        score=TASK.score,
    )


@pytest.mark.thorough
def test_fedproto_without_penalty_is_standalone(exact):
    task = two_layers()
    alone = ragged(standalone, task=task).clients.model
    found = ragged(lambda *task: fedproto(*task, regularisation=0.0, predict="head"), task=task)
    same(found.clients.model, alone, exact)
    pulled = ragged(lambda *task: fedproto(*task, regularisation=1.0), task=task).clients.model
    same(take(pulled, 1), take(alone, 1), exact)  # no prototype is known in the first round
    assert np.abs(pulled["inner"][-1] - alone["inner"][-1]).max() > 1e-3
    algorithm = fedproto(task, EPOCHS, predict="head")
    x = jnp.ones((2, 3))
    state = take(found, -1)
    deployed = algorithm.deploy(*NOT_READ[:2], state.server.shown, take(state.clients, 2), NOT_READ[2])
    np.testing.assert_array_equal(algorithm.predict(deployed, x), task.logits(deployed.model, x))


@pytest.mark.thorough
@pytest.mark.parametrize("weights", ["count", "uniform"])
def test_one_client_has_its_own_class_means(weights, exact):
    data = federation((7,), (0,))
    algorithm = fedproto(two_layers(), EPOCHS, weights=weights)
    states, _ = history(lambda numbers: algorithm, data, 3)
    x, y = np.asarray(data.examples.x[:7], np.float64), np.asarray(data.examples.y[:7])
    for t in range(1, 4):
        z = np.tanh(x @ np.asarray(states.clients.model["inner"][t, 0], np.float64))
        found = states.server.shown
        assert np.flatnonzero(found.known[t]).tolist() == sorted(set(y))
        for label in set(y):
            same(found.prototypes[t, label], z[y == label].mean(axis=0), exact)


@pytest.mark.thorough
def test_classes_may_change_their_names(exact):
    order = np.array([2, 0, 3, 1])  # class j is called order[j]
    data = federation()
    renamed = data._replace(examples=data.examples._replace(y=jnp.asarray(order)[data.examples.y]))
    head = np.empty_like(HEAD)
    head[:, order] = HEAD
    plain, other = (fedproto(two_layers(start), EPOCHS) for start in (HEAD, head))
    found, _ = history(lambda numbers: plain, data, 3)
    expected, _ = history(lambda numbers: other, renamed, 3)
    same(found.server.shown.prototypes, expected.server.shown.prototypes[:, order], exact)
    np.testing.assert_array_equal(found.server.shown.known, expected.server.shown.known[:, order])
    same(found.clients.model["inner"], expected.clients.model["inner"], exact)
    same(found.clients.model["head"], expected.clients.model["head"][..., order], exact)


def test_while_no_class_is_known_the_head_decides():
    task = two_layers()
    algorithm = fedproto(task, EPOCHS)
    server = algorithm.init_server(jax.random.key(0), Census(jnp.ones(2, jnp.int32), jnp.ones(2, jnp.int32)))
    x = jnp.asarray(np.random.default_rng(4).normal(size=(5, 3)), jnp.float32)
    client = algorithm.init_client(*NOT_READ[:2], server.start, NOT_READ[2])
    zero = jnp.int32(0)
    shown = algorithm.down(server, Seat(zero, zero, zero))
    found = algorithm.predict(algorithm.deploy(*NOT_READ[:2], shown, client, NOT_READ[2]), x)
    np.testing.assert_array_equal(found, task.logits(server.start, x))
    representation = task.features(server.start, x)  # type: ignore
    one = shown._replace(prototypes=shown.prototypes.at[2].set(representation[0]), known=shown.known.at[2].set(True))
    found = algorithm.predict(algorithm.deploy(*NOT_READ[:2], one, client, NOT_READ[2]), x)
    assert np.argmax(found, axis=1).tolist() == [2] * 5
    assert np.isfinite(task.loss(found, jnp.zeros(5, jnp.int32))).all()
    close(found[:, 2], -np.square(np.asarray(representation) - np.asarray(representation[0])).sum(axis=1), 1e-5)


def test_strangers_of_fedproto_have_no_scores():
    data = by_id(tiny_federation())
    algorithm = fedproto(logistic_regression(), Local(0.2, 2, steps=3))
    judge = jax.jit(
        lambda: evaluate_state(algorithm, data, Layout(5, 1, 5), initial_state(algorithm, data, jnp.uint32(0))),
        compiler_options=QUICK,
    )
    found = unlabelled(judge())
    assert np.isnan(found["unseen_test_loss"]).all()
    assert np.isnan(found["unseen_test_accuracy"]).all()
    assert np.isfinite(found["test_loss"]).all()
    assert not any(name.startswith("global_") for name in found)
