"""The theory module against the written values, an oracle by other formulas, and brute force."""

from __future__ import annotations

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import theory
from fljax.aggregators import incfl_weights
from fljax.theory.clients import SURROGATES
from tests.oracles import mean_estimation as oracle
from tests.precision import enable_x64

GAMMA_GLOBAL = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 20**0.5])
FEDAVG = [0.647584, 0.536458, 0.333776, 0.187950, 0.105283, 0.028901, 0.005706, 0.002339]
BOUND = [2, 1.90246, 1.63746, 1.27526, 0.89866, 0.33060, 0.08152, 0.03663]
INCFL = [0.635, 0.523, 0.348, 0.269, 0.252, 0.250, 0.250, 0.250]  # simulated, standard error 0.001
CONVEX = ("softplus", "relu", "hinge", "exp")


def test_fedavg():
    np.testing.assert_allclose(theory.fedavg_ipr(GAMMA_GLOBAL), FEDAVG, atol=1e-6)
    assert theory.fedavg_ipr(0.0) == pytest.approx(0.5 + np.arcsin(5**-0.5) / np.pi, abs=1e-14)
    for gamma_global, gamma in [(0.2, 1), (1, 0.4), (3, 2), (20**0.5, 1)]:
        ours, theirs = theory.fedavg_ipr(gamma_global, gamma), oracle.fedavg_ipr(gamma_global, gamma)
        assert ours == pytest.approx(theirs, abs=1e-12)


def test_bounds():
    np.testing.assert_allclose(theory.fedavg_ipr_bound(GAMMA_GLOBAL), BOUND, rtol=1e-4)
    assert theory.incfl_ipr_bound() == pytest.approx(0.02299, abs=1e-5)
    gamma_global = np.linspace(0, 12, 9)
    for gamma in (0.1, 0.3, 1.0, 2.0, 5.0):
        bound = theory.fedavg_ipr_bound(gamma_global, gamma)
        np.testing.assert_allclose(bound, [oracle.fedavg_bound(g, gamma) for g in gamma_global], rtol=1e-12)
        assert np.all(theory.fedavg_ipr(gamma_global, gamma) <= bound)
        assert theory.incfl_ipr_bound(gamma) == pytest.approx(oracle.incfl_bound(gamma), rel=1e-12)
        assert all(theory.incfl_ipr_exact(g, gamma) >= theory.incfl_ipr_bound(gamma) for g in gamma_global)


def test_the_average_is_a_minimum_up_to_the_separation_point():
    point = theory.separation_point()
    assert (point, point) == (pytest.approx(1.0215806, abs=1e-7), pytest.approx(oracle.threshold(), abs=1e-14))
    np.testing.assert_array_equal(theory.average_is_minimum([0, 1.02, point, 1.022, 5]), [1, 1, 1, 0, 0])
    minimum = theory.local_minimum(np.array([0, 0.7, 1.02]))
    assert minimum.is_average.all()
    np.testing.assert_allclose(minimum.distance, [0, 0.7, 1.02], rtol=1e-14)
    assert minimum.log_distance[0] == -np.inf


def test_local_minimum():
    minimum = theory.local_minimum([1.05, 1.1, 1.25, 1.5, 2])
    np.testing.assert_allclose(minimum.distance, [0.18768, 0.099481, 0.0211786, 0.00149313, 1.8006e-6], rtol=3e-5)
    assert not minimum.is_average.any()
    far = theory.local_minimum([3.0, 4.0, 40.0])
    np.testing.assert_allclose(far.distance[0], 5.6e-15, rtol=2e-2)
    assert -28 < far.log_distance[1] / np.log(10) < -26
    # Below the smallest float: x / 4 = 2 half exp(-4 half^2).
    assert (far.distance[2], far.log_distance[2]) == (0, pytest.approx(np.log(320) - 6400, rel=1e-12))


def test_local_minimum_agrees_with_bisection():
    just_above = theory.separation_point() * (1 + np.geomspace(1e-9, 0.1, 50))
    half = np.concatenate([np.linspace(0.01, 60, 400), just_above])
    np.testing.assert_allclose(
        theory.local_minimum(half).log_distance, oracle.log_distance(half), rtol=1e-12, atol=1e-11
    )
    assert np.all(theory.local_minimum(half).distance < 2)  # INCFL, lemma B.4


