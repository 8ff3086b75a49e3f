"""IFCA, FedSoft and FedEM against NumPy: two rounds, ragged clients, one without data, one that is lost in each."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedem, fedsoft, ifca
from fljax.core.trees import take
from fljax.engine.rounds.evaluate import Judge
from fljax.training import Local
from tests.algorithms.clustered_tools import SCATTERED
from tests.algorithms.rounds_tools import close, federation, history, missing, numpy_client, own_rows, stored
from tests.oracles import numpy_clustered as oracle
from tests.precision import enable_x64
from tests.toys.quick import QUICK

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS, EPOCHS = Local(0.3, 3, steps=3, decay=0.7), Local(0.3, 3, epochs=2, decay=0.7)
POPULATION = 5
LOST = ((1,), (3,))  # by round; client 0 has no data
WITH_DATA = (1, 2, 3, 4)


@pytest.fixture(params=[pytest.param("single", marks=pytest.mark.thorough), "double"])
def tolerance(request):
    with enable_x64(request.param == "double"):
        yield 1e-10 if request.param == "double" else 1e-5


def run(algorithm):
    """States and records, with somebody lost in every round."""
    lossy = missing(algorithm, LOST)
    return history(lambda numbers: lossy, federation(), len(LOST))


def double(tree, t) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[t], np.float64), tree)


def models_of(stacked, t) -> list[Any]:
    """A list of models from leaves ``[rounds + 1, models, ...]``."""
    at = double(stacked, t)
    return [{name: leaf[i] for name, leaf in at.items()} for i in range(len(at["b"]))]


def stack(models):
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def taking_part(records, t) -> list[int]:
    return [int(id) for id in records["cohort_id"][t][records["cohort_present"][t]]]


def clients_of(records, t, how):
    return {id: numpy_client(federation(), id, t, how) for id in taking_part(records, t)}


def rate_of(how, t) -> float:
    return float(how.learning_rate * how.decay**t)


@functools.partial(jax.jit, static_argnames="algorithm", compiler_options=QUICK)
def _deployed(algorithm, data, state, id):
    return Judge(algorithm, data, state, state.round).deploy(take(data.clients, id), take(state.clients, id))[0]


def deployed(algorithm, states, t, id):
    """What a client would use after t rounds."""
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[t]), states)
    return jax.tree.map(np.asarray, _deployed(algorithm, stored(federation()), state, jnp.int32(id)))


def all_rows(id):
    x, y = own_rows(federation(), id)
    return numpy_client(federation(), id, 0, STEPS)._replace(x=x.astype(np.float64), y=y)


# --- IFCA ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("how", "options"),
    [
        (STEPS, {"server_lr": 0.8}),
        (EPOCHS, {"weights": "size"}),
        (EPOCHS, {"averaging": "gradient", "server_lr": 1.3}),
    ],
    ids=["model", "size", "gradient"],
)
def test_ifca(how, options, tolerance):
    algorithm = ifca(SCATTERED, how, clusters=3, **options)
    states, records = run(algorithm)
    assert states.server.models["b"].dtype == jnp.result_type(float)
    models = models_of(states.server.models, 0)
    clusters = set()
    for t in range(len(LOST)):
        clients = clients_of(records, t, how)
        assert set(clients) == set(WITH_DATA) - set(LOST[t])
        models, choice, share = oracle.ifca_round(
            models,
            clients,
            rate_of(how, t),
            averaging=options.get("averaging", "model"),
            by_size=options.get("weights") == "size",
            server_lr=options.get("server_lr", 1.0),
        )
        close(double(states.server.models, t + 1), stack(models), tolerance)
        ids = records["cohort_id"][t]
        there = records["cohort_present"][t]
        np.testing.assert_array_equal(
            records["chosen_cluster"][t], [choice[id] if p else -1 for id, p in zip(ids, there, strict=True)]
        )
        close(records["weight"][t], [share[id] if p else 0 for id, p in zip(ids, there, strict=True)], tolerance)
        clusters |= set(choice.values())
    assert len(clusters) > 1  # else nothing would be told apart
    for id in WITH_DATA:
        close(deployed(algorithm, states, 2, id), models[oracle.nearest(models, all_rows(id))], tolerance)


# --- FedSoft ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("estimate_every", [1, 2])
@pytest.mark.parametrize("each", [1, 2, None], ids=str)
def test_fedsoft(each, estimate_every, tolerance):
    regularisation, smoother = 0.4, 1e-3
    algorithm = fedsoft(
        SCATTERED,
        EPOCHS,
        clusters=3,
        regularisation=regularisation,
        clients_per_cluster=each,
        estimate_every=estimate_every,
        smoother=smoother,
    )
    states, records = run(algorithm)
    models, u = models_of(states.server.models, 0), {}
    personal = [models[0]] * POPULATION
    close(double(states.clients.personal, 0), stack(personal), tolerance)
    trained = np.zeros(POPULATION, bool)
    for t in range(len(LOST)):
        if t % estimate_every == 0:
            u = {id: oracle.importance(models, all_rows(id), smoother) for id in WITH_DATA}
        expected = [u.get(id, [0.0] * 3) for id in range(POPULATION)]
        close(records["importance"][t], expected, tolerance)
        member = records["membership"][t]
        assert not member[0].any()
        if each is None:
            assert member[1:].all()
        else:
            np.testing.assert_array_equal(member.sum(axis=0), each)
        ids = records["cohort_id"][t].tolist()
        assert len(ids) == len(set(ids)) == (POPULATION if each is None else min(3 * each, POPULATION))
        assert set(taking_part(records, t)) == set(np.flatnonzero(member.any(axis=1))) - set(LOST[t])
        chosen = None if each is None else [np.flatnonzero(member[:, s]).tolist() for s in range(3)]
        models, personal = oracle.fedsoft_round(
            models, personal, u, clients_of(records, t, EPOCHS), rate_of(EPOCHS, t), regularisation, chosen
        )
        close(double(states.server.models, t + 1), stack(models), tolerance)
        close(double(states.clients.personal, t + 1), stack(personal), tolerance)
        trained[taking_part(records, t)] = True
        np.testing.assert_array_equal(states.clients.trained[t + 1], trained)
    for id in WITH_DATA:
        for t, others in ((0, models_of(states.server.models, 0)), (2, models)):
            own = oracle.importance(others, all_rows(id), smoother)
            apart = oracle.combined(others, list(np.array(own) / sum(own)))
            close(deployed(algorithm, states, t, id), personal[id] if t and trained[id] else apart, tolerance)


# --- FedEM --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("how", [STEPS, EPOCHS], ids=["steps", "epochs"])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_fedem(how, server_lr, tolerance):
    algorithm = fedem(SCATTERED, how, clusters=3, server_lr=server_lr, deploy_steps=2)
    states, records = run(algorithm)
    models = models_of(states.server.models, 0)
    mixture: Any = {id: np.full(3, 1 / 3) for id in range(POPULATION)}
    for t in range(len(LOST)):
        clients = clients_of(records, t, how)
        assert set(clients) == set(WITH_DATA) - set(LOST[t])
        models, mixture = oracle.fedem_round(models, mixture, clients, rate_of(how, t), server_lr=server_lr)
        close(double(states.server.models, t + 1), stack(models), tolerance)
        close(states.clients.mixture[t + 1], [mixture[id] for id in range(POPULATION)], tolerance)
        size = {id: len(client.y) for id, client in clients.items()}
        for row, id in enumerate(records["cohort_id"][t]):
            there = records["cohort_present"][t][row]
            np.testing.assert_allclose(
                records["mixture"][t][row], mixture[id] if there else np.zeros(3), rtol=tolerance, atol=tolerance
            )
            expected = size[id] / sum(size.values()) if there else 0
            np.testing.assert_allclose(records["weight"][t][row], expected, rtol=tolerance)
    assert np.ptp(mixture[2]) > 0.05  # the components differ
    for id in WITH_DATA:
        client: Any = all_rows(id)
        own: Any = mixture[id]
        for _ in range(2):
            own = oracle.expectation(models, own, client.x, client.y)[1]
        found = deployed(algorithm, states, 2, id)
        close(found.mixture, own, tolerance)
        logits = algorithm.predict(jax.tree.map(jnp.asarray, found), jnp.asarray(client.x, jnp.result_type(float)))
        close(logits, oracle.mixed_logits(models, own, client.x), tolerance)
