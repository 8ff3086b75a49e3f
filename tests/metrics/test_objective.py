"""INCFL's margin and objective: by hand, with infinite and missing losses, NumPy and JAX alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import metrics as m

NAN, INF = np.nan, np.inf


def test_incentive_margin():
    loss, alone = np.array([0.5, 1.0, 2.0, NAN, INF]), np.array([0.75, 1.0, 1.0, 1.0, 1.0])
    assert m.incentive_margin(loss, alone) == 0.25
    assert m.incentive_margin(np.array([0.5, 0.25]), np.array([1.0, 0.5])) == 0.75
    assert m.incentive_margin(np.array([INF]), np.array([INF])) == 0
    assert np.isnan(m.incentive_margin(np.array([NAN]), np.array([1.0])))
    # Who is in it is in the IPR, and nobody else.
    assert (m.incentive_margin(loss[:, None], alone[:, None]) > 0).tolist() == m.incentivised(loss, alone).tolist()


def test_surrogate_objective():
    loss, threshold = np.array([0.5, 3.0, 1.0, NAN, INF, INF]), np.array([0.5, 1.0, 2.0, 1.0, 1.0, INF])
    sigma = 1 / (1 + np.exp(-(np.array([0.0, 2.0, -1.0]))))
    assert m.surrogate_objective(loss, threshold) == pytest.approx((sigma.sum() + 1 + 0.5) / 5)
    assert m.surrogate_objective(np.array([1000.0, 0.0]), np.array([0.0, 1000.0])) == 0.5  # without overflow
    assert np.isnan(m.surrogate_objective(np.array([NAN]), np.array([1.0])))


@pytest.mark.parametrize("metric", [m.incentive_margin, m.surrogate_objective])
def test_batches_and_jax(metric):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        loss, alone = np.random.default_rng(0).random((2, 2, 3, 5)).astype(np.float32)
        loss[1, 2], loss[0, 0, 1] = NAN, NAN
        out = metric(loss, alone)
        assert (out.shape, out.dtype) == ((2, 3), np.float32)
        assert np.flatnonzero(np.isnan(out)).tolist() == [5]
        traced = jax.jit(metric)(jnp.asarray(loss), jnp.asarray(alone))
    np.testing.assert_allclose(traced, out, rtol=1e-5)
