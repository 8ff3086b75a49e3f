"""The baselines against NumPy: two rounds, ragged clients, one without data, and one that is lost in each round."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.algorithms import afl, fedavg, fedprox, mwfed, perfedavg, pfedme, qffl, scaffold
from fljax.algorithms.fedprox import work
from fljax.core.trees import take
from fljax.protocol import Examples, Subset
from fljax.training import Local, OptimizerSettings
from tests.algorithms.rounds_tools import (
    TASK,
    batches_of,
    close,
    double,
    engine_key,
    federation,
    history,
    missing,
    numpy_client,
    own_rows,
    stored,
)
from tests.oracles import numpy_baselines as oracle
from tests.oracles import numpy_round
from tests.precision import enable_x64
from tests.toys.quick import QUICK

pytestmark = pytest.mark.usefixtures("quick_compilation")

# A rate and a decay that no binary fraction equals, so that a rate in the wrong precision shows.
STEPS, EPOCHS = Local(0.3, 3, steps=3, decay=0.7), Local(0.3, 3, epochs=2, decay=0.7)
WITH_DATA = (1, 2, 3, 4)  # client 0 has none
LOST = ((1,), (3,))  # by round
ROUNDS = len(LOST)


@pytest.fixture
def tolerance(request):
    with enable_x64(request.param == "double"):
        yield 1e-10 if request.param == "double" else 1e-5


def cases(names, values, quick):
    """Every value in both precisions; those that ``quick`` does not name by value and precision are slow."""
    found = []
    for label, value in values.items():
        for precision in ("single", "double"):
            name = f"{label}-{precision}"
            value = value if isinstance(value, tuple) and not isinstance(value, Local) else (value,)
            marks = [] if name in quick else [pytest.mark.slow]
            found.append(pytest.param(*value, precision, id=name, marks=marks))
    assert set(quick) <= {case.id for case in found}
    return pytest.mark.parametrize((*names, "tolerance"), found, indirect=["tolerance"])


MODES = cases(["how"], {"steps": STEPS, "epochs": EPOCHS}, ["steps-single", "epochs-double"])


def run(build, how, clients_per_round=None, **arguments):
    """States and records of two rounds; all who have data are asked unless ``clients_per_round`` is less."""
    algorithm = missing(build(TASK, how, clients_per_round=clients_per_round, **arguments), LOST)
    states, records = history(lambda numbers: algorithm, federation(), ROUNDS)
    for t, lost in enumerate(LOST):
        assert set(taking_part(records, t)) == set(asked(records, t)) - set(lost)
        assert len(asked(records, t)) == (clients_per_round or len(WITH_DATA))
    return states, records


def asked(records, t):
    """Those who were selected, also where they are lost."""
    return [int(id) for id in records["cohort_id"][t] if id in WITH_DATA]


def taking_part(records, t):
    return [int(id) for id in records["cohort_id"][t][records["cohort_present"][t]]]


def at(tree, t) -> Any:
    """One round of stacked trees, in double precision."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[t], np.float64), tree)


def of_client(tree, t, id):
    return jax.tree.map(lambda leaf: leaf[id], at(tree, t))


def clients_of(records, t, how):
    return {id: numpy_client(federation(), id, t, how) for id in taking_part(records, t)}


def rate_of(how, t) -> float:
    return float(how.learning_rate * how.decay**t)


def by_row(records, t, values):
    """Values by id, in the rows of those present."""
    return [values[id] for id in taking_part(records, t)]


@pytest.mark.in_turn
@cases(
    ["how", "arguments"],
    {"size": (STEPS, {"weights": "size"}), "uniform": (EPOCHS, {"weights": "uniform", "server_lr": 0.8})},
    ["size-single", "uniform-double"],
)
def test_fedprox(how, arguments, tolerance):
    states, records = run(fedprox, how, mu=0.6, **arguments)
    model, by_size = at(states.server.model, 0), arguments["weights"] == "size"
    for t in range(ROUNDS):
        clients = clients_of(records, t, how)
        server_lr = arguments.get("server_lr", 1.0)
        model = oracle.fedprox_round(model, clients, rate_of(how, t), 0.6, by_size=by_size, server_lr=server_lr)
        close(at(states.server.model, t + 1), model, tolerance)


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])
def test_stragglers_of_fedprox_train_less(how, x64):
    states, records = run(fedprox, how, mu=0.6, stragglers=0.7)
    model, taken = at(states.server.model, 0), []
    for t in range(ROUNDS):
        clients = {}
        for id, client in clients_of(records, t, how).items():
            rows = take(stored(federation()).clients.train, id)
            steps = int(
                work(training.stream(engine_key(jnp.int32(id), jnp.int32(t)), training.Stream.WORK), how, rows, 0.7)
            )
            assert 0 < steps <= len(client.batches)
            taken.append((steps, len(client.batches)))
            clients[id] = client._replace(batches=client.batches[:steps])
        model = oracle.fedprox_round(model, clients, rate_of(how, t), 0.6)
        close(at(states.server.model, t + 1), model, 1e-10)
    assert any(steps < usual for steps, usual in taken)


