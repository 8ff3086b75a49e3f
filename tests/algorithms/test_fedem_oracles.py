"""What FedEM must equal: a Gaussian mixture by exact steps, and what holds for any mixture of components."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedem
from fljax.algorithms.fedem import Mixture, expectation
from fljax.core.trees import take
from fljax.engine.rounds.states import initial_state
from fljax.protocol import Examples, LocalData, Rows, Seat, Subset
from fljax.training import Local, evaluate_each
from tests.algorithms import quadratic
from tests.algorithms.clustered_tools import SCATTERED, SMALL, models, starting
from tests.algorithms.quadratic import run
from tests.algorithms.rounds_tools import TASK, close, federation, history, own_rows, stored
from tests.oracles import numpy_clustered as oracle
from tests.precision import enable_x64

SEAT = Seat(jnp.int32(0), jnp.int32(0), jnp.int32(0))

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]


@pytest.mark.quick
@pytest.mark.sampled(2)
def test_equal_components_stay_equal(exact):
    algorithm = fedem(TASK, SMALL, clusters=3)  # the parameters of TASK are those of any key
    states, _ = history(lambda _: algorithm, federation(), 3)
    first = jax.tree.map(lambda leaf: np.broadcast_to(leaf[:, :1], leaf.shape), states.server.models)
    close(states.server.models, first, exact)
    np.testing.assert_allclose(states.clients.mixture, 1 / 3, rtol=exact)
    assert np.abs(np.diff(states.server.models["w"], axis=0)).max() > 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_responsibilities_sum_to_1(dtype):
    rng = np.random.default_rng(0)
    with enable_x64(dtype == np.float64):
        for scale in (1.0, 100.0, 1e6):
            losses = jnp.asarray(scale * rng.exponential(size=(4, 9)), dtype)
            for mixture in ([0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]):
                r, new = expectation(jnp.asarray(mixture, dtype), losses, jnp.int32(6))
                np.testing.assert_allclose(r.sum(axis=0), 1, rtol=1e-6)
                np.testing.assert_allclose(new.sum(), 1, rtol=1e-6)
                np.testing.assert_allclose(new, np.asarray(r)[:, :6].mean(axis=1), rtol=1e-5, atol=1e-30)
                assert r.dtype == new.dtype == dtype
        r, new = expectation(jnp.full(4, 0.25, dtype), losses, jnp.int32(1))
        np.testing.assert_allclose(new, r[:, 0], rtol=1e-6)
        before = jnp.asarray([0.3, 0.7, 0.0, 0.0], dtype)
        np.testing.assert_array_equal(expectation(before, losses, jnp.int32(0))[1], before)


# Rows of three clients around two centres, in different shares; the last column is the root of the curvature, 1.
SIZES = (6, 4, 8)
POINTS = np.random.default_rng(3).normal(size=(sum(SIZES), 2)) + np.where(
    np.isin(np.arange(sum(SIZES)), [0, 1, 2, 3, 6, 12, 13, 14])[:, None], 1.5, -1.5
)
GAUSSIANS = np.array([[0.3, 0.1], [-0.2, 0.4]])


def points(sizes=SIZES):
    x = np.concatenate([POINTS[: sum(sizes)], np.ones((sum(sizes), 1))], axis=1)
    return federation(sizes, range(len(sizes)), capacity=max(sizes), x=x, y=np.zeros(sum(sizes), int))


def own(sizes):
    return np.split(POINTS[: sum(sizes)], np.cumsum(sizes)[:-1])


def log_likelihood(centres, mixture, sizes):
    """``sum_ki log sum_c pi_kc exp(-||x_ki - w_c||^2 / 2)``."""
    total = 0.0
    for x, pi in zip(own(sizes), mixture, strict=True):
        total += np.log(np.exp(-((x[:, None] - centres[None]) ** 2).sum(axis=2) / 2) @ pi).sum()
    return total


def gaussian(steps, rate):
    def build(values):
        task = quadratic.quadratic(values["start"])._replace(classes=2)
        return starting(fedem(task, Local(rate, 8, steps=steps)), values["centres"])

    return build


def test_exact_steps_of_one_client_are_those_of_a_gaussian_mixture(x64):
    """``w_c = sum_i r_ic x_i / sum_i r_ic``; the likelihood never falls."""
    rounds, sizes = 12, (8,)
    states, _ = run(gaussian(4000, 0.5), rounds, data=points(sizes), start=np.zeros(2), centres=GAUSSIANS)
    centres, mixture, (x,) = GAUSSIANS, np.array([0.5, 0.5]), own(sizes)
    found = []
    for t in range(rounds + 1):
        close(models(states)[t], centres, 1e-8)
        close(states.clients.mixture[t, 0], mixture, 1e-8)
        found.append(log_likelihood(models(states)[t], states.clients.mixture[t], sizes))
        r = mixture * np.exp(-((x[:, None] - centres[None]) ** 2).sum(axis=2) / 2)
        r /= r.sum(axis=1, keepdims=True)
        mixture, centres = r.mean(axis=0), (r.T @ x) / r.sum(axis=0)[:, None]
    assert (np.diff(found) >= -1e-9).all()
    assert found[-1] - found[0] > 1


def test_the_likelihood_of_several_clients_never_falls(x64):
    """One gradient step of length 1: the curvature of the M-step's objective is a mean of shares, at most 1."""
    rounds = 40
    states, _ = run(gaussian(1, 1.0), rounds, data=points(), start=np.zeros(2), centres=GAUSSIANS)
    found = [log_likelihood(models(states)[t], states.clients.mixture[t], SIZES) for t in range(rounds + 1)]
    assert (np.diff(found) >= -1e-9).all()
    assert found[-1] - found[0] > 5
    assert np.ptp(states.clients.mixture[-1][:, 0]) > 0.2  # clients differ


