"""bfloat16 products with float32 weights: what they cost in accuracy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import data, models
from fljax.algorithms import fedavg

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("model", [models.mlp, models.cnn], ids=["multilayer perceptron", "convolutions"])
def test_accuracy_survives_half_precision(model: Any) -> None:
    """FedAvg on digits learns as much, to two points of mean accuracy, and the weights stay float32."""
    digits = data.load("digits")
    federation = data.federate(digits, "dirichlet", clients=10, beta=1.0)
    local = fljax.Local(0.1, 16, steps=20)
    accuracy = {}
    for dtype in (None, "bfloat16"):
        prepare = models.standardise(digits.mean, digits.std)
        task = model(digits.x.shape[1:], digits.classes, prepare=prepare, compute_dtype=dtype)
        plan = fljax.Plan(fedavg, {"task": task, "local": local, "clients_per_round": 5})
        result = fljax.simulate(plan, federation, rounds=30, evaluate_every=30)
        assert all(leaf.dtype == jnp.float32 for leaf in _floats(result.state.server))
        accuracy[dtype] = float(np.nanmean(result.metrics.test_accuracy.isel(evaluated_round=-1)))
    assert accuracy[None] > 0.85
    assert abs(accuracy["bfloat16"] - accuracy[None]) < 0.02


def _floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
