"""FedNova, FedDyn and MOON: rounds of ragged clients against NumPy, and what their papers' equations must give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, feddyn, fednova, moon
from fljax.algorithms.moon import contrastive_loss
from fljax.training import Local
from tests.algorithms import quadratic as quadratics
from tests.algorithms.oracle_tools import SIZES, WITH_DATA, agrees, each, modes, of_clients, run
from tests.algorithms.rounds_tools import TASK, federation, history, missing
from tests.algorithms.test_personal_rounds import LAYERS, PROTO_TASK
from tests.oracles import numpy_drift as oracle

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("momentum", "mu", "weights", "server_lr"),
    [(0.0, 0.0, "size", 1.0), (0.9, 0.0, "size", 1.0), (0.0, 0.4, "uniform", 0.8)],
)
@modes
def test_fednova(momentum, mu, weights, server_lr, how, tolerance):
    def step(round, model):
        numbers = {"momentum": momentum, "mu": mu, "by_size": weights == "size", "server_lr": server_lr}
        return oracle.fednova_round(model, round.clients, round.rate, **numbers)

    local = how._replace(options=(("momentum", momentum),) if momentum else ())
    algorithm = fednova(TASK, local, mu=mu, weights=weights, server_lr=server_lr, clients_per_round=None)
    agrees(run(algorithm), step, how, lambda state: state.server.model, tolerance)


@pytest.mark.parametrize(
    ("steps", "momentum", "mu", "norm"), [(8, 0, 0, 8), (2, 0.9, 0, 2.9), (5, 0.9, 0, 13.1441), (3, 0, 1, 2.71)]
)
def test_accumulated_weights_of_gradients(steps, momentum, mu, norm):
    assert oracle.accumulated(steps, 0.1, momentum, mu) == pytest.approx(norm)


@pytest.mark.parametrize(("build", "first", "last"), [(fedavg, 0.1355, 0.730458), (fednova, 0.0903333, 0.474606)])
def test_fednova_finds_less_of_the_client_with_more_steps(build, first, last, x64):
    """Two clients ``(x - c)^2 / 2`` with c = 0 and 1, of which the first has one row and takes 1 step, the other 3."""
    data = federation((1, 3), (0, 1), capacity=3, x=np.array([[0.0, 1.0]] + 3 * [[1.0, 1.0]]), y=np.zeros(4, int))
    local = Local(0.1, 1, epochs=1)
    algorithm = build(quadratics.quadratic(jnp.zeros(1)), local, weights="uniform", clients_per_round=None)
    model = history(lambda _: algorithm, data, 300)[0].server.model["w"][:, 0]
    np.testing.assert_allclose(model[[1, -1]], [first, last], atol=1e-6)


@modes
@pytest.mark.parametrize("alpha_scale", ["none", "size"])
def test_feddyn(how, alpha_scale, tolerance):
    mean = SIZES.sum() / len(WITH_DATA)
    alpha = {id: 0.4 * (mean / SIZES[id] if alpha_scale == "size" else 1) for id in WITH_DATA}

    def reads(state):
        return oracle.Dynamic(state.server.model, state.server.correction, of_clients(state.clients.correction))

    algorithm = feddyn(TASK, how, alpha=0.4, alpha_scale=alpha_scale, clients_per_round=None)
    step = lambda round, state: oracle.feddyn_round(state, round.clients, round.rate, alpha)  # noqa: E731
    agrees(run(algorithm), step, how, reads, tolerance)


@pytest.mark.parametrize(
    ("absent", "first"),
    [(((), ()), [2.333333, 2.611111, 2.685185, 2.682099]), (((1,), (0,)), [0.5, 3.166667, 2.75, 2.694444])],
    ids=["all", "in turn"],
)
def test_feddyn_rests_at_the_minimum_of_all(absent, first, x64):
    """Two clients with ``a = (1, 4)``, ``c = (1, 3)`` and exact local minima: ``sum a c / sum a`` is 2.6."""
    algorithm = feddyn(quadratics.quadratic(jnp.zeros(1)), Local(0.25, 2, steps=60), alpha=2.0, clients_per_round=None)
    data = quadratics.clients(np.array([[1.0], [3.0]]), np.array([1.0, 4.0]))
    model = history(lambda _: missing(algorithm, 30 * absent), data, 60)[0].server.model["w"][:, 0]
    np.testing.assert_allclose(model[[1, 2, 3, 4, -1]], [*first, 2.6], atol=1e-6)


@modes
@pytest.mark.parametrize("buffer", [1, 2])
def test_moon(how, buffer, tolerance):
    """Three rounds, so that two earlier models are there; a client that is lost keeps those that it had."""

    def step(round, state):
        return oracle.moon_round(state[0], state[1], round.clients, round.rate, mu=2.0, temperature=0.7, buffer=buffer)

    def reads(state):
        counts = np.minimum(state.clients.rounds, buffer).astype(int)
        models = [each(models) for models in state.clients.earlier]
        return state.server.model, {id: [of[id] for of in models[: counts[id]]] for id in WITH_DATA}

    algorithm = moon(PROTO_TASK, how, mu=2.0, temperature=0.7, buffer=buffer, clients_per_round=None)
    start = LAYERS, {id: [] for id in WITH_DATA}
    _, earlier = agrees(run(algorithm, lost=((1,), (3,), ())), step, how, reads, tolerance, start=start)
    assert {len(models) for models in earlier.values()} == {buffer}


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
    others, exists = jnp.asarray([[shared], [earlier], [own]]), jnp.asarray([True, True, False])
    value, slope = jax.value_and_grad(lambda z: jnp.sum(contrastive_loss(z, others, exists, 0.5)))(jnp.asarray([own]))
    np.testing.assert_allclose(value, expected, atol=1e-6)
    assert np.isfinite(slope).all()
