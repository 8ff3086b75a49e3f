"""INCFL's convergence: lemmas D.1 and D.2 on random points, theorem C.1's terms by plain sums, and INCFL itself."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import theory
from fljax.aggregators import incfl_update
from tests.precision import enable_x64

SETTING = theory.AppealSetting(6, 2, 3, lipschitz=1.5, smoothness=2.0, noise=0.7, excess=0.6)
CENTRES = np.random.default_rng(0).normal(size=(8, 2)) * 2
THRESHOLDS = np.linspace(0, 1.5, 8)
ALL = theory.AppealSetting(clients=8, noise=0.5)

amounts = st.floats(0.05, 20)


def sigma(z: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(z, np.longdouble)))


def by_hand(rounds: int, local: float, server: float) -> dict[str, float]:
    """The terms for ``SETTING``, from the inequalities of the proof one after the other."""
    many, few, tau, lc, ls, noise, excess = 6, 2, 3, 1.5, 2.0, 0.7, 0.6
    eps = few  # the server divides by sum_S q + eps
    fastest, slowest = few * tau * local * server / eps, few * tau * local * server / (few / 4 + eps)
    smooth = lc**2 / (6 * 3**0.5) + ls / 4
    sampled = (many - few) / (few * (many - 1))  # variance of a mean without replacement, of a population of variance 1
    away = sum(r * noise + r**2 * lc**2 for r in range(tau)) * 2 * local**2 / tau  # mean of E ||w_r - w||^2
    of_noise = sum(r * noise for r in range(tau)) * 2 * local**2 / tau
    tilt = (sampled * (1 / 4) * lc * (1 / 8) / (eps / few)) ** 2  # sd of the mean update times sd of the mean weight
    return {
        "start": 4 * excess / (slowest * rounds),
        "drift": 4 * fastest / slowest * ls**2 / 16 / 2 * (away - of_noise),
        "local_noise": 4 * fastest / slowest * ls**2 / 16 / 2 * of_noise,
        "noise": 4 / slowest * smooth * fastest**2 * noise / 16 / (few * tau),
        "sampling": 4 / slowest * smooth * fastest**2 * lc**2 / 16 * sampled,
        "normaliser": 4 * fastest / slowest * tilt,
    }


def printed_partial(setting: theory.AppealSetting, rounds: float, kappa: float) -> float:
    """The paper's (130), with beta^2 = 1 and kappa'^2 of lemma D.1."""
    m, many, tau = setting.participants or setting.clients, setting.clients, setting.local_steps
    lc, ls, noise = (float(each) for each in (setting.lipschitz, setting.smoothness, setting.noise))
    nu, root = ls + lc / 4, (rounds * tau * m) ** 0.5
    more = 4 * lc**2 + kappa
    first = (4 * float(setting.excess) + 4 * noise * nu) / root + 4 * noise * ls**2 / rounds**0.5
    rest = 8 * noise * ls**2 / (3 * tau * rounds) + 80 * ls**2 * more / rounds
    return first + rest + 48 * nu * (many - m) * lc**2 * tau**0.5 / (rounds * m) ** 0.5


# --- Lemma D.2: the Hessian and its bound -------------------------------------------------------------------


@jax.jit
def of_a_client(w: jax.Array, threshold: float, lipschitz: float, smoothness: float) -> tuple[jax.Array, ...]:
    """The gap, its gradient and Hessian, and the Hessian of the sigmoid of the gap."""
    gap = lambda w: theory.pseudo_huber(w, jnp.zeros(2), lipschitz, smoothness) - threshold  # noqa: E731
    return gap(w), jax.grad(gap)(w), jax.hessian(gap)(w), jax.hessian(lambda w: jax.nn.sigmoid(gap(w)))(w)


@pytest.mark.in_turn
@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-5, 5), amounts, amounts)
def test_the_hessian_is_the_second_derivative(x, y, threshold, lipschitz, smoothness):
    """Of the sigmoid of a client's pseudo-Huber loss; its norm is below all bounds."""
    with enable_x64(True):
        gap, gradient, hessian, expected = of_a_client(jnp.asarray([x, y]), threshold, lipschitz, smoothness)
        assert np.linalg.norm(gradient) <= lipschitz * (1 + 1e-12)
        assert np.linalg.norm(hessian, 2) <= smoothness * (1 + 1e-12)
        found = theory.appeal_hessian(gap, gradient, hessian)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        norm = float(np.linalg.norm(found, 2)) * (1 - 1e-9)
        assert norm <= theory.appeal_curvature(gap, lipschitz, smoothness)
        assert norm <= lipschitz**2 / 4 + float(sigma(gap)) * smoothness  # (64), which is larger
        assert norm <= theory.appeal_smoothness(lipschitz, smoothness)


