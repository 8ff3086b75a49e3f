"""Ditto, FedALA, FedFomo and FedProto against NumPy.

Three rounds, ragged clients, one without data, and one that is lost in each round.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import training
from fljax.algorithms import ditto, fedala, fedfomo, fedproto
from fljax.algorithms.fedproto import UNKNOWN
from fljax.core.trees import take
from fljax.engine.rounds.evaluate import Judge
from fljax.models import correct
from fljax.protocol import Examples, Rows, Seat, Subset, Task
from fljax.training import Local, Stream
from tests.algorithms.rounds_tools import (
    TASK,
    batches_of,
    close,
    engine_key,
    federation,
    history,
    missing,
    numpy_client,
    own_rows,
    stored,
)
from tests.oracles import numpy_personal as oracle
from tests.oracles.numpy_round import Client
from tests.precision import enable_x64
from tests.toys.quick import QUICK

pytestmark = pytest.mark.usefixtures("quick_compilation")

# A rate and a decay that no binary fraction equals, so that a rate in the wrong precision shows.
STEPS, EPOCHS = Local(0.3, 3, steps=3, decay=0.7), Local(0.3, 3, epochs=2, decay=0.7)
POPULATION, WITH_DATA = 5, (1, 2, 3, 4)  # client 0 has none
LOST = ((1,), (3,), (4,))  # by round
ROUNDS = len(LOST)
NOTHING = Examples(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32))

modes = pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])


@pytest.fixture(params=[pytest.param("single", marks=pytest.mark.thorough), "double"])
def tolerance(request):
    with enable_x64(request.param == "double"):
        yield 1e-10 if request.param == "double" else 1e-5


def run(algorithm, data=None):
    """States and records, with somebody lost in every round."""
    lossy = missing(algorithm, LOST)
    states, records = history(lambda numbers: lossy, federation() if data is None else data, ROUNDS)
    for t, lost in enumerate(LOST):
        assert set(taking_part(records, t)) == set(WITH_DATA) - set(lost)
    return states, records


def at(tree, t) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[t], np.float64), tree)


def of_client(tree, t, id) -> Any:
    return jax.tree.map(lambda leaf: leaf[id], at(tree, t))


def taking_part(records, t):
    return [int(id) for id in records["cohort_id"][t][records["cohort_present"][t]]]


def clients_of(records, t, how):
    return {id: numpy_client(federation(), id, t, how) for id in taking_part(records, t)}


def rate_of(how, t) -> float:
    return float(how.learning_rate * how.decay**t)


def last(states):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), states)


def deployed(algorithm, data, state, id):
    """What one seen client would use, and what all share."""
    data, state = stored(data), jax.tree.map(jnp.asarray, state)
    return Judge(algorithm, data, state, state.round).deploy(take(data.clients, id), take(state.clients, id))


def stranger(algorithm, data, state):
    """What somebody unseen would use, who has the rows of client 2."""
    data = stored(data)
    return Judge(algorithm, data, state, state.round, known=False).deploy(take(data.clients, 2))


# --- Ditto --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "arguments", "own"),
    [
        (STEPS, {}, STEPS),
        (EPOCHS, {"personal_steps": 4, "personal_learning_rate": 0.17}, STEPS._replace(steps=4, learning_rate=0.17)),
        (STEPS, {"personal_epochs": 2, "weights": "uniform"}, EPOCHS),
    ],
    ids=["steps", "epochs", "uniform"],
)
def test_ditto(how, arguments, own, tolerance):
    algorithm = ditto(TASK, how, regularisation=0.8, **arguments)
    states, records = run(algorithm)
    model = at(states.server.model, 0)
    personal: Any = dict.fromkeys(WITH_DATA, model)
    trained = set()
    by_size = arguments.get("weights") != "uniform"
    for t in range(ROUNDS):
        clients = clients_of(records, t, how)
        batches = {id: client._replace(batches=personal_batches(id, t, own)) for id, client in clients.items()}
        model, personal = oracle.ditto_round(
            model, personal, clients, batches, rate_of(how, t), rate_of(own, t), 0.8, by_size=by_size
        )
        trained |= set(clients)
        close(at(states.server.model, t + 1), model, tolerance)
        for id in WITH_DATA:
            close(of_client(states.clients.personal, t + 1, id), personal[id], tolerance)
        assert set(np.flatnonzero(states.clients.trained[t + 1])) == trained
    for id in range(POPULATION):
        found, common = deployed(algorithm, federation(), last(states), id)
        close(found, personal[id] if id in trained else model, tolerance)
        close(common, model, tolerance)
    close(stranger(algorithm, federation(), last(states))[0], model, tolerance)


def personal_batches(id, t, how):
    key = jax.random.fold_in(jax.random.fold_in(engine_key(jnp.int32(id), t), int(Stream.PERSONAL_MODEL)), 0)
    return batches_of(drawn_with(key, stored(federation()).clients.train, jnp.int32(id), how))


def _drawn_with(key, rows, id, how):
    return training.draw(key, Subset(NOTHING, take(rows, id)), how)


drawn_with = jax.jit(_drawn_with, static_argnames="how", compiler_options=QUICK)


# --- FedALA -------------------------------------------------------------------------------------------------


@jax.jit
def _share(key, rows, id, share):
    """The rows on which a client learns its weights: positions in its own list, and how many."""
    own = take(rows, id)
    order = training.shuffle(jax.random.fold_in(key, 0), own.size, own.index.shape[-1])
    return order, jnp.maximum(1, jnp.round(share * own.size).astype(jnp.int32))


def learning_epochs(id, t, how, share, most):
    """Batches of each epoch in which the engine's client learns its weights; asking for one too many is an error."""
    rows = stored(federation()).clients.train
    key = jax.random.fold_in(engine_key(jnp.int32(id), t), int(Stream.MIXING_WEIGHTS))
    order, count = _share(key, rows, jnp.int32(id), share)
    some = Rows(rows.index, jnp.full(rows.size.shape, count))
    for number in range(most):
        own_key = jax.random.fold_in(jax.random.fold_in(key, 1), number)
        drawn = drawn_with(jax.random.fold_in(own_key, 0), some, jnp.int32(id), Local(1, how.batch_size, epochs=1))
        yield [[int(order[position]) for position in batch] for batch in batches_of(drawn)]


