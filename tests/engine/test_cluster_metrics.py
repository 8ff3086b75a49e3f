"""Cluster models are judged on the server's rows of each source distribution, also inside scenarios."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import Execution, simulate
from fljax.algorithms import fedem, ipfl
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.evaluate import evaluate_state, numbered
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol import Rows, unlabelled
from fljax.scenarios import byzantine, opting_out
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

TASK, LOCAL = logistic_regression(), Local(0.3, 4, steps=2)
PARTS = {"distribution_10": (3, 4, 5, 60), "distribution_2": (0, 1, 2), "distribution": (7,), "distribution_x": (8,)}


def federation():
    data = by_id(tiny_federation())
    held = {name: Rows(jnp.asarray(rows, jnp.int32), jnp.int32(len(rows))) for name, rows in PARTS.items()}
    return data._replace(held={**data.held, **held})


def by_hand(models, data):
    """``[C, distributions]`` accuracies, distributions in the order of their numbers."""
    found = []
    for weight, bias in zip(np.asarray(models.weight), np.asarray(models.bias), strict=True):
        found.append([])
        for name in ("distribution_2", "distribution_10"):
            x, y = (np.asarray(leaf)[list(PARTS[name])] for leaf in (data.examples.x, data.examples.y))
            found[-1].append(np.mean((x @ weight + bias).argmax(axis=1) == y))
    return np.array(found)


def test_distributions_are_known_by_their_numbers():
    assert numbered(federation(), "distribution") == ["distribution_2", "distribution_10"]
    assert numbered(tiny_federation(), "distribution") == []


@pytest.mark.thorough
@pytest.mark.parametrize("wrapped", [False, True])
def test_every_model_on_every_distribution(wrapped):
    algorithm = ipfl(TASK, LOCAL, clusters=3, clients_per_cluster=2)
    if wrapped:
        algorithm = opting_out(byzantine(algorithm, fraction=0.4), baseline=0.0)
    data = federation()
    state = initial_state(algorithm, data, jnp.uint32(0))
    rng = np.random.default_rng(1)
    models = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=(3, *leaf.shape[1:])), leaf.dtype), _models(state))
    found = unlabelled(evaluate_state(algorithm, data, Layout(5, 1, 5), _with_models(state, models)))
    np.testing.assert_allclose(found["cluster_accuracy"], by_hand(models, data), rtol=1e-6)
    assert found["cluster_loss"].shape == (3, 2)
    without = evaluate_state(algorithm, by_id(tiny_federation()), Layout(5, 1, 5), state)
    assert "cluster_accuracy" not in without


def _models(state):
    server = state.server
    while not hasattr(server, "models"):
        server = server.inner
    return server.models


def _with_models(state, models):
    def inside(server):
        if hasattr(server, "models"):
            return server._replace(models=models)
        return server._replace(inner=inside(server.inner))

    return state._replace(server=inside(state.server))


@pytest.mark.thorough
def test_results_are_labelled_by_cluster_and_distribution():
    result = simulate(
        fedem(TASK, LOCAL, clusters=3), federation(), rounds=2, seeds=(0, 1), execution=Execution(devices=1)
    )
    accuracy = result.metrics["cluster_accuracy"]
    assert (accuracy.dims, accuracy.shape) == (("seed", "evaluated_round", "cluster", "distribution"), (2, 3, 3, 2))
    for seed in range(2):
        models = jax.tree.map(lambda leaf, i=seed: leaf[i], result.state.server.models)
        np.testing.assert_allclose(accuracy[seed, -1], by_hand(models, federation()), rtol=1e-6)