def test_predictions_are_a_mixture_of_probabilities():
    rng = np.random.default_rng(0)
    both = {"w": jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32), "b": jnp.zeros((2, 4))}
    x = jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)
    algorithm = fedem(TASK, SMALL)
    each = [{name: np.asarray(leaf[c], np.float64) for name, leaf in both.items()} for c in range(2)]
    for mixture in ([0.3, 0.7], [1.0, 0.0]):
        logits = np.asarray(algorithm.predict(Mixture(both, jnp.asarray(mixture)), x))
        close(logits, oracle.mixed_logits(each, mixture, np.asarray(x, np.float64)), 1e-5)
        np.testing.assert_allclose(np.exp(logits).sum(axis=1), 1, rtol=1e-5)
    far = jax.tree.map(lambda leaf: 1e4 * leaf, both)
    for mixture in ([0.3, 0.7], [1.0, 0.0]):
        assert np.isfinite(algorithm.predict(Mixture(far, jnp.asarray(mixture)), x)).all()


def test_the_model_of_a_cluster_is_a_component():
    algorithm = fedem(SCATTERED, SMALL, clusters=3)
    server = algorithm.init_server(jax.random.key(0), None)  # type: ignore
    x, y = own_rows(federation(), 1)
    rows = Subset(Examples(jnp.asarray(x), jnp.asarray(y)), Rows(jnp.arange(7, dtype=jnp.int32), jnp.int32(7)))
    assert algorithm.models is not None
    loss, accuracy = evaluate_each(SCATTERED, algorithm.models(server)["cluster"].model, rows, algorithm.predict)
    expected = evaluate_each(SCATTERED, server.models, rows)
    close((loss, accuracy), expected)
    assert np.ptp(loss) > 0.1


def test_strangers_and_latecomers_find_their_mixture(x64):
    """E-steps alone raise the likelihood of a mixture; none leave it as it is."""
    data, task = points(), quadratic.quadratic(jnp.zeros(2))._replace(classes=2)
    likelihood = []
    for steps in (0, 1, 5, 200):
        algorithm = starting(
            fedem(task, Local(0.1, 8, steps=1), deploy_steps=steps), jnp.asarray([[1.5] * 2, [-1.5] * 2])
        )
        state = initial_state(algorithm, stored(data), jnp.uint32(0))
        client = take(data.clients, 0)
        rows = Subset(data.examples, client.train)
        mixture = algorithm.deploy(
            jax.random.key(0), SEAT, state.server.models, take(state.clients, 0), LocalData(rows, rows, rows)
        ).mixture
        likelihood.append(log_likelihood(np.asarray(state.server.models["w"]), [np.asarray(mixture)], SIZES[:1]))
        if steps == 0:
            np.testing.assert_array_equal(mixture, 0.5)
    assert (np.diff(likelihood) > 0).all()
    share = np.linspace(0, 1, 2001)
    grid = [log_likelihood(np.array([[1.5] * 2, [-1.5] * 2]), [np.array([p, 1 - p])], SIZES[:1]) for p in share[1:-1]]
    assert abs(likelihood[-1] - max(grid)) < 1e-6