# Features of which some are large, so that the loss does not settle at once.
WIDE = federation(x=np.random.default_rng(1).normal(size=(17, 3)) * np.array([1.0, 6.0, 9.0]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "layers", "top"),
    [(STEPS, 1, ("w",)), (EPOCHS, 2, ("b", "w")), (STEPS, 0, ("b", "w"))],
    ids=["steps-1", "epochs-2", "steps-all"],
)
@pytest.mark.parametrize("data", ["usual", "wide"])
def test_fedala(how, layers, top, data, tolerance):
    most, weight_rate = 12, 0.9
    data = WIDE if data == "wide" else federation()
    algorithm = fedala(TASK, how, layers=layers, weight_learning_rate=weight_rate, sample=0.7, most_epochs=most)
    states, records = run(algorithm, data)
    model = at(states.server.model, 0)
    state = {id: oracle.Ala(model, {name: np.ones_like(model[name]) for name in top}, False) for id in WITH_DATA}
    counts = []
    for t in range(ROUNDS):
        clients = {id: numpy_client(data, id, t, how) for id in taking_part(records, t)}
        epochs = {id: learning_epochs(id, t, how, 0.7, most) for id in clients}
        before = state
        model, state, taken = oracle.fedala_round(model, state, clients, epochs, rate_of(how, t), weight_rate)
        counts += [(taken[id], before[id].learned) for id in clients]
        close(at(states.server.model, t + 1), model, 10 * tolerance)
        for id in WITH_DATA:
            close(of_client(states.clients.model, t + 1, id), state[id].model, 10 * tolerance)
            found = dict(zip(top, of_client(states.clients.weights, t + 1, id), strict=True))
            close(found, state[id].weights, 10 * tolerance)
            assert states.clients.learned[t + 1, id] == state[id].learned
    # Nothing in the first round; then until it settles, after 11 epochs or more, or the limit; then once.
    first = {taken for taken, learned in counts if not learned}
    assert 0 in first
    assert data is WIDE or 11 in first
    assert {11, most} >= first - {0} > set()
    assert {taken for taken, learned in counts if learned} == {1}
    moved = np.concatenate([leaf.ravel() for own in state.values() for leaf in own.weights.values()])
    assert (moved < 1).any()
    for id in range(POPULATION):
        found, common = deployed(algorithm, data, last(states), id)
        close(found, oracle.ala_start(model, state[id]) if id in WITH_DATA else model, 10 * tolerance)
        close(common, model, 10 * tolerance)
    close(stranger(algorithm, data, last(states))[0], model, 10 * tolerance)


# --- FedFomo ------------------------------------------------------------------------------------------------