@pytest.mark.in_turn
def test_without_stragglers_nothing_changes():
    plain, _ = run(fedprox, STEPS, mu=0.6)
    jax.tree.map(np.testing.assert_array_equal, plain, run(fedprox, STEPS, mu=0.6, stragglers=0)[0])
    states, _ = run(fedprox, STEPS, mu=0.6, stragglers=jnp.asarray(0.0))
    close(at(states.server.model, ROUNDS), at(plain.server.model, ROUNDS), 1e-5)


@pytest.mark.thorough
@cases(
    ["how", "option", "weights"],
    {
        "steps-II": (STEPS, "II", "uniform"),
        "epochs-II": (EPOCHS, "II", "uniform"),
        "epochs-I": (EPOCHS, "I", "uniform"),
        "steps-I": (STEPS, "I", "uniform"),
        "steps-II-size": (STEPS, "II", "size"),
        "epochs-I-size": (EPOCHS, "I", "size"),
    },
    ["steps-II-single", "epochs-II-double", "steps-I-double", "steps-II-size-double", "epochs-I-size-single"],
)
def test_scaffold(how, option, weights, tolerance):
    states, records = run(scaffold, how, option=option, weights=weights, server_lr=0.9)
    sizes = {id: len(own_rows(federation(), id)[1]) for id in WITH_DATA}
    model = at(states.server.model, 0)
    state = oracle.Scaffold(model, oracle.zeros(model), {id: oracle.zeros(model) for id in WITH_DATA})
    for t in range(ROUNDS):
        clients = clients_of(records, t, how)
        mass = sizes if weights == "size" else None
        state = oracle.scaffold_round(state, clients, rate_of(how, t), option, sizes=mass, server_lr=0.9)
        check_weights(records, t, sizes, weights)
        close(at(states.server.model, t + 1), state.model, tolerance)
        close(at(states.server.control, t + 1), state.control, tolerance)
        for id in WITH_DATA:
            if any(leaf.any() for leaf in state.own[id].values()):
                close(of_client(states.clients.control, t + 1, id), state.own[id], tolerance)
            else:  # never took part
                assert not any(leaf.any() for leaf in of_client(states.clients.control, t + 1, id).values())


def check_weights(records, t, sizes, weights):
    mass = np.array([sizes[id] if weights == "size" else 1 for id in taking_part(records, t)])
    here = records["cohort_present"][t]
    np.testing.assert_allclose(records["weight"][t][here], mass / mass.sum(), rtol=1e-6)
    np.testing.assert_array_equal(records["weight"][t][~here], 0)


@pytest.mark.in_turn
def test_scaffolds_variate_is_the_mean_by_size(x64):
    """... of all c_k, also of those who never took part."""
    states, _ = run(scaffold, STEPS, clients_per_round=2, weights="size")
    sizes = np.array([len(own_rows(federation(), id)[1]) for id in WITH_DATA], float)
    for t in range(ROUNDS + 1):
        for name, found in at(states.server.control, t).items():
            own = at(states.clients.control, t)[name][list(WITH_DATA)]
            np.testing.assert_allclose(found, np.tensordot(sizes / sizes.sum(), own, 1), rtol=1e-9, atol=1e-12)


@functools.partial(jax.jit, static_argnames="how", compiler_options=QUICK)
def one_of_many(clients, id, round, batch, how):
    """The batches of Per-FedAvg: the client's key of batches is folded once more, by the number of the batch."""
    nothing = Examples(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32))
    key = jax.random.fold_in(jax.random.fold_in(engine_key(id, round), 0), batch)
    return training.draw(key, Subset(nothing, take(clients.train, id)), how)


