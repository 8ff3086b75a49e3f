"""IP-FL's theorems 3, 4 and 6: descent against its bounds, and importance weights that stop to change."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import theory
from fljax.aggregators import importance_weights
from tests.precision import enable_x64

CENTRES = np.random.default_rng(1).normal(size=(5, 2)) * 2
SHARES = np.array([0.1, 0.3, 0.2, 0.25, 0.15])
START = np.array([6.0, -4.0])


def losses(w: Any) -> Any:
    """Of the clients, which are convex and 2-smooth."""
    return theory.pseudo_huber(jnp.asarray(w), jnp.asarray(CENTRES), 1.5, 2.0)


def loss(w: Any) -> Any:
    """Their weighted mean."""
    return jnp.asarray(SHARES) @ losses(w)


@jax.jit
def descent(rates: jax.Array) -> jax.Array:
    return theory.descend(jax.random.key(0), jax.grad(loss), START, rates)


@pytest.fixture
def least(x64):
    """The minimiser of the mean loss, and the loss there."""
    w = descent(theory.decaying_rates(0.5, 0.0, 1000))[-1]
    assert float(jnp.linalg.norm(jax.grad(loss)(w))) < 1e-12
    return np.asarray(w), float(loss(w))


def test_rates():
    np.testing.assert_allclose(theory.decaying_rates(0.5, 1.0, 4), [0.5, 0.25, 0.5 / 3, 0.125], rtol=1e-6)
    np.testing.assert_allclose(theory.decaying_rates(0.5, 0.0, 3), 0.5)


@jax.jit
def gaussian_models(means: jax.Array, start: jax.Array, rates: jax.Array) -> jax.Array:
    return theory.descend(jax.random.key(0), lambda w: w - means, start, rates)


@pytest.mark.in_turn
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0.01, 1))
def test_gaussian_clusters_exactly(seed, power, first):
    """The loss ``E ||z - w||^2 / 2`` of a cluster with normal z has the gradient w - mean: an equality."""
    with enable_x64(True):
        means, start = np.random.default_rng(seed).normal(size=(2, 3, 2))
        rates = theory.decaying_rates(first, power, 20)
        found = np.asarray(gaussian_models(jnp.asarray(means), jnp.asarray(start), rates))
        left = np.concatenate([[1.0], np.cumprod(1 - np.asarray(rates))])
        np.testing.assert_allclose(found, means + left[:, None, None] * (start - means), rtol=1e-9, atol=1e-12)
        distance = np.linalg.norm(start - means, axis=-1)
        bound = theory.descent_distances(distance, 1.0, rates)
        np.testing.assert_allclose(np.linalg.norm(found - means, axis=-1), bound, rtol=1e-9, atol=1e-12)


@pytest.mark.in_turn
def test_rates_with_a_finite_sum_stop_short(x64):
    """``prod (1 - 1 / (2 n^2)) = sin(pi / sqrt(2)) / (pi / sqrt(2))``: the first condition on rates is needed."""
    left = theory.descent_distances(1.0, 1.0, theory.decaying_rates(0.5, 2.0, 100_000))[-1]
    assert left == pytest.approx(np.sin(np.pi / 2**0.5) / (np.pi / 2**0.5), rel=1e-5)
    assert theory.descent_distances(1.0, 1.0, theory.decaying_rates(0.5, 1.0, 100_000))[-1] < 2e-3
    # Without noise the second condition is not.
    assert theory.descent_distances(1.0, 1.0, theory.decaying_rates(0.5, 0.0, 100))[-1] < 1e-30


@pytest.mark.in_turn
@pytest.mark.parametrize("power", [0.0, 0.6, 1.0])
def test_descent_on_convex_losses(power, least):
    place, lowest = least
    rates = theory.decaying_rates(0.5, power, 300)
    found = np.asarray(jax.vmap(loss)(descent(rates)))
    assert np.all(np.diff(found) <= 1e-15)  # (45): the loss never rises
    distance = np.linalg.norm(START - place)
    bound = theory.descent_bound(distance, rates, 2.0)
    np.testing.assert_allclose(bound, distance**2 / (2 * np.cumsum(rates)), rtol=1e-12)
    assert np.all(found[1:] - lowest <= bound + 1e-15)
    assert np.all(theory.descent_bound(distance, rates, 2.1)[:1] == np.inf)  # a first step longer than 1 / L


def runs(rates: Any, noise: float, count: int = 30) -> np.ndarray:
    """The loss before each round, ``[count, rounds]``; clients have noise of their own, and the server adds them up."""
    of_server = noise * float(np.sum(SHARES**2))
    run = lambda key: theory.descend(key, jax.grad(loss), START, rates, noise=of_server)  # noqa: E731
    models = jax.vmap(run)(jax.random.split(jax.random.key(2), count))
    return np.asarray(jax.vmap(jax.vmap(loss))(models))[:, :-1]


@pytest.mark.in_turn
def test_the_server_mean_of_local_steps_is_a_step_on_the_mean_loss(x64):
    local = START - 0.3 * np.asarray(jax.jacobian(losses)(START))
    found = descent(jnp.asarray([0.3]))[1]
    np.testing.assert_allclose(found, SHARES @ local, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("power", [0.6, 0.75, 1.0])
def test_noise(power, least):
    place, lowest = least
    noise, rates = 40.0, theory.decaying_rates(0.25, power, 1500)
    excess = runs(rates, noise) - lowest
    distance, of_server = np.linalg.norm(START - place), noise * float(np.sum(SHARES**2))
    bound = np.asarray(theory.stochastic_bound(distance, of_server, rates, 2.0))
    time, square = np.cumsum(rates), np.cumsum(np.square(rates))
    np.testing.assert_allclose(bound, (distance**2 + of_server * square) / time, rtol=1e-12)
    found = np.cumsum(np.asarray(rates) * excess.mean(0)) / time
    assert np.all(found < bound)
    if power == 1:  # the sum of rates is a logarithm: too slow to be seen
        return
    assert excess[:, -200:].mean() < 0.1 * excess[:, :20].mean()
    late = np.array([300, 1499])
    for values in (found, bound):  # like one over the sum of rates
        assert np.diff(np.log(values[late])) / np.diff(np.log(time[late])) == pytest.approx(-1, abs=0.25)


@pytest.mark.in_turn
def test_the_rate_in_rounds(x64):
    """``T^-(1 - power)``; at 1 one over a logarithm."""
    for power in (0.6, 0.75, 0.9):
        rates = theory.decaying_rates(0.25, power, 400_000)
        bound = np.asarray(theory.stochastic_bound(1.0, 1.0, rates, 2.0))
        slope = np.log(bound[-1] / bound[39_999]) / np.log(10)
        assert slope == pytest.approx(-(1 - power), abs=0.07)


@pytest.mark.thorough
def test_a_constant_rate_levels_off(least):
    """With noise the mean loss stays away from the least one. No bound applies to a rate above ``1 / (2 L)``."""
    _, lowest = least
    excess = runs(theory.decaying_rates(0.25, 0.0, 1500), 40.0) - lowest
    assert excess[:, -500:].mean() > 0.5 * excess[:, -1000:-500].mean() > 0.05
    assert np.all(np.asarray(theory.stochastic_bound(1.0, 1.0, theory.decaying_rates(0.3, 0.0, 9), 2.0)) == np.inf)


@pytest.mark.in_turn
def test_personal_rates_lead_elsewhere(x64):
    """Clients with rates of their own: the limit is the minimiser for other weights."""
    own = np.array([1.0, 0.2, 0.5, 1.0, 0.1])
    step = lambda w: jnp.asarray(SHARES * own) @ (w[None] - CENTRES)  # noqa: E731
    found = theory.descend(jax.random.key(0), step, START, theory.decaying_rates(1.0, 0.0, 400))[-1]
    weights = theory.limit_weights(SHARES, own)
    np.testing.assert_allclose(weights, SHARES * own / np.sum(SHARES * own), rtol=1e-12)
    np.testing.assert_allclose(found, weights @ CENTRES, rtol=1e-9)
    assert np.linalg.norm(found - SHARES @ CENTRES) > 0.3
    np.testing.assert_allclose(theory.limit_weights(SHARES, np.full(5, 0.3)), SHARES, rtol=1e-12)


def test_a_client_may_lose(least):
    """The mean loss falls with every round, a client's does not: (47) cannot hold for the global model."""
    w = descent(theory.decaying_rates(0.5, 0.6, 300))
    each = np.asarray(jax.vmap(losses)(w))
    assert np.any(np.diff(each, axis=0) > 1e-3)
    assert np.all(np.diff(each @ SHARES) <= 1e-15)


