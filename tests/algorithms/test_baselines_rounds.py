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
from fljax.protocol import Subset
from fljax.training import Local, OptimizerSettings
from tests.algorithms import oracle_tools
from tests.algorithms.oracle_tools import (
    EPOCHS,
    LOST,
    NOTHING,
    SIZES,
    STEPS,
    WITH_DATA,
    agrees,
    of_clients,
    taking_part,
)
from tests.algorithms.rounds_tools import TASK, batches_of, close, engine_key, federation, own_rows, stored
from tests.oracles import numpy_baselines as oracle
from tests.oracles import numpy_round
from tests.toys.quick import QUICK

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

UNIFORM = np.array([0, 0.25, 0.25, 0.25, 0.25])  # by id


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
    """Two rounds; all who have data are asked unless ``clients_per_round`` is less."""
    ran = oracle_tools.run(build(TASK, how, clients_per_round=clients_per_round, **arguments))
    for record, lost in zip(ran.by_round(), LOST, strict=True):
        assert set(taking_part(record)) == set(asked(record)) - set(lost)
        assert len(asked(record)) == (clients_per_round or len(WITH_DATA))
    return ran


def asked(record):
    """Those who were selected, also where they are lost."""
    return [int(id) for id in record["cohort_id"] if id in WITH_DATA]


def model_of(state):
    return state.server.model


@cases(
    ["how", "arguments"],
    {"size": (STEPS, {"weights": "size"}), "uniform": (EPOCHS, {"weights": "uniform", "server_lr": 0.8})},
    ["size-single", "uniform-double"],
)
def test_fedprox(how, arguments, tolerance):
    options = {"by_size": arguments["weights"] == "size", "server_lr": arguments.get("server_lr", 1.0)}
    step = lambda round, model: oracle.fedprox_round(model, round.clients, round.rate, 0.6, **options)  # noqa: E731
    agrees(run(fedprox, how, mu=0.6, **arguments), step, how, model_of, tolerance)


@pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])
def test_stragglers_of_fedprox_train_less(how, x64):
    taken = []

    def step(round, model):
        clients = {}
        for id, client in round.clients.items():
            rows = take(stored(federation()).clients.train, id)
            key = training.stream(engine_key(jnp.int32(id), jnp.int32(round.t)), training.Stream.WORK)
            steps = int(work(key, how, rows, 0.7))
            assert 0 < steps <= len(client.batches)
            taken.append((steps, len(client.batches)))
            clients[id] = client._replace(batches=client.batches[:steps])
        return oracle.fedprox_round(model, clients, round.rate, 0.6)

    agrees(run(fedprox, how, mu=0.6, stragglers=0.7), step, how, model_of, 1e-10)
    assert any(steps < usual for steps, usual in taken)


def test_without_stragglers_nothing_changes():
    plain = run(fedprox, STEPS, mu=0.6)
    jax.tree.map(np.testing.assert_array_equal, plain.states, run(fedprox, STEPS, mu=0.6, stragglers=0).states)
    traced = run(fedprox, STEPS, mu=0.6, stragglers=jnp.asarray(0.0))
    close(traced.last.server.model, plain.last.server.model, 1e-5)


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
    def step(round, state):
        mass = np.array(round.by_row(SIZES if weights == "size" else np.ones(5)), float)
        np.testing.assert_allclose(round.record["weight"][round.present], mass / mass.sum(), rtol=1e-6)
        np.testing.assert_array_equal(round.record["weight"][~round.present], 0)
        sizes = dict(enumerate(SIZES)) if weights == "size" else None
        return oracle.scaffold_round(state, round.clients, round.rate, option, sizes=sizes, server_lr=0.9)

    def reads(state):
        return oracle.Scaffold(state.server.model, state.server.control, of_clients(state.clients.control))

    agrees(run(scaffold, how, option=option, weights=weights, server_lr=0.9), step, how, reads, tolerance)


def test_scaffolds_variate_is_the_mean_by_size(x64):
    """... of all c_k, also of those who never took part."""
    states = run(scaffold, STEPS, clients_per_round=2, weights="size").states
    sizes = SIZES[list(WITH_DATA)] / SIZES.sum()
    for name, found in states.server.control.items():
        own = states.clients.control[name][:, list(WITH_DATA)]
        np.testing.assert_allclose(found, np.einsum("k,tk...->t...", sizes, own), rtol=1e-9, atol=1e-12)


@functools.partial(jax.jit, static_argnames="how", compiler_options=QUICK)
def one_of_many(clients, id, round, batch, how):
    """The batches of Per-FedAvg: the client's key of batches is folded once more, by the number of the batch."""
    key = jax.random.fold_in(jax.random.fold_in(engine_key(id, round), 0), batch)
    return training.draw(key, Subset(NOTHING, take(clients.train, id)), how)


