"""A learning rate that ``decay`` brings to zero stops training; no seed diverges by it, and no gradient is NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import engine
from tests.laws.cases import ALGORITHMS, LOCAL, TASK, chosen, federation


@pytest.mark.in_turn
# 1e-41 is no normal number of float32 in round 2, 1e-61 is zero.
@pytest.mark.parametrize("decay", [1e-20, pytest.param(1e-30, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("scaffold", "qffl")))
def test_no_seed_diverges(name: str, decay: float) -> None:
    case = ALGORITHMS[name]
    algorithm = case.build(TASK, LOCAL._replace(decay=decay), **case.example)
    found = engine.simulate(algorithm, federation(), rounds=4, evaluate_every=4)
    assert found.diverged == ()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.state.server) if leaf.dtype.kind == "f")


@pytest.mark.in_turn
@pytest.mark.parametrize("decay", [1e-10, pytest.param(1e-18, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("scaffold", "qffl")))
def test_gradients_are_finite(name: str, decay: float) -> None:
    """The derivative of a quotient squares its divisor, which underflows sooner."""
    case = ALGORITHMS[name]

    def objective(numbers: jax.Array) -> jax.Array:
        local = LOCAL._replace(learning_rate=numbers[0], decay=numbers[1])
        end = fljax.rollout(case.build(TASK, local, **case.example), federation(), rounds=4)[0].server
        leaves = [leaf for leaf in jax.tree.leaves(end) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.asarray(sum(jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0)) for leaf in leaves))

    assert np.isfinite(jax.jit(jax.grad(objective))(jnp.array([0.2, decay], jnp.float32))).all()