CLUSTERS, ROWS, WIDTH, RIDGE = 2, 40, 3, 0.1


def two_clusters(seed: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    """Gradients ``[C, d]`` of two clusters' logistic losses, and a client's rows: of the first cluster, with errors."""
    random = np.random.default_rng(seed)
    true = np.array([[2.0, -1.0, 0.5], [-0.5, 2.0, 1.0]])
    x = random.normal(size=(CLUSTERS, ROWS, WIDTH))
    y = np.sign(np.einsum("cnd,cd->cn", x, true) + random.normal(size=(CLUSTERS, ROWS)))
    rows = random.normal(size=(30, WIDTH))
    labels = np.sign(rows @ true[0] + 0.5 * random.normal(size=30))

    def of_cluster(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jax.nn.softplus(-y * (x @ w))) + RIDGE / 2 * w @ w

    gradient = lambda w: jax.vmap(jax.grad(of_cluster))(w, jnp.asarray(x), jnp.asarray(y))  # noqa: E731
    return gradient, rows * labels[:, None], x


def importance(models: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Equation 7: a cluster's share of the sum of accuracies, ``[..., C]``."""
    correct = np.einsum("...cd,nd->...cn", models, rows) > 0
    return np.asarray(importance_weights(jnp.asarray(correct.mean(-1))))


@pytest.mark.in_turn
def test_importance_settles(x64):
    gradient, rows, x = two_clusters()
    smoothness = RIDGE + max(np.linalg.norm(each, 2) ** 2 for each in x) / (4 * ROWS)
    rates = theory.decaying_rates(2 / (smoothness + RIDGE), 0.5, 10_000)
    models = np.asarray(theory.descend(jax.random.key(0), gradient, np.zeros((CLUSTERS, WIDTH)), rates))
    limit = models[-1]
    assert np.abs(gradient(jnp.asarray(limit))).max() < 1e-6
    measured = np.linalg.norm(models - limit, axis=-1)
    distances = np.asarray(theory.descent_distances(measured[0], RIDGE, rates))
    assert np.all(measured <= distances + 1e-5)
    margins = np.einsum("cd,nd->cn", limit, rows)
    radius = np.asarray(theory.settling_distance(margins, np.linalg.norm(rows, axis=-1)))
    np.testing.assert_allclose(radius, np.min(np.abs(margins) / np.linalg.norm(rows, axis=-1), axis=1), rtol=1e-12)
    weights = importance(models, rows)
    changes = np.flatnonzero(np.any(weights != weights[-1], axis=-1))
    settled = int(theory.settling_round(distances, radius))
    assert changes[-1] < int(theory.settling_round(measured, radius)) <= settled < len(weights)
    np.testing.assert_array_equal(weights[settled:], np.broadcast_to(weights[-1], weights[settled:].shape))
    # The personalised model follows.
    personal = np.einsum("tc,tcd->td", weights, models)
    away = np.linalg.norm(personal - personal[-1], axis=-1)
    bound = np.asarray(theory.personal_distance_bound(weights, measured, weights[-1], limit))
    assert np.all(away <= bound + 1e-12)
    np.testing.assert_allclose(bound[settled:], (weights * measured).sum(-1)[settled:], rtol=1e-12)


@pytest.mark.in_turn
def test_a_row_on_the_boundary_never_settles(x64):
    """Models converge, and importance does not: theorem 4 needs limits without such rows."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    limit = np.array([[0.0, 1.0], [-1.0, 2.0]])
    time = np.arange(200)
    models = limit + ((-1.0) ** time / (1 + time))[:, None, None] * np.array([[1.0, 0.0], [0.0, 0.0]])
    weights = importance(models, rows)
    np.testing.assert_allclose(np.abs(np.diff(weights[:, 0])), 0.6 - 0.5, rtol=1e-12)
    radius = theory.settling_distance(np.einsum("cd,nd->cn", limit, rows), np.ones(3))
    np.testing.assert_array_equal(radius, [0, 1])
    assert theory.settling_round(np.linalg.norm(models - limit, axis=-1), radius) == 200


def test_the_limit_need_not_be_the_best(x64):
    """A mixture of settled clusters by importance is not the model that is best for the client."""
    means, accuracy = np.array([[0.0, 0.0], [3.0, 1.0]]), np.array([0.9, 0.6])
    weights = np.asarray(importance_weights(jnp.asarray(accuracy)))
    personal = weights @ means
    assert np.sum((personal - means[0]) ** 2) == pytest.approx((0.6 / 1.5) ** 2 * 10, rel=1e-12)


def test_settling_round():
    distances = np.array([[3.0, 3.0], [0.5, 0.1], [2.0, 0.1], [0.5, 0.1], [0.4, 0.1]])
    assert theory.settling_round(distances, np.array([1.0, 1.0])) == 3
    assert theory.settling_round(distances, np.array([9.0, 9.0])) == 0
    assert theory.settling_round(distances, np.array([1.0, 0.1])) == 5
    with pytest.raises(ValueError, match=r"expected distances \[rounds, clusters\], got \(5,\)"):
        theory.settling_round(distances[:, 0], 1.0)
