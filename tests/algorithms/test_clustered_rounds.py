"""IFCA, FedSoft and FedEM against NumPy: two rounds, ragged clients, one without data, one that is lost in each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedem, fedsoft, ifca
from tests.algorithms.clustered_tools import SCATTERED
from tests.algorithms.oracle_tools import (
    EPOCHS,
    LOST,
    POPULATION,
    STEPS,
    WITH_DATA,
    agrees,
    deployed,
    each,
    modes,
    run,
)
from tests.algorithms.rounds_tools import close, federation, numpy_client
from tests.oracles import numpy_clustered as oracle

pytestmark = pytest.mark.usefixtures("quick_compilation")


def all_rows() -> dict[int, Any]:
    """In the precision of the test."""
    return {id: numpy_client(federation(), id, 0, STEPS) for id in WITH_DATA}


def models_of(state: Any) -> list[Any]:
    return each(state.server.models)


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
    numbers = {"averaging": options.get("averaging", "model"), "server_lr": options.get("server_lr", 1.0)}
    clusters = set()

    def step(round, models):
        assert set(round.clients) == set(WITH_DATA) - set(LOST[round.t])
        by_size = options.get("weights") == "size"
        models, choice, share = oracle.ifca_round(models, round.clients, round.rate, by_size=by_size, **numbers)
        found, weight = round.record["chosen_cluster"], round.record["weight"]
        np.testing.assert_array_equal(found[round.present], round.by_row(choice))
        assert (found[~round.present] == -1).all()
        close(weight[round.present], round.by_row(share), tolerance)
        assert not weight[~round.present].any()
        clusters.update(choice.values())
        return models

    ran = run(ifca(SCATTERED, how, clusters=3, **options))
    assert ran.states.server.models["b"].dtype == jnp.result_type(float)
    models = agrees(ran, step, how, models_of, tolerance)
    assert len(clusters) > 1  # else nothing would be told apart
    for id, rows in all_rows().items():
        close(deployed(ran, id)[0], models[oracle.nearest(models, rows)], tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("estimate_every", [1, 2])
@pytest.mark.parametrize("chosen", [1, 2, None], ids=str)
def test_fedsoft(chosen, estimate_every, tolerance):
    options: dict[str, Any] = {"regularisation": 0.4, "smoother": 1e-3}
    u, trained = {}, np.zeros(POPULATION, bool)

    def step(round, state):
        if round.t % estimate_every == 0:
            u.update({id: oracle.importance(state[0], rows, options["smoother"]) for id, rows in all_rows().items()})
        close(round.record["importance"], [u.get(id, [0.0] * 3) for id in range(POPULATION)], tolerance)
        member, ids = round.record["membership"], round.record["cohort_id"].tolist()
        assert not member[0].any()
        if chosen is None:
            assert member[1:].all()
        else:
            np.testing.assert_array_equal(member.sum(axis=0), chosen)
        assert len(ids) == len(set(ids)) == (POPULATION if chosen is None else min(3 * chosen, POPULATION))
        assert set(round.clients) == set(np.flatnonzero(member.any(axis=1))) - set(LOST[round.t])
        trained[list(round.clients)] = True
        np.testing.assert_array_equal(round.after.clients.trained, trained)
        members = None if chosen is None else [np.flatnonzero(member[:, s]).tolist() for s in range(3)]
        return oracle.fedsoft_round(
            state[0], state[1], u, round.clients, round.rate, options["regularisation"], members
        )

    ran = run(
        fedsoft(SCATTERED, EPOCHS, clusters=3, clients_per_cluster=chosen, estimate_every=estimate_every, **options)
    )
    first = models_of(ran.by_state(0))
    reads = lambda state: (models_of(state), each(state.clients.personal))  # noqa: E731
    close(each(ran.by_state(0).clients.personal)[2], first[0], tolerance)
    models, personal = agrees(ran, step, EPOCHS, reads, tolerance, start=(first, [first[0]] * POPULATION))
    for id, rows in all_rows().items():
        for t, others in ((0, first), (len(LOST), models)):
            own = oracle.importance(others, rows, options["smoother"])
            apart = oracle.combined(others, list(np.array(own) / sum(own)))
            close(deployed(ran, id, t)[0], personal[id] if t and trained[id] else apart, tolerance)


@pytest.mark.thorough
@modes
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_fedem(how, server_lr, tolerance):
    def step(round, state):
        assert set(round.clients) == set(WITH_DATA) - set(LOST[round.t])
        models, mixture = oracle.fedem_round(state[0], state[1], round.clients, round.rate, server_lr=server_lr)
        size = {id: len(client.y) for id, client in round.clients.items()}
        share = np.array(round.by_row(size)) / sum(size.values())
        for name, expected in (("mixture", round.by_row(mixture)), ("weight", share)):
            found = round.record[name]
            np.testing.assert_allclose(found[round.present], expected, rtol=tolerance, atol=tolerance)
            assert not found[~round.present].any()
        return models, mixture

    algorithm = fedem(SCATTERED, how, clusters=3, server_lr=server_lr, deploy_steps=2)
    ran = run(algorithm)
    reads = lambda state: (models_of(state), dict(enumerate(state.clients.mixture)))  # noqa: E731
    start = models_of(ran.by_state(0)), {id: np.full(3, 1 / 3) for id in range(POPULATION)}
    models, mixture = agrees(ran, step, how, reads, tolerance, start=start)
    assert np.ptp(mixture[2]) > 0.05  # the components differ
    for id, rows in all_rows().items():
        own: Any = mixture[id]
        for _ in range(2):
            own = oracle.expectation(models, own, rows.x, rows.y)[1]
        found = deployed(ran, id)[0]
        close(found.mixture, own, tolerance)
        logits = algorithm.predict(jax.tree.map(jnp.asarray, found), jnp.asarray(rows.x, jnp.result_type(float)))
        close(logits, oracle.mixed_logits(models, own, rows.x), tolerance)
