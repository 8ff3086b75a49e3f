"""IAFL's convergence theorems: their terms against plain sums, and IAFL itself on quadratics."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import theory
from fljax.aggregators import iafl_subsets

SETTING = theory.Setting(2.0, 0.5, 3, 1.5, 0.7, 0.4, 2.0)
CLIENTS, RUNS = 6, 200
RATES = jnp.asarray([0.2, 0.4, 0.6, 0.6, 0.8, 1.0])


def induced(rounds: int, clients: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 1, size=(rounds, clients))


def plain_sums(rates: np.ndarray, q: float, reference: np.ndarray | None) -> np.ndarray:
    """``C_T`` or, with a reference, ``E_T``, term by term."""
    big_l, mu, tau, g = SETTING[:4]
    a = 4 * big_l * (tau + 1) / (mu * tau)
    rounds, clients = rates.shape
    total = np.zeros((rounds, clients))
    for last in range(1, rounds + 1):
        scale = (2 - 2 * mu / (mu * tau * (last + a))) * tau**3 * g**2
        for i in range(clients):
            for t in range(1, last + 1):
                ratio = ((last + a) / (t + a)) ** 2
                if reference is None:
                    term = np.mean([1 / rates[t - 1, m] + 1 / rates[t - 1, i] - 2 for m in range(clients)])
                else:
                    term = 1 / rates[t - 1, i] + 1 / reference[t - 1] - 2
                total[last - 1, i] += scale * ratio * term * (1 - q) ** (last - t + 1 if reference is not None else 0)
    return total


@pytest.mark.in_turn
def test_terms_are_the_papers_sums(x64):
    rates, reference = induced(7), np.linspace(0.5, 1, 7)
    np.testing.assert_allclose(theory.propagation_term(SETTING, rates), plain_sums(rates, 0, None), rtol=1e-12)
    for q in (0.0, 0.3, 1.0):
        common, own = theory.recovery_terms(SETTING, rates, reference, q)
        expected = plain_sums(rates, q, reference)
        np.testing.assert_allclose(own, expected, rtol=1e-12)
        np.testing.assert_allclose(common, expected.mean(1), rtol=1e-12)
    common, own = theory.recovery_terms(SETTING, rates, 1.0, 0.0)
    np.testing.assert_allclose(common[:, None] + own, theory.propagation_term(SETTING, rates), rtol=1e-12)
    with pytest.raises(ValueError, match=r"expected induced rates of shape \[rounds, clients\], got \(7,\)"):
        theory.propagation_term(SETTING, reference)


def test_induced_rates(x64):
    np.testing.assert_allclose(theory.induced_rates(np.array([0.25, 0.5, 1.0])), [0.5, 2 / 3, 1], rtol=1e-14)
    np.testing.assert_allclose(theory.induced_rates(jnp.zeros(5)), 0.2, rtol=1e-14)


@pytest.mark.thorough
def test_propagation_term(x64):
    rates = induced(50)
    term = theory.propagation_term(SETTING, rates)
    np.testing.assert_array_equal(theory.propagation_term(SETTING, np.ones((50, 4))), 0)
    assert np.all(np.diff(term, axis=0) > 0)
    # A larger rate helps its owner most, and everybody else.
    more = rates.copy()
    more[:, 1] = 1
    change = theory.propagation_term(SETTING, more) - term
    assert np.all(change < 0)
    assert np.all(np.argmin(change, axis=1) == 1)
    # One client below 1 is enough.
    one = np.ones((50, 4))
    one[:, 0] = 0.9
    assert np.all(theory.propagation_term(SETTING, one) > 0)
    # It grows like T^2, so that the bound itself grows like T.
    long = theory.propagation_term(SETTING, np.full((20_000, 2), 0.5))[:, 0]
    assert long[19_999] / long[9_999] == pytest.approx(4, abs=0.02)
    bound = theory.propagation_bound(SETTING, np.full((20_000, 2), 0.5))[:, 0]
    assert bound[19_999] / bound[9_999] == pytest.approx(2, abs=0.02)
    assert theory.propagation_bound(SETTING, np.ones((20_000, 2)))[-1, 0] < 0.02


@pytest.mark.in_turn
@pytest.mark.parametrize("q", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("a", [0.0, 8.0, 40.0])
def test_the_closed_form_of_the_limit(q, a, x64):
    count = np.arange(1, 8000)
    terms = (count + a) ** 2 * (1 - q) ** count
    assert theory.recovery_limit(q, a) == pytest.approx(terms.sum(), rel=1e-12)
    # The sum that it bounds has another limit.
    setting = theory.Setting(offset=a)
    weights = theory.recovery_weights(setting, 20_000, q)
    assert np.all(weights <= theory.recovery_limit(q, a) + 1e-12)
    assert weights[-1] == pytest.approx((1 - q) / q, rel=0.02)


@pytest.mark.thorough
def test_recovery_bound(x64):
    rates = np.broadcast_to(np.array([0.3, 0.6, 1.0, 1.0]), (30_000, 4))
    bound = theory.recovery_bound(SETTING, rates, 1.0, 0.1)
    assert np.all(np.diff(bound[1000:], axis=0) < 0)
    assert np.all(bound[-1] < 0.15 * bound[1000])
    assert np.all(np.diff(bound[:, :3], axis=1) < 0)  # whoever contributes more has a better guarantee
    np.testing.assert_array_equal(bound[:, 2], bound[:, 3])
    everything = theory.recovery_bound(SETTING, rates, 1.0, 1.0)
    assert np.ptp(everything, axis=1).max() == 0
    assert np.all(everything <= bound)
    # By hand, two rounds.
    mu, tau = SETTING.convexity, SETTING.local_steps
    eta, (common, own) = (
        np.asarray(theory.learning_rates(SETTING, 2)),
        theory.recovery_terms(SETTING, rates[:2], 1.0, 0.1),
    )
    big_q = 2 * 2.0 * 3 * 9 * 0.4 + 2 * 27 * 1.5**2 + 9 * 0.7
    pushed = eta**2 * (big_q + common + own[:, 0])
    keep = 1 - 2 * mu * eta * tau
    assert bound[1, 0] == pytest.approx(float(keep[0] * keep[1] * 2.0 + pushed[0] * keep[1] + pushed[1]), rel=1e-12)


def errors(rates: Any, *, recovery: float = 0.0, rounds: int = 300, seed: int = 0, **options: Any) -> theory.Errors:
    centres = jax.random.normal(jax.random.key(seed + 100), (RUNS, CLIENTS, 2))
    run = partial(theory.quadratic_errors, rounds=rounds, repetitions=RUNS, **options)
    return jax.jit(run)(jax.random.key(seed), centres, jnp.asarray(rates), recovery=recovery)


def mean_and_error(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Over repetitions."""
    values = np.asarray(found)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def clearly_positive(differences: np.ndarray, errors: float = 4) -> bool:
    """Whether the mean over repetitions is, by so many standard errors."""
    mean, spread = mean_and_error(differences)
    return bool(np.all(mean > errors * spread))


