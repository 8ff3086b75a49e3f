"""FedNova, FedDyn and MOON: two rounds against NumPy on ragged clients, and what their papers' equations must give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, feddyn, fednova, moon
from fljax.algorithms.moon import contrastive_loss
from fljax.core.trees import take
from fljax.engine.rounds.states import initial_state, local_data
from fljax.protocol import Seat
from fljax.training import Local
from tests.algorithms import quadratic as quadratics
from tests.algorithms.oracle_tools import (
    EPOCHS,
    SIZES,
    STEPS,
    WITH_DATA,
    agrees,
    each,
    modes,
    of_clients,
    run,
)
from tests.algorithms.rounds_tools import TASK, close, federation, history, stored
from tests.algorithms.test_personal_rounds import LAYERS, PROTO_TASK
from tests.oracles import numpy_drift as oracle

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]


def model_of(state):
    return state.server.model


def equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# --- FedNova ------------------------------------------------------------------------------------------------

NOVA = {
    "plain": ({}, {}),
    "momentum": ({"momentum": 0.9}, {}),
    "proximal": ({}, {"mu": 0.4}),
    "uniform": ({}, {"server_lr": 0.8, "weights": "uniform"}),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", NOVA)
@modes
def test_fednova(name, how, tolerance):
    options, arguments = NOVA[name]

    def step(round, model):
        counts = {len(client.batches) for client in round.clients.values()}
        assert len(counts) > 1 or how is STEPS
        given = {**options, **arguments}
        return oracle.fednova_round(
            model, round.clients, round.rate, by_size=given.pop("weights", "size") == "size", **given
        )

    local = how._replace(options=tuple(options.items()))
    agrees(run(fednova(TASK, local, clients_per_round=None, **arguments)), step, how, model_of, tolerance)


@pytest.mark.parametrize("how", [STEPS, Local(0.3, 3, epochs=2)], ids=["steps", "epochs"])
def test_fednova_with_equal_steps_is_fedavg(how):
    data = federation() if how is STEPS else federation((4, 5, 6), (2, 0, 1), capacity=6)
    algorithms = [build(TASK, how, clients_per_round=None) for build in (fednova, fedavg)]
    found = [history(lambda _, algorithm=algorithm: algorithm, data, 3)[0].server for algorithm in algorithms]
    equal(*found)


def work_of(momentum=None, mu=0.0, steps=3, most=8):
    """``A_k`` of clients that take ``steps`` and ``most`` steps, by the messages that they send."""
    options = () if momentum is None else (("momentum", momentum),)
    data = stored(federation((steps, most), (0, 1), capacity=most))
    algorithm = fednova(TASK, Local(0.1, 1, epochs=1, options=options), mu=mu, clients_per_round=None)
    state = initial_state(algorithm, data, jnp.uint32(7))

    def one(id):
        seat = Seat(jnp.int32(0), id, jnp.int32(0))
        return algorithm.train(
            jax.random.key(1), seat, state.server.model, (), local_data(data, take(data.clients, id))
        )[0].work

    return np.array([one(jnp.int32(id)) for id in range(2)]) * oracle.accumulated(most, 0.1, momentum or 0.0, mu)


def test_accumulated_weights_of_gradients(x64):
    np.testing.assert_allclose(work_of(0.9, steps=2)[0], 2.9)
    np.testing.assert_allclose(work_of(0.9, steps=5)[0], 13.1441)
    np.testing.assert_allclose(work_of(mu=1.0, steps=3)[0], 2.71)
    np.testing.assert_allclose(work_of(), [3, 8])


def drifted(build, rounds, **options):
    """Two clients ``(x - c)^2 / 2`` with c = 0 and 1, of which the first has one row and takes 1 step, the other 3."""
    task = quadratics.quadratic(jnp.zeros(1))
    x = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    data = federation((1, 3), (0, 1), capacity=3, x=x, y=np.zeros(4, int))
    algorithm = build(task, Local(0.1, 1, epochs=1), weights="uniform", clients_per_round=None, **options)
    return np.asarray(history(lambda _: algorithm, data, rounds)[0].server.model["w"])[:, 0]


def test_fednova_finds_less_of_the_client_with_more_steps(x64):
    nova, plain = drifted(fednova, 300), drifted(fedavg, 300)
    np.testing.assert_allclose([plain[1], nova[1]], [0.1355, 0.0903333], atol=1e-6)
    np.testing.assert_allclose([plain[-1], nova[-1]], [0.730458, 0.474606], atol=1e-6)


# --- FedDyn -------------------------------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("alpha_scale", ["none", "size"])
def test_feddyn(how, alpha_scale, tolerance):
    mean = SIZES.sum() / len(WITH_DATA)
    alpha = {id: 0.4 * (mean / SIZES[id] if alpha_scale == "size" else 1) for id in WITH_DATA}

    def reads(state):
        return oracle.Dynamic(state.server.model, state.server.correction, of_clients(state.clients.correction))

    ran = run(feddyn(TASK, how, alpha=0.4, alpha_scale=alpha_scale, clients_per_round=None))
    last = agrees(
        ran, lambda round, state: oracle.feddyn_round(state, round.clients, round.rate, alpha), how, reads, tolerance
    )
    close(last.correction, oracle.mean(list(last.own.values())), 1e-10)


def dynamic(clients_per_round):
    """Two clients with ``a = (1, 4)``, ``c = (1, 3)`` and exact local minima."""
    curvature, centres = np.array([1.0, 4.0]), np.array([[1.0], [3.0]])
    task = quadratics.quadratic(jnp.zeros(1))
    usual = feddyn(task, Local(0.25, 2, steps=60), alpha=2.0, clients_per_round=clients_per_round)

    def in_turn(key, round, server, ballots, available):
        server, cohort, info = usual.select(key, round, server, ballots, available)
        return server, cohort._replace(id=jnp.full(1, round % 2, jnp.int32)), info

    algorithm = usual if clients_per_round is None else usual._replace(select=in_turn)
    data = quadratics.clients(centres, curvature)
    return algorithm, data, sum(curvature * centres[:, 0]) / sum(curvature)


@pytest.mark.parametrize(
    ("clients_per_round", "first"),
    [(None, [2.333333, 2.611111, 2.685185, 2.682099]), (1, [0.5, 3.166667, 2.75, 2.694444])],
    ids=["all", "in turn"],
)
def test_feddyn_rests_at_the_minimum_of_all(clients_per_round, first, x64):
    algorithm, data, optimum = dynamic(clients_per_round)
    states, _ = history(lambda _: algorithm, data, 60)
    model = np.asarray(states.server.model["w"])[1:, 0]
    np.testing.assert_allclose(model[:4], first, atol=1e-6)
    np.testing.assert_allclose(model[-1], optimum, atol=1e-6)
    own = np.asarray(states.clients.correction["w"])
    np.testing.assert_allclose(states.server.correction["w"], own.mean(axis=1), atol=1e-12)


def test_a_round_of_nobody_moves_no_correction_into_the_model():
    ran = run(feddyn(TASK, STEPS, clients_per_round=None), lost=((), WITH_DATA))
    equal(ran.by_state(1).server, ran.by_state(2).server)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(ran.last.server.correction))


# --- MOON ---------------------------------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("buffer", [1, 2])
def test_moon(how, buffer, tolerance):
    """Three rounds, so that two earlier models are there; a client that is lost keeps those that it had."""

    def step(round, state):
        model, earlier = state
        return oracle.moon_round(model, earlier, round.clients, round.rate, mu=2.0, temperature=0.7, buffer=buffer)

    def reads(state):
        earlier = [each(models) for models in state.clients.earlier]
        counts = np.minimum(state.clients.rounds, buffer).astype(int)
        return state.server.model, {id: [models[id] for models in earlier[: counts[id]]] for id in range(5)}

    ran = run(
        moon(PROTO_TASK, how, mu=2.0, temperature=0.7, buffer=buffer, clients_per_round=None), lost=((1,), (3,), ())
    )
    start = (LAYERS, {id: [] for id in WITH_DATA})
    _, earlier = agrees(ran, step, how, lambda state: agreed(reads(state)), tolerance, start=start)
    assert {len(models) for models in earlier.values()} == {buffer}


def agreed(state):
    """Only clients with data."""
    return state[0], {id: state[1][id] for id in WITH_DATA}


@pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])
def test_moon_without_its_term_is_fedavg(how):
    plain = run(fedavg(PROTO_TASK, how, clients_per_round=None)).last.server
    equal(run(moon(PROTO_TASK, how, mu=0, clients_per_round=None)).last.server, plain)
    close(run(moon(PROTO_TASK, how, mu=jnp.asarray(0.0), clients_per_round=None)).last.server.model, plain.model, 1e-5)


@pytest.mark.parametrize(
    ("own", "shared", "earlier", "expected"),
    [
        ((1.0, 0.0), (2.0, 0.0), (0.0, 3.0), 0.126928),
        ((1.0, 0.0), (0.0, 2.0), (3.0, 0.0), 2.126928),
        ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), 0.693147),
        ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), 0.693147),  # a representation of zeros
    ],
)
def test_the_contrastive_loss(own, shared, earlier, expected):
    others = jnp.asarray([[shared], [earlier], [own]])
    exists = jnp.asarray([True, True, False])
    value, slope = jax.value_and_grad(lambda z: jnp.sum(contrastive_loss(z, others, exists, 0.5)))(jnp.asarray([own]))
    np.testing.assert_allclose(value, expected, atol=1e-6)
    assert np.isfinite(slope).all()


def test_in_its_first_round_a_client_of_moon_trains_as_in_fedavg():
    first = [run(build(PROTO_TASK, STEPS, clients_per_round=None), lost=((),)).last for build in (moon, fedavg)]
    close(first[0].server.model, first[1].server.model, 1e-6)
