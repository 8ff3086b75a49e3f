"""Validation losses of standalone models: on all paths, and against a computation by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data, models
from fljax.engine import Execution, estimate_standalone, standalone
from fljax.training import Local, RateSchedule

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

BLOBS = data.load("blobs", classes=4, dimension=3, samples=80, separation=1.0)
HOW = {"beta": 0.7, "clients": 5, "unseen": 2}
FEDERATION = data.federate(BLOBS, "dirichlet", valid_fraction=0.3, **HOW)
TASK = models.logistic_regression(BLOBS.x.shape[1:], 4)
LOCAL = Local(0.4, 4, steps=8)


@pytest.fixture(scope="module")
def judged():
    return standalone(TASK, FEDERATION, LOCAL, seeds=2, valid=True, keep_models=True)


def test_losses_are_those_of_the_models_on_validation_rows(judged):
    rows = data.row_numbers(FEDERATION, "valid")
    assert (judged.valid_loss.shape, judged.unseen_valid_loss.shape) == ((2, 5), (2, 2))
    for seed, client in np.ndindex(2, 5):
        model = jax.tree.map(lambda leaf, at=(seed, client): leaf[at], judged.params)
        x, y = (jnp.asarray(each)[rows[client]] for each in FEDERATION.examples[:2])
        expected = np.mean(TASK.loss(TASK.logits(model, x), y)) if len(rows[client]) else np.nan
        np.testing.assert_allclose(judged.valid_loss[seed, client], expected, rtol=1e-5)


def test_nothing_else_changes(judged):
    warming = RateSchedule("warmup_constant_schedule", (("warmup_steps", 9),))  # over rounds, of which there are none
    plain = standalone(TASK, FEDERATION, LOCAL._replace(keep=True, schedule=warming), seeds=2, keep_models=True)
    assert plain.valid_loss is None
    assert plain.unseen_valid_loss is None
    for name in ("threshold", "test_loss", "test_accuracy", "unseen_threshold", "unseen_test_loss"):
        np.testing.assert_allclose(getattr(plain, name), getattr(judged, name), rtol=1e-6)


def test_examples_on_the_host(judged):
    on_host = data.federate(BLOBS, "dirichlet", valid_fraction=0.3, examples="host", **HOW)
    found = standalone(TASK, on_host, LOCAL, seeds=2, valid=True)
    for name in ("threshold", "valid_loss", "unseen_valid_loss"):
        np.testing.assert_allclose(getattr(found, name), getattr(judged, name), rtol=1e-5, err_msg=name)


def test_validation_rows_are_needed():
    without = data.federate(BLOBS, "dirichlet", **HOW)
    message = r"^expected clients with validation rows for validation losses of standalone models, got none"
    for call in (standalone, estimate_standalone):
        with pytest.raises(ValueError, match=message):
            call(TASK, without, LOCAL, valid=True)
    assert estimate_standalone(TASK, FEDERATION, LOCAL, valid=True, execution=Execution(3)).model > 0
