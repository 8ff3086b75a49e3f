"""Standard errors of gains: by hand, against draws, and never below those of pairs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import metrics as m

pytestmark = pytest.mark.usefixtures("strict")

NAN = np.nan


def test_binomial_standard_error():
    found = m.binomial_standard_error(np.array([0.5, 0.9, 1.0, NAN, 0.5]), np.array([25, 9, 4, 4, 0]))
    np.testing.assert_allclose(found, [0.1, 0.1, 0, NAN, NAN])
    # A mean over rows may be above 1 by rounding.
    assert m.binomial_standard_error(np.array([1 + 1e-12]), np.array([4])) == 0
    single = m.binomial_standard_error(np.array([0.5], np.float32), np.array([4]))
    assert single.dtype == np.float32


def test_the_sum_is_that_of_both_accuracies():
    found = m.gain_standard_error(np.array([0.5, 1.0]), np.array([0.9, 0.5]), np.array([25, 25]))
    np.testing.assert_allclose(found, [0.1 + 0.06, 0.1])


def test_pairs_know_what_both_models_share():
    right, other = np.array([1, 1, 0, 1]), np.array([1, 0, 0, 1])
    assert m.paired_standard_error(right, right) == 0
    assert m.paired_standard_error(right, other) == pytest.approx(np.std([0, 1, 0, 0]) / 2)
    padded = m.paired_standard_error(np.array([1, 1, 0, 1, NAN]), np.array([1.0, 0, 0, 1, 0]))
    assert padded == pytest.approx(m.paired_standard_error(right, other))
    assert np.isnan(m.paired_standard_error(np.array([NAN]), np.array([NAN])))


def test_the_sum_is_never_below_that_of_pairs():
    rng = np.random.default_rng(0)
    right = (rng.random((200, 30)) < 0.7).astype(float)
    other = np.where(rng.random((200, 30)) < 0.3, 1 - right, right)
    pairs = m.paired_standard_error(right, other)
    sums = m.gain_standard_error(right.mean(1), other.mean(1), np.full(200, 30))
    assert (pairs <= sums + 1e-12).all()
    opposite = m.paired_standard_error(right, 1 - right)  # where both are equal
    np.testing.assert_allclose(m.gain_standard_error(right.mean(1), 1 - right.mean(1), np.full(200, 30)), opposite)


def test_opt_outs_by_noise():
    gain, error = np.array([-0.1, -0.1, 0.0, -0.2, NAN, -0.1]), np.array([0.05, 0.04, 0.5, 0.1, 0.1, NAN])
    assert m.is_within_noise(gain, error).tolist() == [True, False, False, True, False, False]
    assert m.opt_outs_by_noise(gain, error) == 2
    assert m.opt_outs_by_noise(gain, error) <= m.opt_outs(gain)
    assert m.opt_outs_by_noise(gain, error, threshold=0.1) == 1
    assert m.opt_outs_by_noise(gain, error, threshold=np.full(6, -0.15)) == 1
    assert np.isnan(m.opt_outs_by_noise(gain[-1:], error[-1:]))


def test_worse_off_by_noise():
    accuracy, alone = np.array([0.5, 0.5, 0.9, NAN, 0.5]), np.array([0.6, 0.9, 0.5, 0.5, 0.6])
    rows = np.array([25, 25, 25, 25, 0])
    # Worse by 0.1 with an error of 0.1 + 0.098; by 0.4 with 0.16; better; without value; without rows.
    assert m.worse_off_by_noise(accuracy, alone, rows) == pytest.approx(1 / 3)
    assert m.worse_off_by_noise(accuracy, alone, rows) <= 1 - m.ipr_accuracy(accuracy, alone)
    batch = np.stack([accuracy, accuracy])
    both = m.worse_off_by_noise(batch, alone, rows)
    np.testing.assert_allclose(both, [1 / 3, 1 / 3])
    traced = jax.jit(m.worse_off_by_noise)(*map(jnp.asarray, (batch, alone, rows)))
    np.testing.assert_allclose(traced, both, rtol=1e-6)
