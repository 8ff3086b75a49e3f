"""Metrics: numbers by hand, ties, clients without test samples, NumPy and JAX alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import metrics as m
from tests.drawn import at_most

pytestmark = pytest.mark.usefixtures("strict")

NAN = np.nan
LOSS = np.array([0.5, 1.0, 2.0, NAN])
ALONE = np.array([0.6, 1.0, 1.0, 1.0])


def test_strictness_and_ties():
    # One better, one tied, one worse; the client without test samples does not count.
    assert m.incentivised(LOSS, ALONE).tolist() == [True, False, False, False]
    assert m.incentivised_participation_rate(LOSS, ALONE) == pytest.approx(1 / 3)
    assert (m.global_model_appeal(LOSS, ALONE), m.ipr_loss(LOSS, ALONE)) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (m.ipr_accuracy(LOSS, ALONE), m.ipr_accuracy(-LOSS, -ALONE)) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


@pytest.mark.unchecked
def test_preferred_model():
    accuracy = np.array([0.7, 0.2, 0.4, 0.9])
    alone = np.array([0.6, 0.3, 0.5, 0.1])
    # By loss: global, own (tie), own; by accuracy: the larger of both.
    assert m.preferred_model_accuracy(accuracy, alone, LOSS, ALONE) == pytest.approx((0.7 + 0.3 + 0.5) / 3)
    assert np.isnan(m.preferred_accuracy(accuracy, alone, LOSS, ALONE)[3])
    by_accuracy = m.preferred_model_accuracy(accuracy, alone, prefer="accuracy")
    assert by_accuracy == pytest.approx((0.7 + 0.3 + 0.5 + 0.9) / 4)
    with pytest.raises(ValueError, match="valid names are 'loss', 'accuracy'"):
        m.preferred_model_accuracy(accuracy, alone, prefer="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected loss and standalone_loss"):
        m.preferred_model_accuracy(accuracy, alone)


def test_accuracies():
    accuracy = np.array([0.5, 0.75, NAN])
    assert (m.average_accuracy(accuracy), m.maximum_accuracy(accuracy)) == (0.625, 0.75)
    assert m.accuracy_increase(accuracy, np.array([0.25, 0.75, 0.5])) == 0.125
    gain = m.personalised_model_accuracy_gain(accuracy, np.array([0.25, 0.875, 0.5]))
    np.testing.assert_array_equal(gain, [0.25, -0.125, NAN])


def test_opt_outs():
    gain = np.array([-0.5, 0.0, 0.25, NAN])
    assert (m.opt_outs(gain), m.opt_outs(gain, threshold=0.1)) == (1, 2)
    assert m.opt_outs(gain, threshold=np.array([-0.75, 0.0, 0.5, 0.0])) == 1
    assert m.participation_rate(gain) == pytest.approx(2 / 3)
    assert m.participation_rate(gain, threshold=0.25) == pytest.approx(1 / 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_who_gains_what_is_asked_for_stays_whatever_the_rounding(dtype):
    """0.32 - 0.3 is below 0.02 in both precisions, as are 0.1 + 0.2 - 0.3 and 0 apart."""
    gain = np.array([0.32, 0.52, 0.3], dtype) - np.array([0.3, 0.5, 0.3], dtype)
    assert (gain < dtype(0.02)).any()
    assert (m.opt_outs(gain, threshold=0.02), m.participation_rate(gain, threshold=0.02)) == (1, pytest.approx(2 / 3))
    assert m.opt_outs(-np.finfo(dtype).eps * np.ones(2, dtype)) == 0
    # One row of a million is more than rounding.
    assert m.opt_outs(gain - dtype(1e-6), threshold=0.02) == 3


def test_pearson():
    a = np.array([1.0, 2.0, 3.0, 7.0, NAN])
    b = np.array([2.0, 1.0, 4.0, 5.0, 100.0])
    assert m.pearson_correlation(a, b) == pytest.approx(np.corrcoef(a[:4], b[:4])[0, 1])
    assert m.pearson_correlation(a, -2 * a) == pytest.approx(-1.0)
    # Constant up to rounding of the mean: undefined, not a correlation of rounding errors.
    assert m.contribution_correlation(a, b) == m.pearson_correlation(a, b)
    assert np.isnan(m.pearson_correlation(np.full(4, 0.1), a[:4]))
    assert np.isnan(m.pearson_correlation(np.array([1.0, np.inf, 2.0]), np.array([1.0, 2.0, 3.0])))
    assert np.isnan(m.pearson_correlation(a[:4], np.full(4, 0.1)))
    assert np.isnan(m.pearson_correlation(a[:1], b[:1]))


def test_gini_coefficient():
    values = np.array([3.0, 0.0, 7.0, 1.0, NAN])
    pairs = np.abs(values[:4, None] - values[:4]).sum()
    assert m.gini_coefficient(values) == pytest.approx(pairs / (2 * 16 * values[:4].mean()))
    assert (m.gini_coefficient(np.full(7, 0.1)), m.gini_coefficient(np.zeros(3))) == (pytest.approx(0, abs=1e-15), 0)
    assert (m.gini_coefficient(np.array([0.0, 0.0, 0.0, 9.0])), m.gini_coefficient(np.array([5.0, NAN]))) == (0.75, 0)
    assert np.isnan(m.gini_coefficient(np.array([NAN, NAN])))
    tokens = np.array([[500, 500], [0, 1000]])
    np.testing.assert_array_equal(m.gini_coefficient(tokens), [0, 0.5])
    np.testing.assert_array_equal(jax.jit(m.gini_coefficient)(jnp.asarray(tokens)), [0, 0.5])


@given(st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=8), st.floats(0.1, 10))
@at_most(100)
def test_gini_coefficient_is_the_mean_difference(values, scale):
    x = np.array(values)
    found = m.gini_coefficient(x)
    assert -1e-9 <= found <= (len(x) - 1) / len(x) + 1e-9
    if x.sum() > 1e-3:
        assert found == pytest.approx(np.abs(x[:, None] - x).sum() / (2 * len(x) * x.sum()), abs=1e-9)
        assert found == pytest.approx(m.gini_coefficient(scale * x[::-1]), abs=1e-9)
        # The area between the Lorenz curve and the diagonal, by trapezes.
        lorenz = np.cumsum([0, *np.sort(x)]) / x.sum()
        area = np.sum(lorenz[1:] + lorenz[:-1]) / (2 * len(x))
        assert found == pytest.approx(1 - 2 * area, abs=1e-9)


SCALARS = [
    (m.incentivised_participation_rate, 2),
    (m.global_model_appeal, 2),
    (m.ipr_loss, 2),
    (m.ipr_accuracy, 2),
    (m.preferred_model_accuracy, 4),
    (m.average_accuracy, 1),
    (m.maximum_accuracy, 1),
    (m.accuracy_increase, 2),
    (m.pearson_correlation, 2),
    (m.opt_outs, 1),
    (m.gini_coefficient, 1),
    (m.participation_rate, 1),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(("metric", "count"), SCALARS)
def test_batches_jax_and_nobody(metric, count):
    rng = np.random.default_rng(0)
    arrays = [rng.random((2, 3, 5)).astype(np.float32) for _ in range(count)]
    arrays[0][1, 2] = NAN
    arrays[0][0, 0, 1] = NAN
    out = metric(*arrays)
    assert isinstance(out, np.ndarray)
    assert (out.shape, out.dtype) == ((2, 3), np.float32)
    assert np.isnan(out[1, 2])
    assert np.isnan(out).sum() == 1
    np.testing.assert_allclose(out[0, 1], metric(*(a[0, 1] for a in arrays)), rtol=1e-6)
    traced = jax.jit(metric)(*map(jnp.asarray, arrays))
    assert isinstance(traced, jax.Array)
    np.testing.assert_allclose(traced, out, rtol=1e-5, atol=1e-6)


def test_fewer_axes_are_aligned():
    loss = np.arange(6.0).reshape(2, 3)
    alone = np.array([1.0, 1.0, 9.0])
    expected = [2 / 3, 1 / 3]
    np.testing.assert_allclose(m.incentivised_participation_rate(loss, alone), expected)
    np.testing.assert_allclose(m.incentivised_participation_rate(jnp.asarray(loss), alone.astype("f4")), expected)


@pytest.mark.unchecked
def test_a_number_has_no_clients():
    with pytest.raises(ValueError, match="last axis is the clients"):
        m.average_accuracy(0.5)  # type: ignore[arg-type]


def test_over_seeds():
    values = np.array([[1.0, 4.0], [3.0, NAN], [8.0, NAN]])
    np.testing.assert_allclose(m.standard_deviation(values), np.array([np.std([1, 3, 8], ddof=1), NAN]))
    np.testing.assert_allclose(m.standard_error(values), np.array([np.std([1, 3, 8], ddof=1) / 3**0.5, NAN]))
    np.testing.assert_allclose(m.standard_deviation(values, axis=1), np.array([np.std([1, 4], ddof=1), NAN, NAN]))


fractions = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, NAN]), min_size=1, max_size=6)


@at_most(25)
@given(fractions, fractions)
def test_laws(a, b):
    n = min(len(a), len(b))
    x, y = np.array(a[:n]), np.array(b[:n])
    strict, loose = m.incentivised_participation_rate(x, y), m.ipr_loss(x, y)
    if np.isnan(x + y).all():
        assert np.isnan(strict)
        assert np.isnan(m.pearson_correlation(x, y))
        return
    assert 0 <= strict <= loose <= 1
    # Whoever is not at least as good is strictly worse.
    assert m.ipr_accuracy(x, y) == pytest.approx(1 - strict)
    gain = m.personalised_model_accuracy_gain(x, y)
    known = np.sum(~np.isnan(gain))
    assert m.participation_rate(gain) == pytest.approx(1 - m.opt_outs(gain) / known)
    assert m.preferred_model_accuracy(x, y, prefer="accuracy") >= m.average_accuracy(x + 0 * y)
    r = m.pearson_correlation(x, y)
    assert np.isnan(r) or -1 <= r <= 1
    np.testing.assert_allclose(r, m.pearson_correlation(y, x))