def with_validation():
    """Clients who agree on labels and judge on rows of others as well; one of them has none for it."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(17, 3))
    data = federation(x=x, y=np.argmax(x @ rng.normal(size=(3, 4)), axis=1))
    index = (np.arange(6)[None, :] + 4 * np.arange(POPULATION)[:, None]) % 17
    valid = Rows(jnp.asarray(index, jnp.int32), jnp.asarray((6, 4, 0, 5, 6), jnp.int32))
    return data._replace(clients=data.clients._replace(valid=valid))


def judging_rows(data, id):
    valid = stored(data).clients.valid
    rows = np.asarray(valid.index)[id, : int(valid.size[id])]
    if not len(rows):
        x, y = own_rows(data, id)
        return x.astype(np.float64), y
    return np.asarray(data.examples.x, np.float64)[rows], np.asarray(data.examples.y)[rows]


@pytest.mark.thorough
@modes
@pytest.mark.parametrize("models_sent", [2, 9])
def test_fedfomo(how, models_sent, tolerance):
    data, most = with_validation(), min(models_sent, POPULATION)
    algorithm = fedfomo(TASK, how, models_sent=models_sent)
    states, records = run(algorithm, data)
    start = of_client(states.server.models.values, 0, 0)
    state = oracle.Fomo([start] * POPULATION, np.eye(POPULATION), [False] * POPULATION, [start] * POPULATION)
    np.testing.assert_array_equal(states.server.affinity[0], state.affinity)
    used, own = [], []
    for t in range(ROUNDS):
        clients = {id: numpy_client(data, id, t, how) for id in taking_part(records, t)}
        valid = {id: judging_rows(data, id) for id in clients}
        received = {id: oracle.fomo_received(state, id, most) for id in clients}
        for id, others in received.items():
            down = algorithm.down(take(states.server, t), Seat(jnp.int32(t), jnp.int32(id), jnp.int32(0)))
            assert np.asarray(down.id)[np.asarray(down.real)].tolist() == others
        state, given = oracle.fedfomo_round(state, clients, valid, rate_of(how, t), most)
        for id in range(POPULATION):
            close(of_client(states.server.models.values, t + 1, id), state.models[id], 10 * tolerance)
        np.testing.assert_allclose(
            states.server.affinity[t + 1], state.affinity, rtol=100 * tolerance, atol=100 * tolerance
        )
        assert states.server.uploaded[t + 1].tolist() == list(state.uploaded)
        for id in range(POPULATION):
            close(of_client(states.clients.before, t + 1, id), state.before[id], 10 * tolerance)
        better = [sum(weight > 0 for weight in given[id].values()) for id in clients]
        assert records["better"][t][records["cohort_present"][t]].tolist() == better
        used += [weight for weights in given.values() for weight in weights.values()]
        own += [given[id][id] for id in clients if id in given[id]]
    # Some were better and some were worse, so that both kinds are under test.
    assert max(used) > 0
    assert min(used) < 0
    assert max(own) > 0  # local training has helped, so that the own model competes
    sizes = np.array([len(own_rows(data, id)[1]) for id in range(POPULATION)], float) * state.uploaded
    mean = oracle.mixed(list(state.models), list(sizes / sizes.sum()))
    close(stranger(algorithm, data, last(states))[0], mean, 10 * tolerance)
    assert algorithm.models is not None
    close(algorithm.models(last(states).server)["server_test"].model, mean, 10 * tolerance)
    for id in range(POPULATION):
        close(deployed(algorithm, data, last(states), id)[0], state.models[id], 10 * tolerance)


# --- FedProto -----------------------------------------------------------------------------------------------

WIDTH, CLASSES = 6, 5  # of which the last one never occurs
LAYERS = {
    "inner": 0.6 * np.random.default_rng(2).normal(size=(3, WIDTH)),
    "head": 0.6 * np.random.default_rng(3).normal(size=(WIDTH, CLASSES)),
}


def two_layers(params, x):
    return jnp.tanh(x @ params["inner"])


PROTO_TASK = Task(
    init=lambda key: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), LAYERS),
    logits=lambda params, x, key=None: two_layers(params, x) @ params["head"],
    loss=optax.softmax_cross_entropy_with_integer_labels,
    features=two_layers,
    classes=CLASSES,
    width=WIDTH,
    score=correct,
)


@pytest.mark.in_turn
@pytest.mark.sampled(6)
@modes
@pytest.mark.parametrize("weights", ["count", "uniform"])
def test_fedproto(how, weights, tolerance):
    algorithm = fedproto(PROTO_TASK, how, regularisation=1.7, weights=weights)
    states, records = run(algorithm)
    models, prototypes = [LAYERS] * POPULATION, {}
    close(at(states.clients.model, 0), {name: np.stack([leaf] * POPULATION) for name, leaf in LAYERS.items()})
    for t in range(ROUNDS):
        clients = clients_of(records, t, how)
        models, prototypes = oracle.fedproto_round(
            models, prototypes, clients, rate_of(how, t), 1.7, by_count=weights == "count"
        )
        for id in range(POPULATION):
            close(of_client(states.clients.model, t + 1, id), models[id], tolerance)
        shown = at(states.server.shown, t + 1)
        assert np.flatnonzero(shown.known).tolist() == sorted(prototypes)
        assert records["known_classes"][t] == len(prototypes)
        expected = np.stack([prototypes.get(label, np.zeros(WIDTH)) for label in range(CLASSES)])
        close(shown.prototypes, expected, tolerance)
    assert 0 < len(prototypes) < CLASSES

    x = np.random.default_rng(4).normal(size=(6, 3))
    for id in range(POPULATION):
        found, _ = deployed(algorithm, federation(), last(states), id)
        logits = np.asarray(algorithm.predict(found, jnp.asarray(x, jnp.result_type(float))))
        known = sorted(prototypes)
        close(logits[:, known], -oracle.nearest(models[id], x, prototypes), 10 * tolerance)
        assert (np.delete(logits, known, axis=1) == UNKNOWN).all()


@pytest.mark.in_turn
def test_a_class_that_nobody_has_keeps_its_prototype(tolerance):
    """One client a round, whose classes differ from those of the others."""
    x = np.random.default_rng(5).normal(size=(6, 3))
    data = federation((2, 2, 2), range(3), capacity=2, x=x, y=np.array([0, 1, 1, 2, 3, 3]))
    algorithm = missing(fedproto(PROTO_TASK, STEPS), ((1, 2), (0, 2), (0, 1)))
    states, records = history(lambda numbers: algorithm, data, 3)
    assert records["known_classes"].tolist() == [2, 3, 4]
    shown = states.server.shown
    np.testing.assert_array_equal(shown.prototypes[1][0], shown.prototypes[3][0])  # class 0: client 0 alone
    np.testing.assert_array_equal(shown.prototypes[2][1:3], shown.prototypes[3][1:3])
    assert (shown.prototypes[1][1] != shown.prototypes[2][1]).all()  # class 1: client 0, then client 1
    for t, (id, labels) in enumerate([(0, (0, 1)), (1, (1, 2)), (2, (3,))]):
        own = oracle.class_means(of_client(states.clients.model, t + 1, id), *own_rows(data, id))
        for label in labels:
            close(shown.prototypes[t + 1][label], own[label], tolerance)


@pytest.mark.thorough
def test_penalty_of_padding_and_of_unknown_classes_is_nothing(tolerance):
    """The first round of any lambda: no class is known."""
    found = [run(fedproto(PROTO_TASK, STEPS, regularisation=value))[0] for value in (0.0, 50.0)]
    close(at(found[0].clients.model, 1), at(found[1].clients.model, 1), tolerance)
    apart = np.abs(found[0].clients.model["inner"][2] - found[1].clients.model["inner"][2])
    assert apart.max() > 1e-3


def test_oracle_client_has_what_it_needs():
    """The gradient of the transcription agrees with differences of its loss."""
    rng = np.random.default_rng(6)
    client = Client(rng.normal(size=(4, 3)), np.array([0, 1, 1, 3]), [])
    prototypes = {1: rng.normal(size=WIDTH), 3: rng.normal(size=WIDTH)}

    def objective(params):
        z = oracle.representation(params, client.x)
        logits = z @ params["head"]
        entropy = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), client.y]
        penalty = [
            1.7 * np.mean((z[i] - prototypes[label]) ** 2) if label in prototypes else 0
            for i, label in enumerate(map(int, client.y))
        ]
        return np.mean(entropy + np.array(penalty))

    slope = oracle.proto_gradient(LAYERS, client.x, client.y, prototypes, 1.7)
    for name, leaf in LAYERS.items():
        direction = rng.normal(size=leaf.shape)
        ahead, behind = ({**LAYERS, name: leaf + step * direction} for step in (1e-5, -1e-5))
        difference = (objective(ahead) - objective(behind)) / 2e-5
        np.testing.assert_allclose((slope[name] * direction).sum(), difference, rtol=1e-7)
