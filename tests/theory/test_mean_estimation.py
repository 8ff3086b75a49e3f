"""INCFL's two-client mean estimation: what theory says, reproduced by an oracle in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import mean_estimation as oracle
from tests.precision import enable_x64

GAMMA_GLOBAL = [0, 0.5, 1, 1.5, 2, 3, 4, 20**0.5]
FEDAVG = [0.647584, 0.536458, 0.333776, 0.187950, 0.105283, 0.028901, 0.005706, 0.002339]
BOUND = [2, 1.90246, 1.63746, 1.27526, 0.89866, 0.33060, 0.08152, 0.03663]
INCFL = [0.635, 0.523, 0.348, 0.269, 0.252, 0.250, 0.250, 0.250]


def test_fedavg():
    ours = [oracle.fedavg_ipr(g) for g in GAMMA_GLOBAL]
    np.testing.assert_allclose(ours, FEDAVG, atol=1e-6)
    assert ours[0] == pytest.approx(0.5 + np.arcsin(5**-0.5) / np.pi, abs=1e-10)
    # Only the ratio of the two spreads matters.
    assert oracle.fedavg_ipr(3.0, 2.0) == pytest.approx(oracle.fedavg_ipr(1.5), abs=1e-12)


def test_fedavg_by_simulation():
    rng = np.random.default_rng(0)
    theta, error = np.array([0.0, 2.0]), rng.standard_normal((100_000, 2))
    w = np.mean(theta + error, axis=1, keepdims=True)
    share = np.mean((w - theta) ** 2 < error**2)
    assert share == pytest.approx(oracle.fedavg_ipr(1.0), abs=4 * 0.5 / 100_000**0.5)


def test_fedavg_bound():
    bounds = [oracle.fedavg_bound(g) for g in GAMMA_GLOBAL]
    np.testing.assert_allclose(bounds, BOUND, rtol=1e-4)
    assert np.all(np.array(FEDAVG) <= bounds)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("gamma_global", "gamma", "expected", "rounded"),
    [
        *((each, 1.0, expected, 0) for each, expected in zip(GAMMA_GLOBAL, INCFL, strict=True)),
        *((3 * gamma, gamma, each, 5e-4) for gamma, each in ((0.3, 0.12), (0.5, 0.246), (2, 0.250), (4, 0.251))),
    ],
)
def test_incfl(gamma_global, gamma, expected, rounded):
    ours, error = oracle.incfl_ipr(gamma_global, gamma)
    # The reference is itself a simulation with a standard error of 0.001.
    assert ours == pytest.approx(expected, abs=4 * np.hypot(error, 0.001) + rounded)
    assert ours > oracle.incfl_bound(gamma)


@pytest.mark.in_turn
def test_naive_comparison_seems_to_violate_the_theorem():
    assert oracle.incfl_bound() == pytest.approx(0.02299, abs=1e-5)
    naive, _ = oracle.incfl_ipr(20**0.5, naive=True)
    assert naive < oracle.incfl_bound()
    assert oracle.incfl_ipr(20**0.5)[0] > 10 * oracle.incfl_bound()
    # Where nothing is lost to rounding, both ways agree run by run.
    assert oracle.incfl_ipr(0.5, naive=True)[0] == pytest.approx(oracle.incfl_ipr(0.5)[0], abs=2e-3)


def test_local_minima():
    x = np.exp(oracle.log_distance(np.array([1.05, 1.1, 1.25, 1.5, 2, 3])))
    np.testing.assert_allclose(x, [0.18768, 0.099481, 0.0211786, 0.00149313, 1.8006e-6, 5.6e-15], rtol=1e-2)
    np.testing.assert_allclose(x[:5], [0.18768, 0.099481, 0.0211786, 0.00149313, 1.8006e-6], rtol=1e-4)
    log_x = oracle.log_distance(np.array([4.0, 40.0]))
    assert -28 < log_x[0] / np.log(10) < -26
    # Far beyond the smallest floating-point number, the logarithm follows x / 4 = 2 half exp(-4 half^2).
    assert log_x[1] == pytest.approx(np.log(4 * 80.0) - 80.0**2, rel=1e-9)


def test_average_is_a_minimum_up_to_the_threshold():
    assert oracle.threshold() == pytest.approx(1.0215806, abs=1e-7)

    def stationary(half):
        """Minima and maxima of sigma(x^2) + sigma((2 half - x)^2), from the signs of its slope on a grid."""
        x = np.linspace(0, 2 * half, 20_002)[1:-1]
        slope = np.sign(oracle.log_pull(np.log(x)) - oracle.log_pull(np.log(2 * half - x)))
        turns = np.flatnonzero(slope[1:] != slope[:-1])
        return x[turns], slope[turns] < 0

    where, minimum = stationary(1.01)
    assert minimum.tolist() == [True]
    assert where[0] == pytest.approx(1.01, abs=1e-3)
    # In a narrow window below the threshold the average is a minimum beside those near the local means.
    where, minimum = stationary(1.018)
    assert minimum.tolist() == [True, False, True, False, True]
    where, minimum = stationary(1.05)
    assert minimum.tolist() == [True, False, True]
    np.testing.assert_allclose(where, [0.18768, 1.05, 2.1 - 0.18768], atol=1e-3)


def test_minima_are_near_a_local_mean():
    half = np.linspace(0.01, 8, 200)
    assert np.all(np.exp(oracle.log_distance(half)) < 2)


def _weights(gap, surrogate):
    aggregators = pytest.importorskip("fljax.aggregators")
    if not hasattr(aggregators, "incfl_weights"):
        pytest.skip("fljax.aggregators.incfl_weights is not there yet")
    with enable_x64(True):
        return np.asarray(aggregators.incfl_weights(jnp.asarray(gap, jnp.float64), surrogate=surrogate))


def test_fljax_weights_have_these_minima():
    half = np.array([1.05, 1.25, 1.5, 2.0])
    x = np.exp(oracle.log_distance(half))
    near, far = _weights(x**2, "sigmoid"), _weights((2 * half - x) ** 2, "sigmoid")
    np.testing.assert_allclose(near * x, far * (2 * half - x), rtol=1e-6)
    np.testing.assert_allclose(near * x, np.exp(oracle.log_pull(np.log(x))), rtol=1e-10)


@pytest.mark.in_turn
@pytest.mark.parametrize("surrogate", ["relu", "hinge", "softplus", "exp"])
@pytest.mark.parametrize("half", [0.5, 1.05, 3.0])
def test_other_surrogates_lead_to_the_average(surrogate, half):
    x = np.linspace(0, 2 * half, 2001)[1:-1]
    slope = _weights(x**2, surrogate) * x - _weights((2 * half - x) ** 2, surrogate) * (2 * half - x)
    # Falling before the average and rising after it: the average is the only minimum.
    middle = len(x) // 2
    assert np.all(slope[:middle] < 0)
    assert np.all(slope[middle + 1 :] > 0)
    assert slope[middle] == pytest.approx(0, abs=1e-9)
