"""Ditto, APFL, FedALA, FedFomo and FedProto against NumPy: ragged clients, one without data, one lost in each round."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import training
from fljax.algorithms import apfl, ditto, fedala, fedfomo, fedproto
from fljax.algorithms.fedproto import UNKNOWN
from fljax.core.trees import take
from fljax.models import correct
from fljax.protocol import Rows, Seat, Task
from fljax.training import Local, Stream
from tests.algorithms import oracle_tools
from tests.algorithms.oracle_tools import (
    EPOCHS,
    POPULATION,
    STEPS,
    WITH_DATA,
    agrees,
    alike,
    deployed,
    each,
    modes,
    of_clients,
    rate_of,
    stack,
    stranger,
    taking_part,
)
from tests.algorithms.rounds_tools import (
    TASK,
    batches_of,
    close,
    drawn_with,
    engine_key,
    federation,
    numpy_client,
    own_rows,
    stored,
)
from tests.oracles import numpy_personal as oracle
from tests.oracles.numpy_round import Client

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOST = ((1,), (3,), (4,))  # by round


def run(algorithm, data=None):
    ran = oracle_tools.run(algorithm, data, LOST)
    for record, lost in zip(ran.by_round(), LOST, strict=True):
        assert set(taking_part(record)) == set(WITH_DATA) - set(lost)
    return ran


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
    trained, by_size = set(), arguments.get("weights") != "uniform"

    def step(round, state):
        clients = round.clients
        batches = {id: numpy_client(ran.data, id, round.t, own, Stream.PERSONAL_MODEL) for id in clients}
        trained.update(clients)
        assert set(np.flatnonzero(round.after.clients.trained)) == trained
        model, personal = state
        rate, own_rate = round.rate, rate_of(own, round.t)
        return oracle.ditto_round(model, personal, clients, batches, rate, own_rate, 0.8, by_size=by_size)

    ran = run(ditto(TASK, how, regularisation=0.8, **arguments))
    model = ran.by_state(0).server.model
    reads = lambda state: (state.server.model, of_clients(state.clients.personal))  # noqa: E731
    start = model, dict.fromkeys(WITH_DATA, model)
    model, personal = agrees(ran, step, how, reads, tolerance, start=start)
    for id in range(POPULATION):
        alike(deployed(ran, id), (personal[id] if id in trained else model, model), tolerance)
    close(stranger(ran), model, tolerance)


# --- APFL ---------------------------------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(how, adaptive, tolerance):
    """At a high rate shares come to the ends of their interval."""
    how, trained = how._replace(learning_rate=2.0 if adaptive else 0.3), set()

    def step(round, state):
        trained.update(round.clients)
        return oracle.apfl_round(state[0], state[1], round.clients, round.rate, adaptive=adaptive, by_size=adaptive)

    def reads(state):
        return state.server.model, {id: (own.own, own.alpha) for id, own in of_clients(state.clients).items()}

    ran = run(apfl(TASK, how, alpha=0.1, adaptive=adaptive, weights="size" if adaptive else "uniform"))
    model = ran.by_state(0).server.model
    start = model, dict.fromkeys(WITH_DATA, oracle.Apfl(model, 0.1))
    model, clients = agrees(ran, step, how, reads, tolerance, start=start)
    shares = {clients[id].alpha for id in trained}
    assert shares == {0.1} if not adaptive else 0 in shares and len(shares) > 2
    for id in range(POPULATION):
        used = clients[id].mixture(model) if id in trained else model
        alike(deployed(ran, id), (used, model), tolerance)
    close(stranger(ran), model, tolerance)


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
        drawn = drawn_with(own_key, some, jnp.int32(id), Local(1, how.batch_size, epochs=1))
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
    most, weight_rate, counts = 12, 0.9, []
    data = WIDE if data == "wide" else federation()

    def step(round, state):
        epochs = {id: learning_epochs(id, round.t, how, 0.7, most) for id in round.clients}
        model, after, taken = oracle.fedala_round(state[0], state[1], round.clients, epochs, round.rate, weight_rate)
        counts.extend((taken[id], state[1][id].learned) for id in round.clients)
        return model, after

    def reads(state):
        clients = state.clients
        named = clients._replace(weights=dict(zip(top, clients.weights, strict=True)))
        return state.server.model, {id: (own.model, own.weights, own.learned) for id, own in of_clients(named).items()}

    ran = run(fedala(TASK, how, layers=layers, weight_learning_rate=weight_rate, sample=0.7, most_epochs=most), data)
    model = ran.by_state(0).server.model
    start = model, {id: oracle.Ala(model, {name: np.ones_like(model[name]) for name in top}, False) for id in WITH_DATA}
    model, state = agrees(ran, step, how, reads, 10 * tolerance, start=start)
    # Nothing in the first round; then until it settles, after 11 epochs or more, or the limit; then once.
    first = {taken for taken, learned in counts if not learned}
    assert 0 in first
    assert data is WIDE or 11 in first
    assert {11, most} >= first - {0} > set()
    assert {taken for taken, learned in counts if learned} == {1}
    moved = np.concatenate([leaf.ravel() for own in state.values() for leaf in own.weights.values()])
    assert (moved < 1).any()
    for id in range(POPULATION):
        alike(deployed(ran, id), (oracle.ala_start(model, state[id]) if id in state else model, model), 10 * tolerance)
    close(stranger(ran), model, 10 * tolerance)


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
    algorithm, used, own = fedfomo(TASK, how, models_sent=models_sent), [], []

    def step(round, state):
        clients, server = round.clients, take(ran.states.server, round.t)
        for id in clients:
            down = algorithm.down(server, Seat(jnp.int32(round.t), jnp.int32(id), jnp.int32(0)))
            assert np.asarray(down.id)[np.asarray(down.real)].tolist() == oracle.fomo_received(state, id, most)
        valid = {id: judging_rows(data, id) for id in clients}
        state, given = oracle.fedfomo_round(state, clients, valid, round.rate, most)
        found = round.after.server.affinity
        np.testing.assert_allclose(found, state.affinity, rtol=100 * tolerance, atol=100 * tolerance)
        better = [sum(weight > 0 for weight in given[id].values()) for id in clients]
        assert round.record["better"][round.present].tolist() == better
        used.extend(weight for weights in given.values() for weight in weights.values())
        own.extend(given[id][id] for id in clients if id in given[id])
        return state

    def reads(state):  # but for the affinity, which is less exact
        return each(state.server.models.values), None, state.server.uploaded, each(state.clients.before)

    ran = run(algorithm, data)
    start = each(ran.by_state(0).server.models.values)[0]
    state = oracle.Fomo([start] * POPULATION, np.eye(POPULATION), [False] * POPULATION, [start] * POPULATION)
    np.testing.assert_array_equal(ran.states.server.affinity[0], state.affinity)
    state = agrees(ran, step, how, reads, 10 * tolerance, start=state)
    # Some were better and some were worse, so that both kinds are under test.
    assert max(used) > 0
    assert min(used) < 0
    assert max(own) > 0  # local training has helped, so that the own model competes
    sizes = np.array([len(own_rows(data, id)[1]) for id in range(POPULATION)], float) * state.uploaded
    mean = oracle.mixed(list(state.models), list(sizes / sizes.sum()))
    close(stranger(ran), mean, 10 * tolerance)
    assert algorithm.models is not None
    close(
        algorithm.models(jax.tree.map(jnp.asarray, take(ran.states.server, -1)))["server_test"].model,
        mean,
        10 * tolerance,
    )
    for id in range(POPULATION):
        close(deployed(ran, id)[0], state.models[id], 10 * tolerance)


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
    def step(round, state):
        models, prototypes = oracle.fedproto_round(
            state[0], state[1], round.clients, round.rate, 1.7, by_count=weights == "count"
        )
        shown = round.after.server.shown
        assert np.flatnonzero(shown.known).tolist() == sorted(prototypes)
        assert round.record["known_classes"] == len(prototypes)
        expected = np.stack([prototypes.get(label, np.zeros(WIDTH)) for label in range(CLASSES)])
        close(shown.prototypes, expected, tolerance)
        return models, prototypes

    def reads(state):
        known = np.flatnonzero(state.server.shown.known)
        return each(state.clients.model), {int(label): state.server.shown.prototypes[label] for label in known}

    algorithm = fedproto(PROTO_TASK, how, regularisation=1.7, weights=weights)
    ran = run(algorithm)
    close(ran.by_state(0).clients.model, stack([LAYERS] * POPULATION))
    models, prototypes = agrees(ran, step, how, reads, tolerance, start=([LAYERS] * POPULATION, {}))
    assert 0 < len(prototypes) < CLASSES

    x, known = np.random.default_rng(4).normal(size=(6, 3)), sorted(prototypes)
    for id in range(POPULATION):
        logits = np.asarray(algorithm.predict(deployed(ran, id)[0], jnp.asarray(x, jnp.result_type(float))))
        close(logits[:, known], -oracle.nearest(models[id], x, prototypes), 10 * tolerance)
        assert (np.delete(logits, known, axis=1) == UNKNOWN).all()


@pytest.mark.in_turn
def test_a_class_that_nobody_has_keeps_its_prototype(tolerance):
    """One client a round, whose classes differ from those of the others."""
    x = np.random.default_rng(5).normal(size=(6, 3))
    data = federation((2, 2, 2), range(3), capacity=2, x=x, y=np.array([0, 1, 1, 2, 3, 3]))
    ran = oracle_tools.run(fedproto(PROTO_TASK, STEPS), data, ((1, 2), (0, 2), (0, 1)))
    assert ran.records["known_classes"].tolist() == [2, 3, 4]
    shown = ran.states.server.shown
    np.testing.assert_array_equal(shown.prototypes[1][0], shown.prototypes[3][0])  # class 0: client 0 alone
    np.testing.assert_array_equal(shown.prototypes[2][1:3], shown.prototypes[3][1:3])
    assert (shown.prototypes[1][1] != shown.prototypes[2][1]).all()  # class 1: client 0, then client 1
    for t, (id, labels) in enumerate([(0, (0, 1)), (1, (1, 2)), (2, (3,))]):
        own = oracle.class_means(each(ran.by_state(t + 1).clients.model)[id], *own_rows(data, id))
        for label in labels:
            close(shown.prototypes[t + 1][label], own[label], tolerance)


@pytest.mark.thorough
def test_penalty_of_padding_and_of_unknown_classes_is_nothing(tolerance):
    """The first round of any lambda: no class is known."""
    found = [run(fedproto(PROTO_TASK, STEPS, regularisation=value)) for value in (0.0, 50.0)]
    first, other = (ran.by_state(1).clients.model for ran in found)
    close(first, other, tolerance)
    apart = np.abs(found[0].states.clients.model["inner"][2] - found[1].states.clients.model["inner"][2])
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