def triples(id, t, how):
    data = federation()
    drawn = [batches_of(one_of_many(stored(data).clients, jnp.int32(id), jnp.int32(t), i, how)) for i in range(3)]
    x, y = own_rows(data, id)
    return oracle.Triples(x.astype(np.float64), y, list(zip(*drawn, strict=True)))


@pytest.mark.sampled(3)
@cases(
    ["how", "hessian"],
    {
        "steps-none": (STEPS, "none"),
        "epochs-none": (EPOCHS, "none"),
        "steps-exact": (STEPS, "exact"),
        "epochs-exact": (EPOCHS, "exact"),
        "steps-difference": (STEPS, "difference"),
        "epochs-difference": (EPOCHS, "difference"),
        "epochs-size": (EPOCHS, "none"),
        "steps-none-local": (STEPS, "none"),
        "epochs-exact-local": (EPOCHS, "exact"),
    },
    [
        "steps-none-single",
        "steps-exact-double",
        "epochs-difference-double",
        "epochs-size-double",
        "steps-none-local-single",
        "epochs-exact-local-double",
    ],
)
def test_perfedavg(how, hessian, tolerance, request):
    weights = "size" if "-size-" in request.node.name else "uniform"
    alpha: Any = "local" if "-local-" in request.node.name else 0.2
    states, records = run(perfedavg, how, alpha=alpha, hessian=hessian, delta=0.01, weights=weights, server_lr=0.9)
    options: Any = {"hessian": hessian, "delta": 0.01, "by_size": weights == "size", "server_lr": 0.9}
    model = at(states.server.model, 0)
    for t in range(ROUNDS):
        clients = {id: triples(id, t, how) for id in taking_part(records, t)}
        inner = rate_of(how, t) if alpha == "local" else alpha
        model = oracle.perfedavg_round(model, clients, rate_of(how, t), inner, **options)
        close(at(states.server.model, t + 1), model, tolerance)


@pytest.mark.in_turn
@cases(
    ["how", "weights"],
    {"steps": (STEPS, "uniform"), "epochs": (EPOCHS, "uniform"), "steps-size": (STEPS, "size")},
    ["steps-single", "epochs-double", "steps-size-double"],
)
def test_pfedme(how, weights, tolerance):
    options = {"regularisation": 2.0, "personal_steps": 3}
    rates = {"personal_learning_rate": 0.15, "personal_weight_decay": 0.05, "server_lr": 0.7}
    states, records = run(pfedme, how, weights=weights, **rates, **options)
    options["by_size"] = weights == "size"
    model = at(states.server.model, 0)
    personal: Any = dict.fromkeys(WITH_DATA, model)
    for t in range(ROUNDS):
        clients = clients_of(records, t, how)
        model, personal = oracle.pfedme_round(
            model, personal, clients, rate_of(how, t), personal_rate=0.15, decay=0.05, beta=0.7, **options
        )
        close(at(states.server.model, t + 1), model, tolerance)
        for id in WITH_DATA:
            close(of_client(states.clients.personal, t + 1, id), personal[id], tolerance)


@pytest.mark.in_turn
@MODES
def test_qffl(how, tolerance):
    q = 2.5 if how is STEPS else 0.4
    states, records = run(qffl, how, q=q, server_lr=0.9)
    model = at(states.server.model, 0)
    for t in range(ROUNDS):
        model, losses = oracle.qffl_round(model, clients_of(records, t, how), rate_of(how, t), q, server_lr=0.9)
        close(at(states.server.model, t + 1), model, tolerance)
        present = records["cohort_present"][t]
        close(records["loss"][t][present], by_row(records, t, losses), tolerance)
        assert np.isnan(records["loss"][t][~present]).all()


@pytest.mark.in_turn
@MODES
def test_afl(how, tolerance):
    """Whatever the steps say, a round is one batch."""
    states, records = run(afl, how, mixture_learning_rate=0.9, server_lr=0.9)
    assert states.server.mixture[0].tolist() == [0, 0.25, 0.25, 0.25, 0.25]
    model = at(states.server.model, 0)
    state = oracle.Afl(model, np.array([0, 0.25, 0.25, 0.25, 0.25]), model, 0)
    for t, lost in enumerate(LOST):
        clients = clients_of(records, t, how._replace(steps=1, epochs=None))
        before, state = state, oracle.afl_round(state, clients, rate_of(how, t), 0.9, server_lr=0.9)
        assert state.mixture[list(lost)] == before.mixture[list(lost)]
        close(at(states.server.model, t + 1), state.model, tolerance)
        close(at(states.server.average, t + 1), state.average, tolerance)
        close(at(states.server.mixture, t + 1), state.mixture, tolerance)
        np.testing.assert_array_equal(records["mixture"][t], states.server.mixture[t + 1])
    assert np.ptp(state.mixture[1:]) > 0.05