@pytest.mark.in_turn
def test_the_largest_curvature_is_reached(x64):
    at = np.log(2 + 3**0.5)  # where sigma = (1 + 1/sqrt(3)) / 2
    largest = theory.appeal_curvature(np.array([-at, at]), 1.0, 0.0)
    np.testing.assert_allclose(largest, 1 / (6 * 3**0.5), rtol=1e-14)
    np.testing.assert_allclose(largest, theory.appeal_smoothness(1.0, 0.0), rtol=1e-14)
    assert np.all(theory.appeal_curvature(np.linspace(-12, 12, 2001), 1.0, 0.0) <= largest[0])
    assert theory.appeal_curvature(0.0, 1.0, 0.0) == 0
    assert theory.appeal_curvature(0.0, 5.0, 3.0) == theory.appeal_smoothness(0.0, 3.0) == 0.75


def test_the_printed_hessian_is_wrong(x64):
    """(59), with q read as the sigmoid or as the weight, at a loss of one variable and a gap above 0."""
    gap, gradient, hessian = 1.5, 2.0, 0.1
    found = float(theory.appeal_hessian(gap, jnp.asarray([gradient]), jnp.asarray([[hessian]]))[0, 0])
    step = 1e-4  # of a loss with this slope and curvature
    values = [sigma(gap + gradient * d + hessian * d * d / 2) for d in (-step, 0, step)]
    assert found == pytest.approx(float((values[0] - 2 * values[1] + values[2]) / step**2), rel=1e-5)
    assert found < 0
    for q in (sigma(gap), sigma(gap) * (1 - sigma(gap))):
        assert q * (gradient**2 * (1 - q) + hessian) > 0


@pytest.mark.in_turn
def test_the_printed_smoothness_is_too_small(x64):
    """``L_s + L_c / 4`` of (103) and (112), without the square: a steep loss, nearly linear, is a counterexample."""
    lipschitz, smoothness = 20.0, 0.1
    loss = lambda w: theory.pseudo_huber(w, jnp.zeros(1), lipschitz, smoothness)  # noqa: E731
    far = jnp.asarray([1000.0])
    appeal = lambda w: jax.nn.sigmoid(loss(w) - loss(far) + 1.3)  # noqa: E731
    curvature = float(jnp.abs(jax.hessian(appeal)(far)[0, 0]))
    assert curvature > 3 * (smoothness + lipschitz / 4)
    assert curvature <= theory.appeal_smoothness(lipschitz, smoothness)


# --- Lemma D.1: dissimilarity -------------------------------------------------------------------------------


slopes = jax.jit(jax.vmap(jax.grad(theory.pseudo_huber), in_axes=(None, 0, None, None)))


@pytest.mark.in_turn
@given(st.integers(0, 10_000), amounts, amounts, st.integers(1, 6))
def test_dissimilarity(seed, lipschitz, smoothness, clients):
    """On random points of random clients, with the smallest kappa^2 that assumption C.3 has for a drawn beta^2."""
    with enable_x64(True):
        random = np.random.default_rng(seed)
        centres, w = random.normal(size=(clients, 3)) * 3, random.normal(size=3) * 3
        thresholds, beta = random.uniform(0, 5, clients), 1 + random.exponential()
        gradients = slopes(jnp.asarray(w), jnp.asarray(centres), lipschitz, smoothness)
        gaps = theory.pseudo_huber(w, centres, lipschitz, smoothness) - thresholds
        weighted = np.asarray(gradients) * np.asarray(sigma(gaps) * (1 - sigma(gaps)), float)[:, None]
        second = lambda each: float(np.mean(np.sum(np.square(each), -1)))  # noqa: E731
        mean = lambda each: float(np.sum(np.square(np.mean(each, 0))))  # noqa: E731
        kappa = max(0.0, second(gradients) - beta * mean(gradients))
        more_beta, more_kappa = theory.appeal_dissimilarity(lipschitz, beta, kappa)
        assert second(weighted) <= (float(more_beta) * mean(weighted) + float(more_kappa)) * (1 + 1e-9)
        # As printed it holds too: it is larger.
        assert more_beta < 2 * beta
        assert more_kappa < 4 * beta * lipschitz**2 + kappa
        # And neither says more than what the Lipschitz constant says alone.
        assert second(weighted) <= lipschitz**2 / 16 * (1 + 1e-9) < more_kappa