@pytest.mark.in_turn
@pytest.mark.parametrize(("gamma_global", "expected"), list(zip(GAMMA_GLOBAL, INCFL, strict=True)))
def test_incfl(gamma_global, expected):
    exact = theory.incfl_ipr_exact(gamma_global)
    assert exact == pytest.approx(expected, abs=3e-3)
    ours = theory.incfl_ipr(gamma_global, runs=40_000, seed=5)
    assert 0 < ours.standard_error < 2e-3
    assert ours.mean == pytest.approx(exact, abs=4 * ours.standard_error)
    assert ours.clients.mean() == pytest.approx(ours.mean, abs=1e-12)
    theirs, error = oracle.incfl_ipr(gamma_global)
    assert theirs == pytest.approx(exact, abs=4 * error)


@pytest.mark.parametrize(("gamma", "expected"), [(0.3, 0.12), (0.5, 0.246), (2, 0.250), (4, 0.251)])
def test_incfl_other_spreads(gamma, expected):
    exact = theory.incfl_ipr_exact(3 * gamma, gamma)
    assert exact == pytest.approx(expected, abs=1.5e-3)
    ours = theory.incfl_ipr(3 * gamma, gamma, seed=5)
    assert ours.mean == pytest.approx(exact, abs=4 * ours.standard_error)


def test_incfl_with_a_tiny_spread_is_fedavg():
    """Then the local means are as far apart as the true ones, below the separation point."""
    assert theory.incfl_ipr_exact(0.2, 0.05) == pytest.approx(float(theory.fedavg_ipr(0.2, 0.05)), rel=1e-9)


def test_where_incfl_overtakes_fedavg():
    assert theory.incfl_ipr_exact(0.8) < theory.fedavg_ipr(0.8)
    assert theory.incfl_ipr_exact(0.9) > theory.fedavg_ipr(0.9)


def test_comparing_losses_seems_to_refute_the_theorem():
    far = 20**0.5
    assert theory.incfl_ipr(far, compare="losses").mean < theory.incfl_ipr_bound() < theory.incfl_ipr(far).mean / 10
    near = [theory.incfl_ipr(0.5, compare=how).mean for how in ("losses", "signs")]
    assert near[0] == pytest.approx(near[1], abs=1e-3)


def test_the_seed_decides():
    assert theory.incfl_ipr(1, runs=100, seed=3).mean == theory.incfl_ipr(1, runs=100, seed=3).mean
    assert theory.incfl_ipr(1, runs=100, seed=3).mean != theory.incfl_ipr(1, runs=100, seed=4).mean


@pytest.mark.parametrize("surrogate", CONVEX)
@pytest.mark.parametrize("apart", [0.0, 1.0, 2.5, 9.0])
def test_convex_surrogates_lead_to_the_average(surrogate, apart):
    assert theory.surrogate_minimum([-1, -1 + apart], surrogate=surrogate) == pytest.approx(-1 + apart / 2, abs=1e-6)


def test_the_sigmoid_leads_to_the_average_or_away_from_it():
    assert theory.surrogate_minimum([0, 2.0], surrogate="sigmoid") == pytest.approx(1.0, abs=1e-12)
    assert theory.surrogate_minimum([0, 3.0], surrogate="sigmoid") == pytest.approx(0.00149313, rel=1e-5)