@pytest.mark.in_turn
@cases(
    ["how", "clients_per_round"],
    {"steps": (STEPS, None), "epochs": (EPOCHS, None), "steps-part": (STEPS, 3), "epochs-part": (EPOCHS, 3)},
    ["steps-double", "steps-part-single", "epochs-part-double"],
)
def test_afl_with_local_training(how, clients_per_round, tolerance):
    """Also with a part of the clients: the others keep their lambda."""
    arguments: Any = {"updates": "model", "mixture_learning_rate": 0.9, "server_lr": 0.9}
    states, records = run(afl, how, clients_per_round, **arguments)
    model = at(states.server.model, 0)
    state = oracle.Afl(model, np.array([0, 0.25, 0.25, 0.25, 0.25]), model, 0)
    for t in range(ROUNDS):
        clients = clients_of(records, t, how)
        before, state = state, oracle.afl_model_round(state, clients, rate_of(how, t), 0.9, server_lr=0.9)
        others = [id for id in WITH_DATA if id not in clients]
        assert others
        assert (state.mixture[others] == before.mixture[others]).all()
        close(at(states.server.model, t + 1), state.model, tolerance)
        close(at(states.server.average, t + 1), state.average, tolerance)
        close(at(states.server.mixture, t + 1), state.mixture, tolerance)
        here = records["cohort_present"][t]
        close(records["weight"][t][here], by_row(records, t, before.mixture / before.mixture[list(clients)].sum()))
    assert np.ptp(state.mixture[1:]) > 0.05


@pytest.mark.in_turn
def test_one_local_step_of_afl_is_its_gradient():
    how = STEPS._replace(steps=1, weight_decay=0.1)
    found, expected = (run(afl, how, updates=each, mixture_learning_rate=0.9)[0] for each in ("model", "gradient"))
    close(at(found.server, ROUNDS), at(expected.server, ROUNDS))


# Clients 2 and 4 complain in both rounds, client 1 never, client 3 in the first, after which it is lost.
THRESHOLD = np.array([np.nan, 9.0, 0.2, 0.3, 0.1])


