"""The game that IAFL's mechanism makes: closed forms, propositions 1 and 3, equilibria."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fljax import theory
from fljax.aggregators import iafl_rates

pytestmark = pytest.mark.in_turn

CLIENTS, COST = 10, 0.1
ALONE = -np.log(COST)  # p*
RELATIVE = theory.Game(iafl_rates, COST)


def with_ceiling(ceiling: float, kappa: float = 0.0, cost: float = COST) -> theory.Game:
    return theory.Game(partial(iafl_rates, ceiling=ceiling, kappa=kappa), cost)


def evenly(total: float, clients: int = CLIENTS) -> jax.Array:
    return jnp.full(clients, total / clients)


@pytest.fixture(autouse=True)
def _double_precision(x64):
    """The closed forms deserve it; single precision has its own test."""


def test_utilities():
    game = with_ceiling(2.0, 0.5, cost=0.3)
    p = np.array([0.5, 2.0, 3.0, 0.0])
    share = np.sqrt([0.25, 1, 1, 0])
    worth = 1 - np.exp(-(p + share * (p.sum() - p)))
    np.testing.assert_allclose(theory.rewards(game, p), worth, rtol=1e-14)
    np.testing.assert_allclose(theory.utilities(game, p), worth - 0.3 * p, rtol=1e-14)
    apart = game._replace(cost=np.array([0.1, 0.2, 0.3, 0.4]), benefit=jnp.sqrt)
    np.testing.assert_allclose(
        theory.utilities(apart, p), np.sqrt(p + share * (p.sum() - p)) - p * [0.1, 0.2, 0.3, 0.4], rtol=1e-14
    )


@pytest.mark.quick
def test_contributions_have_a_shape():
    for call in (theory.rewards, theory.best_responses, theory.nash):
        with pytest.raises(ValueError, match=r"expected contributions of shape \[clients\], got \(2, 2\)"):
            call(RELATIVE, np.ones((2, 2)))


@pytest.mark.quick
def test_what_one_client_contributes_alone():
    costs = np.array([0.01, 0.1, 0.5, 1.0, 2.0])
    expected = [*-np.log(costs[:3]), 0, 0]
    np.testing.assert_allclose(theory.solo_contribution(RELATIVE._replace(cost=costs)), expected, atol=1e-12)
    root = theory.Game(iafl_rates, 0.25, benefit=lambda x: 2 * jnp.sqrt(x + 1))
    assert theory.solo_contribution(root) == pytest.approx(15 - 5, abs=1e-12)  # above the upper end: the end
    assert theory.solo_contribution(root._replace(upper=20.0)) == pytest.approx(15, abs=1e-12)


def test_best_responses_in_plain_federated_learning():
    """Everybody tops up what the others do to ``p*``."""
    p = jnp.asarray([[0.0, 0.3, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0]])
    found = jax.jit(jax.vmap(lambda p: theory.best_responses(theory.plain_game(RELATIVE), p)))(p)
    np.testing.assert_allclose(found[0], np.maximum(ALONE - (p[0].sum() - p[0]), 0), atol=1e-9)
    np.testing.assert_array_equal(found[1], 0)


def test_best_responses_to_the_relative_rule():
    """Three pieces: up to the others' largest m, that kink itself, and beyond it."""
    # Others at m each: x (1 + (N - 1)) for x < m, so N exp(-N x) = c where that is below m.
    inside = np.log(CLIENTS / COST) / CLIENTS
    m = np.array([0.6, 1.0, 3.0, ALONE / CLIENTS, 0.3, 0.46, 0.05, 0.2])
    expected = [*[inside] * 3, *m[3:6], *(ALONE - (CLIENTS - 1) * m[6:])]
    respond = jax.jit(jax.vmap(lambda m: theory.best_responses(RELATIVE, jnp.full(CLIENTS, m))))
    np.testing.assert_allclose(respond(m), np.tile(expected, (CLIENTS, 1)).T, rtol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 0.9])
def test_best_responses_against_another_optimiser(kappa):
    game = with_ceiling(1.5, kappa, cost=0.2)
    p = np.array([0.0, 0.1, 0.4, 1.2, 2.0])
    found = np.asarray(jax.jit(lambda p: theory.best_responses(game, p))(p))
    for i in range(len(p)):
        others = p.sum() - p[i]

        def loss(x, others=others):
            return 0.2 * x - 1 + np.exp(-(x + min(x / 1.5, 1) ** (1 - kappa) * others))

        tried: list[Any] = [
            optimize.minimize_scalar(loss, bounds=ends, method="bounded") for ends in ((0, 1.5), (1.5, 10))
        ]
        best = min(tried, key=lambda result: result.fun)
        assert loss(found[i]) <= best.fun + 1e-12
        assert found[i] == pytest.approx(best.x, abs=2e-5)