@pytest.mark.thorough
def test_without_recovery_errors_stay():
    found = np.asarray(errors(jnp.asarray([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])).clients)
    assert clearly_positive(found[:, -1, :-1] - found[:, -1, 1:])  # the more a client contributes, the nearer it gets
    assert clearly_positive(found[:, -1] - found[:, 99])  # they grow, towards everybody's own optimum
    perfect, _ = mean_and_error(errors(jnp.ones(CLIENTS)).clients)
    assert np.all(perfect[-1] < 0.003)
    assert np.all(found.mean(0)[-1] > 10 * perfect[-1])


@pytest.mark.thorough
def test_one_low_contributor_hurts_everybody():
    mean, spread = mean_and_error(errors(jnp.ones(CLIENTS).at[0].set(0.2)).clients)
    perfect, _ = mean_and_error(errors(jnp.ones(CLIENTS)).clients)
    assert np.all(mean[-1] - 4 * spread[-1] > 3 * perfect[-1])
    assert np.all(mean[-1, 0] > 5 * mean[-1, 1:])


@pytest.mark.thorough
def test_recovery_brings_everybody_to_the_optimum():
    mean, _ = mean_and_error(errors(RATES, recovery=0.2, rounds=600).clients)
    assert np.all(mean[599] < 0.4 * mean[299])
    assert np.all(mean[599] < 0.003)
    seldom = np.asarray(errors(RATES, recovery=0.05).clients)
    underway = seldom[:, 20:].mean(1)
    assert clearly_positive(underway[:, :5] - underway[:, 5:])  # at a finite time more still pays
    often, _ = mean_and_error(errors(RATES, recovery=1.0).clients)
    assert np.all(often[-1] < 0.5 * seldom.mean(0)[-1])


