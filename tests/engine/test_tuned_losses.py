"""Training losses of the models that clients tune before they use them: by hand, and with examples on the host."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import algorithms, data, engine, models, scenarios
from fljax.training import Local

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

BLOBS = data.load("blobs", classes=4, dimension=3, samples=80, separation=1.0)
HOW = {"beta": 0.7, "clients": 5, "unseen": 2}
TASK = models.logistic_regression(BLOBS.x.shape[1:], 4)
PLAIN = algorithms.fedavg(TASK, Local(0.4, 4, steps=2), clients_per_round=3)
TUNED = scenarios.finetuned(PLAIN, learning_rate=0.2, batch_size=4, steps=3)


@pytest.fixture(scope="module")
def result():
    return engine.simulate(TUNED, data.federate(BLOBS, "dirichlet", **HOW), rounds=2)


@pytest.mark.parametrize("unseen", [False, True])
def test_losses_are_those_of_the_deployed_models_on_training_rows(result, unseen):
    federation = data.federate(BLOBS, "dirichlet", **HOW)
    rows = data.row_numbers(federation, "train", unseen=unseen)
    found = result.metrics["unseen_train_loss" if unseen else "train_loss"].isel(seed=0, evaluated_round=-1).values
    for client, own in enumerate(rows):
        x, y = (jnp.asarray(each)[own] for each in federation.examples[:2])
        logits = TUNED.predict(result.deployed(client, unseen=unseen), x)
        np.testing.assert_allclose(found[client], np.mean(TASK.loss(logits, y)), rtol=1e-4)


def test_others_are_not_judged_on_training_rows():
    dropping = scenarios.dropout(PLAIN, rate=0.5)
    found = engine.simulate(dropping, data.federate(BLOBS, "dirichlet", **HOW), rounds=1).metrics
    assert not {"train_loss", "unseen_train_loss", "deployed_model_appeal"} & set(found)


def test_a_scenario_around_it_keeps_them(result):
    around = scenarios.dropout(TUNED, rate=0.0)
    found = engine.simulate(around, data.federate(BLOBS, "dirichlet", **HOW), rounds=2).metrics
    np.testing.assert_allclose(found["train_loss"], result.metrics["train_loss"], rtol=1e-5)


def test_examples_on_the_host(result):
    on_host = data.federate(BLOBS, "dirichlet", examples="host", **HOW)
    found = engine.simulate(TUNED, on_host, rounds=2).metrics
    for name in ("train_loss", "unseen_train_loss", "test_loss"):
        np.testing.assert_allclose(found[name], result.metrics[name], rtol=1e-4, err_msg=name)