def test_individual_rationality():
    rng = np.random.default_rng(0)
    p, ceilings, kappas = rng.exponential(size=(50, 6)), rng.uniform(0.1, 3, size=50), rng.uniform(size=50)
    found = jax.vmap(lambda p, ceiling, kappa: theory.rewards(with_ceiling(ceiling, kappa), p))(p, ceilings, kappas)
    assert np.all(found >= theory.saturating(p))
    p = np.array([0.0, 1.0, 2.0])
    assert theory.rewards(RELATIVE, p)[0] == theory.saturating(0.0)  # a rate of 0 adds nothing


INCREASING = {
    "relative": iafl_rates,
    "ceiling": partial(iafl_rates, ceiling=4.0),
    "shared": partial(iafl_rates, ceiling=4.0, kappa=0.8),
    "bounded": lambda p: p / (1 + p),
    "exponential": lambda p: 1 - jnp.exp(-2 * p),
    "late": lambda p: jax.nn.sigmoid(4 * (p - 1)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("rule", INCREASING)
def test_increasing_rewards_raise_contributions(rule):
    rng = np.random.default_rng(1)
    profiles, costs = rng.uniform(0.05, 0.4, size=(10, 6)), rng.uniform(0.01, 0.2, size=10)
    # The largest is above what anybody would do, so that the relative rule increases where it matters.
    profiles[:, 0] = 3.0
    respond = jax.jit(jax.vmap(lambda p, cost: theory.best_responses(theory.Game(INCREASING[rule], cost), p)))
    rewarded = np.asarray(respond(profiles, costs))
    freely = np.maximum(-np.log(costs)[:, None] - (profiles.sum(1, keepdims=True) - profiles), 0)
    assert np.all(rewarded[:, 1:] > freely[:, 1:] + 0.01)


def test_proposition_1_needs_a_reward_that_is_no_larger_than_everything():
    """Its proof compares the marginal benefit at two different rewards; a generous rule satisfies it and deters."""
    generous = theory.Game(lambda p: 3 + 0.01 * p, COST)
    p = jnp.full(3, 0.2)
    responses = jax.jit(lambda p: theory.best_responses(generous, p))(p)
    assert np.all(responses < ALONE - 2 * 0.2 - 0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("clients", [2, 5, 30])
def test_the_bad_equilibrium_of_the_relative_rule(clients):
    costs = jnp.asarray([0.02, 0.1, 0.6])
    alone = theory.solo_contribution(RELATIVE._replace(cost=costs))
    np.testing.assert_allclose(alone, -np.log(costs), rtol=1e-12)

    def relative(cost, total):
        return theory.deviation_gains(theory.Game(iafl_rates, cost), evenly(total, clients))

    assert np.all(jax.jit(jax.vmap(relative))(costs, alone) < 1e-12)

    def mechanism(cost, total, ceiling, kappa):
        game, profile = with_ceiling(ceiling, kappa, cost), evenly(total, clients)
        return theory.deviation_gains(game, profile), theory.best_responses(game, profile) / profile

    compiled = jax.jit(jax.vmap(mechanism))
    # Equation (1) with a ceiling above it: everybody gains by doing more.
    for ceiling, kappa in ((2 * alone / clients, 0.0), (2 * alone / clients, 0.5), (alone, 0.0)):
        gain, response = compiled(costs, alone, ceiling, jnp.full(3, kappa))
        assert np.all(gain > 2e-4)
        assert np.all(response > 1.02)
    # A ceiling below it is no incentive.
    gain, response = compiled(costs, alone, 0.9 * alone / clients, jnp.zeros(3))
    assert np.all(gain < 1e-12)
    np.testing.assert_allclose(response, 1, rtol=1e-9)


def test_all_symmetric_equilibria_of_the_relative_rule():
    low, high = theory.relative_equilibria(CLIENTS, cost=COST)
    assert low == pytest.approx(ALONE, rel=1e-12)
    assert high == pytest.approx(ALONE + np.log(CLIENTS), rel=1e-12)
    totals = np.array([*np.linspace(low, high, 5), 0.9 * low, 1.1 * high])
    gains = jax.jit(jax.vmap(lambda total: theory.deviation_gains(RELATIVE, evenly(total))))(totals)
    assert np.all(gains[:5] < 1e-12)
    assert np.all(gains[5:] > 5e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["sequential", "simultaneous"])
def test_iterated_responses(order):
    """Equation (1): one place of rest. The relative rule: the start decides, and how cautious the steps are."""
    starts = jnp.asarray([0.0, ALONE / CLIENTS, 0.4, 2.0])
    profiles = jnp.broadcast_to(starts[:, None], (4, CLIENTS))

    def rest(game):
        return jax.jit(jax.vmap(lambda p: theory.nash(game, p, order=order)))(profiles)

    ceiling = rest(with_ceiling(1.0))
    assert np.all(ceiling.converged)
    assert np.all(ceiling.gain < 1e-9)
    symmetric = CLIENTS * theory.symmetric_equilibrium(CLIENTS, cost=COST, ceiling=1.0)
    np.testing.assert_allclose(ceiling.total, symmetric, rtol=1e-5)
    assert symmetric > 2.5 * ALONE

    relative = rest(RELATIVE)
    high = ALONE + np.log(CLIENTS)
    assert np.all(relative.converged)
    assert np.all(relative.gain < 1e-7)
    # From nothing, small steps together end in proposition 3's equilibrium; a client that steps alone goes past it.
    from_nothing = ALONE if order == "simultaneous" else high
    np.testing.assert_allclose(relative.total, [from_nothing, ALONE, 4.0, high], rtol=1e-4)

    plainly = rest(theory.plain_game(RELATIVE))
    assert np.all(plainly.converged)
    np.testing.assert_allclose(plainly.total, ALONE, rtol=1e-5)


@pytest.mark.thorough
def test_unequal_costs_under_the_ceiling():
    """Who pays less contributes more; in plain federated learning the cheapest pays for all."""
    cost = jnp.asarray([0.05, 0.1, 0.2, 0.4])
    game = with_ceiling(2.0)._replace(cost=cost)
    found = jax.jit(lambda p: theory.nash(game, p))(jnp.zeros(4))
    assert found.converged
    assert found.gain < 1e-9
    assert np.all(np.diff(found.contribution) < -0.01)
    freely = jax.jit(lambda p: theory.nash(theory.plain_game(game), p))(jnp.full(4, 0.1))
    np.testing.assert_allclose(freely.contribution, [-np.log(0.05), 0, 0, 0], atol=1e-6)
    assert found.total > 1.4 * freely.total


def test_no_rest_is_said():
    game = theory.plain_game(RELATIVE)
    found = jax.jit(lambda p: theory.nash(game, p, order="simultaneous", damping=1.0, sweeps=20))(evenly(1.0))
    assert not found.converged
    assert found.sweeps == 20
    assert found.gain > 0.01
    with pytest.raises(ValueError, match="expected an order, got 'both'; valid names are sequential, simultaneous"):
        theory.nash(RELATIVE, evenly(1.0), order="both")


def test_symmetric_equilibria():
    ceilings, kappas = (grid.ravel() for grid in np.meshgrid([0.1, 0.3, 1.0, 5.0], [0.0, 0.5, 1.0]))

    @jax.jit
    @jax.vmap
    def solve(ceiling, kappa):
        p = theory.symmetric_equilibrium(CLIENTS, cost=COST, ceiling=ceiling, kappa=kappa)
        return p, theory.deviation_gains(with_ceiling(ceiling, kappa), jnp.full(CLIENTS, p)).max()

    found, gains = solve(ceilings, kappas)
    assert np.all(gains < 1e-12)
    for p, ceiling, kappa in zip(found, ceilings, kappas, strict=True):
        if kappa == 1 or ceiling < ALONE / CLIENTS:
            assert CLIENTS * p == pytest.approx(ALONE, rel=1e-12)
        elif ceiling == 0.3:
            assert p == pytest.approx(ceiling, rel=1e-12)  # at the kink
        else:
            s = (p / ceiling) ** (1 - kappa)
            x = p * (1 + (CLIENTS - 1) * s)
            assert np.exp(-x) * (1 + (1 - kappa) * (CLIENTS - 1) * s) == pytest.approx(COST, rel=1e-10)
            assert CLIENTS * p > 1.5 * ALONE


def test_what_the_mechanism_does_to_the_total():
    """More sharing or a lower ceiling: less is contributed."""
    kappas, ceilings = jnp.linspace(0, 1, 6), jnp.asarray([0.5, 1.0, 2.0, 5.0])

    def total(ceiling, kappa):
        return CLIENTS * theory.symmetric_equilibrium(CLIENTS, cost=COST, ceiling=ceiling, kappa=kappa)

    table = jax.vmap(lambda ceiling: jax.vmap(lambda kappa: total(ceiling, kappa))(kappas))(ceilings)
    assert np.all(np.diff(table, axis=1) < -0.05)
    assert np.all(np.diff(table[:, :-1], axis=0) > 0.05)
    np.testing.assert_allclose(table[:, -1], ALONE, rtol=1e-12)


def test_another_benefit():
    def benefit(x):
        return jnp.log1p(x)

    p = theory.symmetric_equilibrium(4, cost=0.2, ceiling=3.0, kappa=0.3, benefit=benefit)
    game = with_ceiling(3.0, 0.3, cost=0.2)._replace(benefit=benefit)
    assert jax.jit(lambda p: theory.is_equilibrium(game, p, tolerance=1e-12))(jnp.full(4, p))
    assert theory.solo_contribution(game) == pytest.approx(4, rel=1e-12)
    low, high = theory.relative_equilibria(4, cost=0.2, benefit=benefit)
    assert low == pytest.approx(4, rel=1e-12)
    assert high == pytest.approx(19, rel=1e-12)