@pytest.mark.in_turn
@cases(["how", "clients_per_round"], {"steps": (STEPS, None), "epochs": (EPOCHS, 3)}, ["steps-single", "epochs-double"])
def test_mwfed_in_local_steps(how, clients_per_round, tolerance):
    most = 4
    arguments = {"threshold": THRESHOLD, "factor": 3.0, "most": most, "server_lr": 0.9}
    states, records = run(mwfed, how, clients_per_round, **arguments)
    longest = how._replace(
        steps=how.steps and most * how.steps,
        epochs=how.epochs and most * how.epochs,
    )
    usual = {id: how.steps or how.epochs * -(-len(own_rows(federation(), id)[1]) // 3) for id in WITH_DATA}
    model, weights = at(states.server.model, 0), np.array([0, 0.25, 0.25, 0.25, 0.25])
    efforts = []
    for t in range(ROUNDS):
        # The server learns who is lost only after it has said how much is to be done.
        steps = oracle.mwfed_steps(weights, asked(records, t), usual, most)
        efforts.append(steps)
        clients = clients_of(records, t, longest)
        model, weights = oracle.mwfed_round(
            model, weights, clients, rate_of(how, t), THRESHOLD, steps, factor=3.0, server_lr=0.9
        )
        close(at(states.server.model, t + 1), model, tolerance)
        close(at(states.server.weights, t + 1), weights, tolerance)
        np.testing.assert_array_equal(records["share"][t], states.server.weights[t + 1])
    assert all(usual[id] == count for id, count in efforts[0].items())  # complaints count from the next round on
    assert any(usual[id] != count for id, count in efforts[1].items())


@functools.partial(jax.jit, static_argnames=("batch", "count"), compiler_options=QUICK)
def pooled_rows(clients, id, round, batch, count):
    """Positions ``[count, batch]``: each of a client's batches of a pooled step has a key of its own."""

    def one(index):
        key = jax.random.fold_in(jax.random.fold_in(engine_key(id, round), 1), index)
        return jax.random.randint(jax.random.fold_in(key, 0), (batch,), 0, clients.train.size[id], jnp.int32)

    return jax.vmap(one)(jnp.arange(count))


@pytest.mark.in_turn
@cases([], {"steps": ()}, ["steps-double"])
def test_mwfed_in_pooled_steps(tolerance):
    states, records = run(mwfed, STEPS, threshold=THRESHOLD, factor=3.0, mode="pooled", server_lr=0.9)
    data = federation()
    model, weights = at(states.server.model, 0), np.array([0, 0.25, 0.25, 0.25, 0.25])
    for t in range(ROUNDS):
        samples, clients = oracle.mwfed_samples(weights, 3, len(WITH_DATA)), {}
        assert samples.sum() > 10 if t == 0 else samples.max() > 3
        for id in taking_part(records, t):
            rows = pooled_rows(stored(data).clients, jnp.int32(id), jnp.int32(t), 3, 5)
            x, y = own_rows(data, id)
            batch = np.asarray(rows).ravel()[: samples[id]].tolist()
            clients[id] = numpy_round.Client(x.astype(np.float64), y, [batch])
        model, weights = oracle.mwfed_pooled_round(
            model, weights, clients, rate_of(STEPS, t), THRESHOLD, factor=3.0, server_lr=0.9
        )
        close(at(states.server.model, t + 1), model, tolerance)
        close(at(states.server.weights, t + 1), weights, tolerance)
        part = np.array(by_row(records, t, samples))
        np.testing.assert_allclose(records["weight"][t][records["cohort_present"][t]], part / part.sum(), rtol=1e-6)


# --- The server's optimizer ---------------------------------------------------------------------------------


def momentum(steps, rate):
    """FedAvgM: ``v <- 0.9 v + Delta``, ``w <- w + rate v``."""
    v = oracle.zeros(steps[0])
    for step in steps:
        v = oracle.plus(step, v, 0.9)
        yield oracle.mixed([v], [rate])


def adam(steps, rate):
    """FedAdam with the bias of its moments corrected, as Adam has it."""
    m, v = oracle.zeros(steps[0]), oracle.zeros(steps[0])
    for count, step in enumerate(steps, 1):
        m = oracle.mixed([m, step], [0.8, 0.2])
        v = oracle.mixed([v, {name: leaf**2 for name, leaf in step.items()}], [0.95, 0.05])
        yield {
            name: rate * (m[name] / (1 - 0.8**count)) / (np.sqrt(v[name] / (1 - 0.95**count)) + 0.01) for name in step
        }


OPTIMIZERS = {
    "fedavgm": (momentum, OptimizerSettings("sgd", (("momentum", 0.9),))),
    "fedadam": (adam, OptimizerSettings("adam", (("b1", 0.8), ("b2", 0.95), ("eps", 0.01)))),
}


@pytest.mark.in_turn
@cases(["name"], {name: (name,) for name in OPTIMIZERS}, ["fedavgm-single", "fedadam-double"])
def test_server_optimizer(name, tolerance):
    """Three rounds, the second of them empty: neither the model nor the optimizer's state moves."""
    formula, chosen = OPTIMIZERS[name]
    algorithm = fedavg(TASK, STEPS, clients_per_round=None, server_lr=0.4, server_optimizer=chosen)
    algorithm = missing(algorithm, ((1,), WITH_DATA, ()))
    states, records = history(lambda numbers: algorithm, federation(), 3)
    before, empty = (jax.tree.map(lambda leaf, t=t: leaf[t], states.server) for t in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, before, empty)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(before.optimizer))
    steps = []
    for t in (0, 2):
        model, clients = double(at(states.server.model, t)), clients_of(records, t, STEPS)
        after = numpy_round.fedavg_round(model, list(clients.values()), rate_of(STEPS, t))
        steps.append(oracle.plus(after, model, -1))
    for t, move in zip((0, 2), formula(steps, 0.4), strict=True):
        close(at(states.server.model, t + 1), oracle.plus(at(states.server.model, t), move), tolerance)
