"""INCFL's streamed update beside the aggregator of the same name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import algorithms
from fljax.aggregators import incfl_update
from fljax.algorithms.single_model import SingleModel, server_optimizer
from fljax.protocol import Cohort, Round
from fljax.protocol.messages import Report, Sent
from fljax.training import Local
from tests.toys.task import logistic_regression

RANDOM = np.random.default_rng(0)
UPDATE = RANDOM.normal(size=(4, 3))
PRESENT = np.array([True, True, False, True])


def _step(loss: Any, scale: float = 1.0, **options: Any) -> tuple[Any, Any]:
    """What the server's model moves by, from 0, in a round; and the update of the aggregator."""
    task, local = logistic_regression()._replace(roles=None), Local(0.1, batch_size=2, steps=1)
    algorithm = algorithms.incfl(task, local, threshold=0.0, **options)
    cohort = Cohort(jnp.arange(4), jnp.zeros(4, jnp.int32), jnp.asarray(PRESENT))
    update = {"w": jnp.asarray(scale * UPDATE, jnp.float32)}
    gap = jnp.asarray(loss, jnp.float32)
    up = Sent(update, Report(loss=gap, threshold=jnp.zeros(4)))
    model = {"w": jnp.zeros(3)}
    server = SingleModel(model, server_optimizer(1.0, "sgd").init(model))
    after, _ = algorithm.aggregate(server, up, Round(jax.random.key(0), jnp.int32(0), cohort, {}))
    return after.model["w"], incfl_update(update, gap, present=cohort.present, **options)["w"]


@pytest.mark.in_turn
@pytest.mark.sampled(3)
@pytest.mark.parametrize("normalise", ["sum", "mean"])
@pytest.mark.parametrize("surrogate", ["sigmoid", "softplus", "relu", "hinge", "exp"])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.3])
def test_it_is_the_aggregator_streamed(surrogate: str, normalise: str, eps: float) -> None:
    found, expected = _step([0.3, -1.0, np.nan, 2.0], surrogate=surrogate, normalise=normalise, eps=eps)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("scale", [0.2, 6.0])
def test_a_scaled_gap_is_the_aggregators(scale: float) -> None:
    found, expected = _step([0.3, -1.0, np.nan, 2.0], gap_scale=scale, eps=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    plain, _ = _step([0.3, -1.0, np.nan, 2.0], eps=0.1)
    assert np.abs(found - plain).max() > 0.01


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e36])
def test_a_large_scale_is_finite_as_the_aggregators(scale: float) -> None:
    found, expected = _step([0.3, -1.0, np.nan, 2.0], surrogate="relu", gap_scale=scale)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-20)


@pytest.mark.parametrize("gap", [80.0, 84.0, 86.0])
def test_tiny_weights_do_not_underflow(gap: float) -> None:
    """Weights of 1e-35 times updates of 1e-4 are below the smallest number of single precision."""
    found, expected = _step([gap, gap + 0.5, np.nan, gap - 0.5], scale=1e-4, eps=0.0)
    assert np.all(expected != 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.in_turn
@pytest.mark.parametrize("size", [1.0, 2.0**-24])
def test_gradients_are_the_aggregators(size: float) -> None:
    """Also if cotangents are small: by the square of the scaled weights they would be 0 in single precision."""
    loss = jnp.asarray([0.3, -1.0, 0.0, 2.0])

    def slopes(which: int) -> Any:
        def total(loss: Any, scale: Any, eps: Any) -> Any:
            return size * jnp.vdot(_step(loss, gap_scale=scale, eps=eps)[which], 1 + jnp.arange(3.0))

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(loss, 2.0, 0.1)

    found, expected = slopes(0), slopes(1)
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-5, atol=1e-6 * size)
        assert np.abs(other).max() > 0.01 * size


def test_an_infinite_loss_is_never_read() -> None:
    found, expected = _step([0.3, np.inf, np.nan, 2.0])
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