# --- Theorem C.1: terms -------------------------------------------------------------------------------------


@pytest.mark.in_turn
def test_terms_are_those_of_the_proof(x64):
    for rounds, local, server in ((1000, 0.01, 0.3), (7, 0.001, 0.1)):
        found = theory.appeal_terms(SETTING, rounds, local, server)
        expected = by_hand(rounds, local, server)
        for name, value in expected.items():
            assert getattr(found, name) == pytest.approx(value, rel=1e-12), name
        bound = theory.appeal_bound(SETTING, rounds, local, server)
        assert bound == pytest.approx(sum(expected.values()), rel=1e-12)
    local, server = theory.appeal_rates(SETTING, 400)
    assert (local, server) == (pytest.approx(1 / (20 * 3)), pytest.approx(6**0.5))
    many = theory.appeal_terms(SETTING, np.array([400, 900]))
    assert many.start[0] == pytest.approx(by_hand(400, float(local), float(server))["start"], rel=1e-12)


def test_special_cases(x64):
    rounds = np.array([1e3, 1e5])
    everybody = theory.appeal_terms(SETTING._replace(participants=6), rounds)
    assert not np.any(everybody.sampling)
    assert not np.any(everybody.normaliser)
    quiet = theory.appeal_terms(SETTING._replace(noise=0.0), rounds)
    assert not np.any(quiet.noise)
    assert not np.any(quiet.local_noise)
    one_step = theory.appeal_terms(SETTING._replace(local_steps=1), rounds)
    assert not np.any(one_step.drift)
    assert not np.any(one_step.local_noise)
    gradient_descent = theory.appeal_terms(SETTING._replace(participants=None, noise=0.0, local_steps=1), rounds)
    assert all(not np.any(term) for term in gradient_descent[1:])
    assert np.all(gradient_descent.start > 0)
    with pytest.raises(ValueError, match="expected participants from 1 to 6, got 7"):
        theory.appeal_terms(SETTING._replace(participants=7), rounds)


def test_the_bound_falls_like_the_theorem_says(x64):
    """``1/sqrt(T)`` with everybody; with m of M it stops at the term of the normaliser, which (50) does not have."""
    rounds = np.array([1e10, 1e12])
    slope = lambda values: np.diff(np.log(values)) / np.diff(np.log(rounds))  # noqa: E731
    assert slope(theory.appeal_bound(SETTING._replace(participants=None), rounds)) == pytest.approx(-0.5, abs=1e-3)
    terms = theory.appeal_terms(SETTING, rounds)
    for name, expected in (("start", -0.5), ("noise", -0.5), ("sampling", -0.5), ("drift", -1), ("local_noise", -1)):
        assert slope(getattr(terms, name)) == pytest.approx(expected, abs=1e-9), name
    assert slope(terms.normaliser) == 0
    # Of m and tau, as in (50).
    twice = theory.appeal_terms(SETTING._replace(local_steps=12), rounds)
    assert twice.noise / terms.noise == pytest.approx(0.5, rel=1e-12)
    assert twice.sampling / terms.sampling == pytest.approx(2, rel=1e-12)
    # A larger eps, with the server's rate raised in proportion, takes the normaliser's term away.
    local, server = theory.appeal_rates(SETTING, rounds)
    wide = theory.appeal_terms(SETTING._replace(eps=200.0), rounds, local, 100 * server)
    assert np.all(wide.normaliser < 1e-4 * terms.normaliser)
    assert np.all(wide.sampling <= terms.sampling)


