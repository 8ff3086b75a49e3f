"""Evenness over clients: numbers by hand, clients without a value, NumPy and JAX alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import metrics as m

pytestmark = pytest.mark.usefixtures("strict")

NAN = np.nan


def test_spread():
    values = np.array([[0.5, 0.7, 0.9, NAN], [0.4, 0.4, NAN, NAN], [NAN] * 4])
    np.testing.assert_allclose(m.spread_over_clients(values), [np.sqrt(0.08 / 3), 0, NAN])


def test_the_worst_decile_is_rounded_up():
    ten, eleven = np.arange(10.0), np.arange(11.0)
    assert (m.worst_share(ten[::-1]), m.worst_share(eleven)) == (0, 0.5)
    assert m.worst_share(ten.astype(np.float32)) == 0  # not two clients, whatever 0.1 is in single precision
    assert (m.worst_share(np.array([0.75, NAN, 0.25])), m.worst_share(np.append(ten, NAN), share=0.3)) == (0.25, 1)
    assert m.worst_share(ten, share=1.0) == ten.mean()
    assert np.isnan(m.worst_share(np.array([NAN, NAN])))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, NAN])
def test_a_share_out_of_range(share):
    with pytest.raises(ValueError, match="expected share to be above 0 and at most 1, got"):
        m.worst_share(np.ones(3), share=share)


def test_jain_index():
    assert m.jain_index(np.array([1.0, 2.0, 3.0, NAN])) == pytest.approx(36 / (3 * 14))
    assert (m.jain_index(np.full(5, 0.3)), m.jain_index(np.array([0.0, 0.0, 0.0, 7.0]))) == (pytest.approx(1), 0.25)
    assert (m.jain_index(np.zeros(3)), m.jain_index(np.array([3, 1]))) == (1, pytest.approx(16 / 20))
    assert np.isnan(m.jain_index(np.array([NAN])))


@pytest.mark.parametrize("metric", [m.spread_over_clients, m.worst_share, m.jain_index])
def test_batches_and_jax(metric):
    values = np.random.default_rng(0).random((2, 3, 5)).astype(np.float32)
    values[1, 2], values[0, 0, 1] = NAN, NAN
    out = metric(values)
    assert (out.shape, out.dtype) == ((2, 3), np.float32)
    assert np.flatnonzero(np.isnan(out)).tolist() == [5]
    traced = jax.jit(metric)(jnp.asarray(values))
    assert isinstance(traced, jax.Array)
    np.testing.assert_allclose(traced, out, rtol=1e-5)