def test_relu_and_hinge_are_the_average_of_any_number_of_clients():
    for surrogate in ("relu", "hinge"):
        assert theory.surrogate_minimum([0, 1, 8], surrogate=surrogate) == pytest.approx(3, abs=1e-5)
    # Softplus is not: it heeds large gaps most, up to a point.
    softplus = theory.surrogate_minimum([0, 1, 8], surrogate="softplus")
    grid = np.linspace(0, 8, 80_001)
    lowest = grid[np.argmin(theory.objective(grid, [0, 1, 8], surrogate="softplus"))]
    assert softplus == pytest.approx(lowest, abs=1e-3)
    assert abs(softplus - 3) > 0.01


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_the_aggregators_weights_are_the_objectives_slope(surrogate):
    w, means, step = np.array([-0.4, 0.7, 1.9, 5.0]), np.array([0, 1.0, 3.0]), 1e-6
    up = theory.objective(w + step, means, surrogate=surrogate)
    down = theory.objective(w - step, means, surrogate=surrogate)
    d = w[:, None] - means
    with enable_x64(True):
        q = np.asarray(incfl_weights(jnp.asarray(d**2), surrogate=surrogate))
    np.testing.assert_allclose((up - down) / (2 * step), (2 * q * d).mean(-1), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("half", [0.3, 1.0, 1.05, 1.5, 3.0, 10.0, 30.0])
def test_minima_of_two_clients(half):
    minima, minimum = theory.local_minima([4.0, 4.0 + 2 * half]), theory.local_minimum(half)
    assert len(minima.w) == (1 if minimum.is_average else 2)
    np.testing.assert_allclose(minima.log_distance, minimum.log_distance, rtol=1e-9, atol=1e-9)
    if not minimum.is_average:
        assert sorted(zip(minima.client, minima.side, strict=True)) == [(0, 1), (1, -1)]


def test_three_minima_just_below_the_separation_point():
    assert len(theory.local_minima([0, 2.036]).w) == 3


@pytest.mark.parametrize("seed", range(12))
def test_minima_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    means = rng.choice([0.5, 1.0, 2.0]) * rng.standard_normal(rng.integers(2, 7))
    minima = theory.local_minima(means)
    grid = np.linspace(means.min() - 0.1, means.max() + 0.1, 100_001)
    height = theory.objective(grid, means)
    lower = (height[1:-1] < height[:-2]) & (height[1:-1] <= height[2:])
    np.testing.assert_allclose(np.sort(minima.w), grid[1:-1][lower], atol=3 * (grid[1] - grid[0]))
    assert np.all(np.diff(minima.objective) >= 0)
    np.testing.assert_allclose(
        minima.w, means[minima.client] + minima.side * np.exp(minima.log_distance), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("means", [[0, 0, 0], [5.0], [0.1 + 0.2, 0.3]])
def test_equal_local_means(means):
    minima = theory.local_minima(means)
    assert (minima.w.tolist(), minima.side.tolist()) == ([pytest.approx(means[0], abs=1e-15)], [0])
    assert minima.objective.tolist() == [0.5]


def test_equal_local_means_pull_together():
    minima = theory.local_minima([3, 0, 0])
    d = np.exp(minima.log_distance[0])
    assert minima.client[0] == 1
    two, one = np.log(2) + oracle.log_pull(np.log(d)), oracle.log_pull(np.log(3 - d))
    assert two == pytest.approx(one, rel=1e-9)


def test_a_mean_in_the_middle_is_a_minimum_only_if_it_holds_out():
    assert theory.local_minima([-5, 0, 5]).w.tolist() == pytest.approx([0, -5, 5], abs=1e-8)
    assert 0 not in theory.local_minima([-1.3, 0, 1.3]).w


def test_order_and_place_of_the_clients_do_not_matter():
    base = theory.local_minima([0, 0.4, 6.0])
    other = theory.local_minima(np.array([6.0, 0.4, 0]) + 100)
    np.testing.assert_allclose(other.w, base.w + 100, atol=1e-10)
    np.testing.assert_array_equal(other.client, 2 - base.client)


def test_three_alike():
    """INCFL, figure 5, case 1: the average of all."""
    means = [0.1, -0.2, 0.15]
    assert theory.local_minima(means).w == pytest.approx([np.mean(means)], abs=1e-3)
    ours = theory.mean_estimation([0, 0, 0], 0.05, runs=100, seed=1)
    # X = w - thetahat_1 and Y = w + thetahat_1 have a correlation of -1 / sqrt(3).
    expected = 0.5 + np.arcsin(3**-0.5) / np.pi
    assert ours.fedavg.mean == pytest.approx(expected, abs=4 * ours.fedavg.standard_error)
    assert ours.incfl.mean == pytest.approx(ours.fedavg.mean, abs=2e-2)


def test_two_alike_and_one_far():
    """INCFL, figure 5, case 3: the average of those two, with whom it is as if the third did not exist."""
    minima = theory.local_minima([0, 0.2, 10])
    assert minima.w[0] == pytest.approx(0.1, abs=1e-12)
    assert minima.objective[0] < minima.objective[1] - 0.1
    ours = theory.mean_estimation([0, 0.01, 10], runs=150, seed=1)
    assert ours.fedavg.mean < 0.02
    assert ours.incfl.clients[2] == 0
    expected = theory.incfl_ipr_exact(0.005) * 2 / 3
    assert ours.incfl.mean == pytest.approx(expected, abs=4 * ours.incfl.standard_error)


def test_three_far_apart():
    """INCFL, figure 5, case 2: next to each local mean there is a minimum, good for that client half of the time."""
    np.testing.assert_allclose(np.sort(theory.local_minima([0, 10, 30]).w), [0, 10, 30], atol=1e-12)
    ours = theory.mean_estimation([0, 10, 30], runs=150, seed=1)
    assert ours.fedavg.mean < 0.02
    assert ours.incfl.mean == pytest.approx(1 / 6, abs=4 * ours.incfl.standard_error)


def test_the_middle_of_three_is_pulled_by_the_nearer():
    """With equal distances its minimum lies on the side to which its own error has moved it: rarely the better side."""
    ours = theory.mean_estimation([0, 10, 20], runs=150, seed=1)
    middle = 2 * (0.25 - np.arcsin((2 / 3) ** 0.5) / (2 * np.pi))
    expected = np.array([0.5, middle, 0.5]) / 3
    np.testing.assert_allclose(ours.incfl.clients, expected, atol=4 / 6 / 150**0.5)


def test_two_of_many_are_the_pair():
    ours = theory.mean_estimation([0, 3.0], runs=150, seed=2)
    assert ours.incfl.mean == pytest.approx(theory.incfl_ipr_exact(1.5), abs=4 * ours.incfl.standard_error)
    assert ours.fedavg.mean == pytest.approx(float(theory.fedavg_ipr(1.5)), abs=4 * ours.fedavg.standard_error)


def test_effective_server_rate():
    rate = theory.effective_server_rate([[0, 0], [0, 4], [40, 40], [2e3, 2e3]], server_lr=2.0, eps=1e-6)
    q = np.exp(-4) / (1 + np.exp(-4)) ** 2
    np.testing.assert_allclose(rate, [2 / (0.5 + 1e-6), 2 / (0.25 + q + 1e-6), 2e6, 2e6], rtol=1e-5)
    assert theory.effective_server_rate([1.0, 2.0], surrogate="relu") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory.fedavg_ipr(-1.0), "expected gamma_global of at least 0, got -1.0"),
        (lambda: theory.fedavg_ipr_bound(1.0, 0.0), "expected gamma above 0, got 0.0"),
        (lambda: theory.incfl_ipr_bound(-2), "expected gamma above 0, got -2"),
        (lambda: theory.incfl_ipr_exact(np.nan), "expected gamma_global of at least 0, got nan"),
        (lambda: theory.incfl_ipr(1.0, runs=1), "expected at least 2 runs, got 1"),
        (lambda: theory.incfl_ipr(1.0, compare="sign"), "got 'sign'; valid names are signs, losses"),
        (lambda: theory.local_minimum(-0.1), "expected finite half distances of at least 0, got -0.1"),
        (lambda: theory.local_minimum(np.inf), "expected finite half distances of at least 0, got inf"),
        (lambda: theory.local_minima([]), "expected a list of finite means, one for each client"),
        (lambda: theory.local_minima([0, np.nan]), "expected a list of finite means, one for each client"),
        (lambda: theory.mean_estimation([0, 1], 0.0), "expected gamma above 0, got 0.0"),
        (lambda: theory.mean_estimation([0, 1], runs=0), "expected at least 2 runs, got 0"),
        (lambda: theory.objective(0.0, [0, 1], surrogate="log"), "got 'log'; valid names are sigmoid, softplus"),
        (lambda: theory.surrogate_minimum([1, 1], surrogate="log"), "got 'log'; valid names are sigmoid, softplus"),
        (lambda: theory.effective_server_rate([0.0], surrogate="log"), "got 'log'; valid names are sigmoid, softplus"),
    ],
)
def test_errors(call, says):
    with pytest.raises(ValueError, match="expected") as caught:
        call()
    assert says in str(caught.value)


@pytest.mark.in_turn
def test_importing_it_draws_nothing():
    code = "import sys, fljax; fljax.theory; sys.exit('matplotlib' in sys.modules or 'flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