def test_steps_that_are_too_long(x64):
    least = float(theory.appeal_rounds(SETTING))
    assert np.isfinite(theory.appeal_bound(SETTING, np.ceil(least)))
    assert theory.appeal_bound(SETTING, np.floor(least)) == np.inf
    # Where nothing limits the server's rate, nothing can be said.
    assert theory.appeal_bound(SETTING._replace(eps=0.0), 1e9) == np.inf


@given(st.integers(0, 100_000), st.integers(2, 5), st.integers(1, 4), st.floats(0.02, 5), amounts, amounts)
def test_one_round_exactly(seed, clients, local_steps, eps, lipschitz, smoothness):
    """The bound for T = 1: over all cohorts, with the true decrease as ``excess``, at the longest step allowed."""
    random = np.random.default_rng(seed)
    few = int(random.integers(1, clients + 1))
    setting = theory.AppealSetting(clients, few, local_steps, lipschitz, smoothness, eps=eps * few)
    centres, w = random.normal(size=(clients, 2)) * 3, random.normal(size=2)
    thresholds = random.uniform(0, 3, clients)
    width = lipschitz / smoothness

    def losses(w: np.ndarray) -> np.ndarray:
        return lipschitz * width * (np.sqrt(1 + np.sum((w - centres) ** 2, -1) / width**2) - 1)

    def slopes(w: np.ndarray) -> np.ndarray:
        return smoothness * (w - centres) / np.sqrt(1 + np.sum((w - centres) ** 2, -1, keepdims=True) / width**2)

    def objective(w: np.ndarray) -> float:
        return float(sigma(losses(w) - thresholds).mean())

    local = random.uniform(0.01, 2) / smoothness / local_steps
    smooth = lipschitz**2 / (6 * 3**0.5) + smoothness / 4
    server = eps**2 / (2 * smooth * (1 / 4 + eps)) / (local_steps * local)
    models = np.broadcast_to(w, centres.shape)
    for _ in range(local_steps):
        models = models - local * slopes(models)
    chance = np.asarray(sigma(losses(w) - thresholds), float)
    weights = chance * (1 - chance)
    after = []
    for cohort in itertools.combinations(range(clients), few):
        chosen = list(cohort)
        step = weights[chosen] @ (models - w)[chosen] / (weights[chosen].sum() + eps * few)
        after.append(objective(w + server * step))
    squared = float(np.sum(np.square(weights @ slopes(w) / clients)))
    with enable_x64(True):
        terms = theory.appeal_terms(setting._replace(excess=objective(w) - np.mean(after)), 1, local, server)
        assert squared <= float(sum(terms, jnp.zeros(()))) * (1 + 1e-9) + 1e-12


# --- INCFL itself -------------------------------------------------------------------------------------------


def measured(setting: theory.AppealSetting, rounds: int, **options: Any) -> np.ndarray:
    """The squared gradients ``[repetitions, rounds]``."""
    few = {"centres": CENTRES[: setting.clients], "thresholds": THRESHOLDS[: setting.clients], **options}
    run = lambda key: theory.appeal_gradients(key, setting=setting, rounds=rounds, **few)  # noqa: E731
    return np.asarray(jax.jit(run)(jax.random.key(0)))


@jax.jit
def incfl_round(start: jax.Array, centres: jax.Array, thresholds: jax.Array) -> jax.Array:
    """Three local steps at the rate 0.05, and the package's aggregator."""
    slope = jax.vmap(jax.grad(theory.pseudo_huber), in_axes=(0, 0, None, None))
    models = jnp.broadcast_to(start, centres.shape)
    for _ in range(3):
        models = models - 0.05 * slope(models, centres, 1.0, 1.0)
    gap = theory.pseudo_huber(start, centres, 1.0, 1.0) - thresholds
    return start + incfl_update(models - start[None], gap, server_lr=0.7, eps=0.5)


@pytest.mark.in_turn
def test_a_round_is_incfls(x64):
    setting = theory.AppealSetting(clients=8, local_steps=3, eps=0.5)
    start, centres, thresholds = jnp.asarray([0.3, -0.4]), jnp.asarray(CENTRES), jnp.asarray(THRESHOLDS)
    found = measured(setting, 2, start=start, local=0.05, server=0.7)
    gradient = jax.grad(theory.appeal_objective)
    for which, place in enumerate((start, incfl_round(start, centres, thresholds))):
        expected = float(jnp.sum(gradient(place, centres, thresholds, setting) ** 2))
        assert found[0, which] == pytest.approx(expected, rel=1e-10)