@pytest.mark.thorough
def test_special_cases(x64):
    centres = jax.random.normal(jax.random.key(3), (CLIENTS, 2))
    run = partial(theory.quadratic_errors, jax.random.key(0), centres, rounds=40, repetitions=3)
    compiled = jax.jit(lambda q: run(jnp.ones(CLIENTS), recovery=q))
    # FedAvg, whatever q: the mean's error falls by prod (1 - eta_t).
    time = np.arange(1, 41) + 8.0
    expected = np.cumprod(1 - 1 / time) ** 2 * float(jnp.sum(centres.mean(0) ** 2))
    for q in (0.0, 0.5):
        found = compiled(q)
        np.testing.assert_allclose(found.clients, np.broadcast_to(expected[None, :, None], (3, 40, 6)), rtol=1e-10)
        np.testing.assert_allclose(found.reference, np.broadcast_to(expected, (3, 40)), rtol=1e-10)
    # Nothing shared: everybody alone, here with three local steps.
    alone = jax.jit(lambda start: run(jnp.zeros(CLIENTS), local_steps=3, start=start))(jnp.asarray([1.0, -1.0]))
    left = np.prod((1 - 1 / (3 * time)) ** 3)
    models = centres + left * (jnp.asarray([[1.0, -1.0]]) - centres)
    np.testing.assert_allclose(alone.models, np.broadcast_to(models, (3, 6, 2)), rtol=1e-10)
    with pytest.raises(ValueError, match=r"got \(6, 2\) and \(5,\) with 3 repetitions"):
        run(jnp.ones(5))


@pytest.mark.thorough
def test_expected_subsets(x64):
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = jax.jit(jax.vmap(lambda key: iafl_subsets(key, RATES)))(keys).mean(0)
    np.testing.assert_allclose(theory.expected_subsets(RATES), drawn, atol=0.03)
    np.testing.assert_allclose(theory.expected_subsets(RATES).sum(1), 1, rtol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("recovery", [0.0, 0.3])
def test_simulated_models_have_the_expected_mean(recovery):
    centres = jax.random.normal(jax.random.key(7), (CLIENTS, 2))
    options: dict[str, Any] = {"rounds": 30, "recovery": recovery, "local_steps": 2, "start": 0.5}
    run = jax.jit(partial(theory.quadratic_errors, repetitions=2000, **options))
    mean, spread = mean_and_error(run(jax.random.key(1), centres, RATES).models)
    expected = theory.expected_models(centres, RATES, **options)[-1]
    np.testing.assert_array_less(np.abs(mean - expected), 4.5 * spread + 1e-5)


@pytest.mark.in_turn
def test_without_recovery_everybody_drifts_to_its_own_optimum(x64):
    centres = jax.random.normal(jax.random.key(7), (CLIENTS, 2))
    slow = theory.expected_models(centres, jnp.full(CLIENTS, 0.2), rounds=20_000)
    apart = jnp.sum((slow - centres[None]) ** 2, axis=(1, 2))
    assert apart[-1] < 0.05 * apart[10]
    matrix = np.asarray(theory.expected_subsets(RATES))
    assert np.linalg.cond(matrix) < 1e3  # so that A (c - theta) = 0 at theta = c alone
    pulled = theory.expected_models(centres, jnp.full(CLIENTS, 0.2), rounds=20_000, recovery=0.1)
    assert jnp.sum((pulled[-1] - centres.mean(0, keepdims=True)) ** 2) < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("q", [0.0, 0.2])
def test_the_bounds_hold(q):
    """With G and the rest taken from the run itself."""
    centres = jax.random.normal(jax.random.key(9), (CLIENTS, 2))
    run = jax.jit(partial(theory.quadratic_errors, rounds=100, repetitions=100))
    found = run(jax.random.key(2), centres, RATES, recovery=q)
    middle = centres.mean(0, keepdims=True)
    spread, start = float(jnp.sum((centres - middle) ** 2, -1).mean()), float(jnp.sum(middle**2))
    gradient = float(jnp.linalg.norm(centres - middle, axis=1).max() + jnp.sqrt(found.clients.max()))
    setting = theory.Setting(gradient=gradient, heterogeneity=spread / 2, distance=start)
    rates = jnp.broadcast_to(theory.induced_rates(RATES), (100, CLIENTS))
    bound = theory.recovery_bound(setting, rates, 1.0, q) if q else theory.propagation_bound(setting, rates)
    assert np.all(found.clients.mean(0) / 2 < bound)