def triples(id, t, how):
    data = federation()
    drawn = [batches_of(one_of_many(stored(data).clients, jnp.int32(id), jnp.int32(t), i, how)) for i in range(3)]
    x, y = own_rows(data, id)
    return oracle.Triples(x.astype(np.float64), y, list(zip(*drawn, strict=True)))


@pytest.mark.quick
@pytest.mark.sampled(3)
@cases(
    ["how", "hessian", "weights", "alpha"],
    {
        "steps-none": (STEPS, "none", "uniform", 0.2),
        "epochs-none": (EPOCHS, "none", "uniform", 0.2),
        "steps-exact": (STEPS, "exact", "uniform", 0.2),
        "epochs-exact": (EPOCHS, "exact", "uniform", 0.2),
        "steps-difference": (STEPS, "difference", "uniform", 0.2),
        "epochs-difference": (EPOCHS, "difference", "uniform", 0.2),
        "epochs-size": (EPOCHS, "none", "size", 0.2),
        "steps-none-local": (STEPS, "none", "uniform", "local"),
        "epochs-exact-local": (EPOCHS, "exact", "uniform", "local"),
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
def test_perfedavg(how, hessian, weights, alpha, tolerance):
    options: Any = {"hessian": hessian, "delta": 0.01, "server_lr": 0.9}

    def step(round, model):
        clients = {id: triples(id, round.t, how) for id in round.clients}
        inner = round.rate if alpha == "local" else alpha
        return oracle.perfedavg_round(model, clients, round.rate, inner, by_size=weights == "size", **options)

    agrees(run(perfedavg, how, alpha=alpha, weights=weights, **options), step, how, model_of, tolerance)


@cases(
    ["how", "weights"],
    {"steps": (STEPS, "uniform"), "epochs": (EPOCHS, "uniform"), "steps-size": (STEPS, "size")},
    ["steps-single", "epochs-double", "steps-size-double"],
)
def test_pfedme(how, weights, tolerance):
    options = {"regularisation": 2.0, "personal_steps": 3}

    def step(round, state):
        numbers = {"personal_rate": 0.15, "decay": 0.05, "beta": 0.7, "by_size": weights == "size", **options}
        return oracle.pfedme_round(state[0], state[1], round.clients, round.rate, **numbers)

    rates = {"personal_learning_rate": 0.15, "personal_weight_decay": 0.05, "server_lr": 0.7}
    reads = lambda state: (state.server.model, of_clients(state.clients.personal))  # noqa: E731
    agrees(run(pfedme, how, weights=weights, **rates, **options), step, how, reads, tolerance)


@MODES
def test_qffl(how, tolerance):
    q = 2.5 if how is STEPS else 0.4

    def step(round, model):
        model, losses = oracle.qffl_round(model, round.clients, round.rate, q, server_lr=0.9)
        close(round.record["loss"][round.present], round.by_row(losses), tolerance)
        assert np.isnan(round.record["loss"][~round.present]).all()
        return model

    agrees(run(qffl, how, q=q, server_lr=0.9), step, how, model_of, tolerance)


def afl_of(state):
    return state.server.model, state.server.mixture, state.server.average


def check_afl(ran, how, oracle_round, tolerance, check, to_do=None):
    """Rounds of AFL, of which ``check`` is told the round, and lambda before and after it."""

    def step(round, state):
        after = oracle_round(state, round.clients, round.rate, 0.9, server_lr=0.9)
        check(round, state.mixture, after.mixture)
        np.testing.assert_array_equal(round.record["mixture"], round.after.server.mixture)
        return after

    assert ran.states.server.mixture[0].tolist() == UNIFORM.tolist()
    model = ran.by_state(0).server.model
    reads = lambda state: (*afl_of(state), state.round)  # noqa: E731
    start = oracle.Afl(model, UNIFORM, model, 0)
    last = agrees(ran, step, how, reads, tolerance, start=start, to_do=to_do)
    assert np.ptp(last.mixture[1:]) > 0.05


@MODES
def test_afl(how, tolerance):
    """Whatever the steps say, a round is one batch."""

    def check(round, before, after):
        lost = list(LOST[round.t])
        assert after[lost] == before[lost]

    ran = run(afl, how, mixture_learning_rate=0.9, server_lr=0.9)
    check_afl(ran, how, oracle.afl_round, tolerance, check, how._replace(steps=1, epochs=None))


@cases(
    ["how", "clients_per_round"],
    {"steps": (STEPS, None), "epochs": (EPOCHS, None), "steps-part": (STEPS, 3), "epochs-part": (EPOCHS, 3)},
    ["steps-double", "steps-part-single", "epochs-part-double"],
)
def test_afl_with_local_training(how, clients_per_round, tolerance):
    """Also with a part of the clients: the others keep their lambda."""

    def check(round, before, after):
        others = [id for id in WITH_DATA if id not in round.clients]
        assert others
        assert (after[others] == before[others]).all()
        share = before / before[list(round.clients)].sum()
        close(round.record["weight"][round.present], round.by_row(share))

    ran = run(afl, how, clients_per_round, updates="model", mixture_learning_rate=0.9, server_lr=0.9)
    check_afl(ran, how, oracle.afl_model_round, tolerance, check)


def test_one_local_step_of_afl_is_its_gradient():
    how = STEPS._replace(steps=1, weight_decay=0.1)
    found, expected = (run(afl, how, updates=each, mixture_learning_rate=0.9) for each in ("model", "gradient"))
    close(found.last.server, expected.last.server)


# Clients 2 and 4 complain in both rounds, client 1 never, client 3 in the first, after which it is lost.
THRESHOLD = np.array([np.nan, 9.0, 0.2, 0.3, 0.1])


def mwfed_of(state):
    return state.server.model, state.server.weights


@cases(["how", "clients_per_round"], {"steps": (STEPS, None), "epochs": (EPOCHS, 3)}, ["steps-single", "epochs-double"])
def test_mwfed_in_local_steps(how, clients_per_round, tolerance):
    most, efforts = 4, []
    longest = how._replace(steps=how.steps and most * how.steps, epochs=how.epochs and most * how.epochs)
    usual = {id: how.steps or how.epochs * -(-int(SIZES[id]) // 3) for id in WITH_DATA}

    def step(round, state):
        # The server learns who is lost only after it has said how much is to be done.
        steps = oracle.mwfed_steps(state[1], asked(round.record), usual, most)
        efforts.append(steps)
        np.testing.assert_array_equal(round.record["share"], round.after.server.weights)
        options = {"factor": 3.0, "server_lr": 0.9}
        return oracle.mwfed_round(state[0], state[1], round.clients, round.rate, THRESHOLD, steps, **options)

    ran = run(mwfed, how, clients_per_round, threshold=THRESHOLD, factor=3.0, most=most, server_lr=0.9)
    agrees(ran, step, how, mwfed_of, tolerance, to_do=longest)
    np.testing.assert_allclose(ran.states.server.weights[0], UNIFORM, rtol=1e-6)
    assert all(usual[id] == count for id, count in efforts[0].items())  # complaints count from the next round on
    assert any(usual[id] != count for id, count in efforts[1].items())


@functools.partial(jax.jit, static_argnames=("batch", "count"), compiler_options=QUICK)
def pooled_rows(clients, id, round, batch, count):
    """Positions ``[count, batch]``: each of a client's batches of a pooled step has a key of its own."""

    def one(index):
        key = jax.random.fold_in(jax.random.fold_in(engine_key(id, round), 1), index)
        return jax.random.randint(jax.random.fold_in(key, 0), (batch,), 0, clients.train.size[id], jnp.int32)

    return jax.vmap(one)(jnp.arange(count))


@cases([], {"steps": ()}, ["steps-double"])
def test_mwfed_in_pooled_steps(tolerance):
    def step(round, state):
        samples, clients = oracle.mwfed_samples(state[1], 3, len(WITH_DATA)), {}
        assert samples.sum() > 10 if round.t == 0 else samples.max() > 3
        for id, client in round.clients.items():
            rows = pooled_rows(stored(federation()).clients, jnp.int32(id), jnp.int32(round.t), 3, 5)
            clients[id] = client._replace(batches=[np.asarray(rows).ravel()[: samples[id]].tolist()])
        part = np.array(round.by_row(samples))
        np.testing.assert_allclose(round.record["weight"][round.present], part / part.sum(), rtol=1e-6)
        return oracle.mwfed_pooled_round(state[0], state[1], clients, round.rate, THRESHOLD, factor=3.0, server_lr=0.9)

    ran = run(mwfed, STEPS, threshold=THRESHOLD, factor=3.0, mode="pooled", server_lr=0.9)
    agrees(ran, step, STEPS, mwfed_of, tolerance)


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


@cases(["name"], {name: (name,) for name in OPTIMIZERS}, ["fedavgm-single", "fedadam-double"])
def test_server_optimizer(name, tolerance):
    """Three rounds, the second of them empty: neither the model nor the optimizer's state moves."""
    formula, chosen = OPTIMIZERS[name]
    algorithm = fedavg(TASK, STEPS, clients_per_round=None, server_lr=0.4, server_optimizer=chosen)
    ran, moves = oracle_tools.run(algorithm, lost=((1,), WITH_DATA, ())), []
    before, empty = (jax.tree.map(lambda leaf, t=t: leaf[t], ran.states.server) for t in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, before, empty)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(before.optimizer))

    def step(round, model):
        if not round.clients:
            return model
        after = numpy_round.fedavg_round(model, list(round.clients.values()), round.rate)
        moves.append(oracle.plus(after, model, -1))
        return oracle.plus(model, list(formula(moves, 0.4))[-1])

    agrees(ran, step, STEPS, model_of, tolerance)