@pytest.mark.in_turn
@pytest.mark.sampled(6)
@pytest.mark.parametrize("participants", [None, 4, 1])
@pytest.mark.parametrize("local_steps", [1, 4])
def test_the_bound_holds(participants, local_steps, x64):
    setting = ALL._replace(participants=participants, local_steps=local_steps)
    start = theory.appeal_objective(jnp.zeros(2), jnp.asarray(CENTRES), jnp.asarray(THRESHOLDS), setting)
    setting = setting._replace(excess=start)
    rounds = int(theory.appeal_rounds(setting)) + 200
    found = measured(setting, rounds, repetitions=20)
    assert found.shape == (20, rounds)
    assert found.mean() < theory.appeal_bound(setting, rounds)
    assert found.mean(0).min() <= found.mean()


@pytest.mark.optimised
@pytest.mark.thorough
def test_the_rate_in_rounds(x64):
    """Of the mean over rounds, with everybody: the rate of the bound, -1/2."""
    rounds = np.array([500, 2000, 8000])
    found = [measured(ALL, int(T), repetitions=4).mean() for T in rounds]
    slopes = np.diff(np.log(found)) / np.diff(np.log(rounds))
    np.testing.assert_allclose(slopes, -0.5, atol=0.1)


# --- Partial participation does not find a stationary point of the objective ----------------------------------


@pytest.mark.in_turn
def test_one_client_a_round_without_eps_is_fedavg():
    """The server's division by the sum of weights cancels the weight of a single client."""
    update = jnp.asarray([[0.3, -2.0]])
    for gap in (-3.0, 0.0, 7.0):
        np.testing.assert_allclose(incfl_update(update, jnp.asarray([gap]), eps=0.0), update[0], rtol=1e-6)


def two_clients(eps: float) -> tuple[theory.AppealSetting, dict[str, Any], float]:
    """One of two clients takes part; a start at which the expected step is 0; and the squared gradient there."""
    setting = theory.AppealSetting(2, 1, eps=eps)
    centres, thresholds = jnp.asarray([[0.0], [4.0]]), jnp.asarray([0.2, 0.0])

    def expected_step(w: jax.Array) -> jax.Array:
        loss, slope = jax.vmap(jax.value_and_grad(theory.pseudo_huber), in_axes=(None, 0, None, None))(
            w, centres, 1.0, 1.0
        )
        weight = jax.nn.sigmoid(loss - thresholds) * jax.nn.sigmoid(thresholds - loss)
        return jnp.mean(weight * slope[:, 0] / (weight + eps))

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (ends[0] + ends[1]) / 2
        right = expected_step(middle) > 0
        return jnp.where(right, ends[0], middle), jnp.where(right, middle, ends[1])

    place, _ = jax.jit(lambda ends: jax.lax.fori_loop(0, 60, halve, ends))((jnp.zeros(1), jnp.full(1, 1.9)))
    assert abs(float(expected_step(place))) < 1e-12
    gradient = jax.grad(theory.appeal_objective)(place, centres, thresholds, setting)
    return setting, {"centres": centres, "thresholds": thresholds, "start": place}, float(jnp.sum(gradient**2))


@pytest.mark.in_turn
@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_the_printed_bound_for_partial_participation_is_too_small(eps, x64):
    """Where the expected step is 0 the gradient is not, so it does not tend to 0 as the printed bound does."""
    setting, _, floor = two_clients(eps)
    assert floor > (2e-5 if eps == 1 else 1e-3)
    assert printed_partial(setting, 1e15, kappa=1.0) < 0.2 * floor
    # The corrected bound has a term for it.
    assert floor < theory.appeal_terms(setting, 1e15).normaliser
    assert theory.appeal_bound(setting._replace(participants=2, eps=2 * eps), 1e15) < 0.2 * floor


@pytest.mark.optimised
@pytest.mark.thorough
@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_partial_participation_has_a_floor(eps, x64):
    """A long run has short steps, which keep it near the above point."""
    setting, problem, floor = two_clients(eps)
    found = measured(setting, 10_000, repetitions=16, **problem).mean(0)
    assert 0.6 * floor < found.min() < floor
