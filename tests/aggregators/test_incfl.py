"""INCFL's weights and update: closed forms, edges, and what makes no difference."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.aggregators import incfl_update, incfl_weights
from tests.drawn import at_most

pytestmark = pytest.mark.usefixtures("strict")

SURROGATES = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "relu": lambda x: np.maximum(x, 0),
    "hinge": lambda x: np.maximum(1 + x, 0),
    "exp": np.exp,
}
UPDATES = {"w": np.array([[1.0, 2.0], [-3.0, 0.5], [2.0, 2.0], [0.1, -4.0]], np.float32)}
GAP = np.array([0.4, -1.2, 2.5, 0.0], np.float32)


def updates():
    return jax.tree.map(jnp.asarray, UPDATES)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_weights_are_the_derivative_of_the_surrogate(surrogate, x64):
    gap = np.array([-3.0, -0.7, -0.01, 0.02, 1.0, 4.0])
    objective, h = SURROGATES[surrogate], 1e-6
    expected = (objective(gap + h) - objective(gap - h)) / (2 * h)
    found = incfl_weights(jnp.asarray(gap), surrogate=surrogate)
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


SCALES = [0.1, 1.0, 6.0, 30.0]
OBJECTIVES = {
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
    "hinge": lambda x: jax.nn.relu(1 + x),
    "exp": jnp.exp,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_scaled_weights_are_the_derivative_of_the_scaled_surrogate(surrogate, scale, x64):
    gap = jnp.asarray([-0.6, -0.3, -0.01, 0.02, 0.4, 0.6])
    expected = jax.vmap(jax.grad(lambda gap: OBJECTIVES[surrogate](scale * gap)))(gap)
    np.testing.assert_allclose(
        incfl_weights(gap, surrogate=surrogate, gap_scale=scale), expected, rtol=1e-12, atol=1e-14
    )
    traced = jax.jit(lambda scale: incfl_weights(gap, surrogate=surrogate, gap_scale=scale))(jnp.asarray(scale))
    np.testing.assert_allclose(traced, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.in_turn
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_scaled_update_descends_the_scaled_objective(surrogate, scale, x64):
    """``(sum_k q_k) * update = -grad sum_k h(scale (F_k(w) - rho_k))`` for clients that send ``-grad F_k(w)``."""
    centres, w = jnp.asarray(UPDATES["w"], jnp.float64), jnp.asarray([0.3, -0.2])
    gap = jnp.asarray([-0.6, 0.01, 0.3, 0.6])  # "exp" is clipped at 20 = 30 * 0.67

    def loss(w, centre):
        return 0.5 * jnp.sum((w - centre) ** 2)

    rho = jax.vmap(loss, (None, 0))(w, centres) - gap

    def objective(w):
        return jnp.sum(OBJECTIVES[surrogate](scale * (jax.vmap(loss, (None, 0))(w, centres) - rho)))

    sent = -jax.vmap(jax.grad(loss), (None, 0))(w, centres)
    total = jnp.sum(incfl_weights(gap, surrogate=surrogate, gap_scale=scale))
    found = incfl_update(sent, gap, surrogate=surrogate, gap_scale=scale, eps=0.0) * total
    np.testing.assert_allclose(found, -jax.grad(objective)(w), rtol=1e-10, atol=1e-13)


def test_a_scale_of_one_changes_no_bit():
    gap = jnp.linspace(-9, 9, 101)
    for surrogate in SURROGATES:
        found = jax.jit(functools.partial(incfl_weights, surrogate=surrogate, gap_scale=1.0))(gap)
        np.testing.assert_array_equal(found, jax.jit(functools.partial(incfl_weights, surrogate=surrogate))(gap))


def test_printed_values():
    found = incfl_weights(jnp.array([2.0, 5.0, 0.0]))
    np.testing.assert_allclose(found, [0.104994, 0.00664806, 0.25], rtol=5e-6)
    assert float(found[2]) == 0.25


@given(st.floats(-200, 200, width=32))
@at_most(25)
def test_even_and_at_most_a_quarter(x):
    both = np.asarray(incfl_weights(jnp.array([x, -x], jnp.float32)))
    assert both[0] == both[1]
    assert 0 <= both[0] <= np.nextafter(np.float32(0.25), 1)  # a product of two rounded numbers


@pytest.mark.in_turn
def test_infinite_gaps():
    infinite = jnp.array([jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(incfl_weights(infinite), [0, 0])
    np.testing.assert_array_equal(incfl_weights(infinite, surrogate="softplus"), [1, 0])
    np.testing.assert_array_equal(incfl_weights(infinite, surrogate="relu"), [1, 0])
    np.testing.assert_array_equal(incfl_weights(infinite, surrogate="hinge"), [1, 0])
    np.testing.assert_allclose(incfl_weights(infinite, surrogate="exp"), [np.exp(20), 0], rtol=1e-5)
    assert np.isnan(incfl_weights(jnp.array([jnp.nan]))).all()


def test_relu_at_equality_and_clipped_exp():
    np.testing.assert_array_equal(incfl_weights(jnp.array([0.0, 1e-6, -1e-6]), surrogate="relu"), [0, 1, 0])
    np.testing.assert_array_equal(incfl_weights(jnp.array([-1.0, -0.999, -1.001]), surrogate="hinge"), [0, 1, 0])
    np.testing.assert_allclose(incfl_weights(jnp.array([19.0, 25.0]), surrogate="exp"), np.exp([19, 20]), rtol=1e-5)


@pytest.mark.in_turn
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_weights_under_transforms(surrogate):
    gap = jnp.array([-jnp.inf, -120.0, -1.0, 0.0, 1.0, 120.0, jnp.inf])
    weights = functools.partial(incfl_weights, surrogate=surrogate)
    np.testing.assert_array_equal(jax.vmap(weights)(gap), weights(gap))
    np.testing.assert_allclose(jax.jit(weights)(gap), weights(gap), rtol=1e-6)
    assert np.isfinite(jax.vmap(jax.grad(weights))(gap)).all()


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_updates_keep_their_dtype_and_weights_are_single_precision_at_least(surrogate, dtype):
    gap = jnp.asarray(GAP, dtype)
    assert incfl_weights(gap, surrogate=surrogate).dtype == jnp.float32  # never narrower
    stacked = {"w": jnp.asarray(UPDATES["w"], dtype), "b": jnp.ones(4)}
    found = incfl_update(stacked, gap, surrogate=surrogate, normalise="mean")
    assert (found["w"].dtype, found["b"].dtype) == (jnp.dtype(dtype), jnp.float32)


@pytest.mark.in_turn
@pytest.mark.parametrize("normalise", ["sum", "mean"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_update_against_numpy(surrogate, normalise):
    found = incfl_update(
        updates(), jnp.asarray(GAP), surrogate=surrogate, normalise=normalise, server_lr=0.7, eps=0.01
    )["w"]
    q = np.asarray(incfl_weights(jnp.asarray(GAP), surrogate=surrogate), np.float64)
    factor = 4 if normalise == "mean" else 1
    expected = factor * 0.7 / (q.sum() + 0.01) * (q[:, None] * UPDATES["w"]).sum(axis=0)
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_content_clients_alike_give_uniform_fedavg():
    found = incfl_update(updates(), jnp.zeros(4), eps=0.0)["w"]
    np.testing.assert_allclose(found, UPDATES["w"].mean(axis=0), rtol=1e-6)


def test_huge_eps_stops_the_model():
    assert np.abs(incfl_update(updates(), jnp.asarray(GAP), eps=1e12)["w"]).max() < 1e-11


@pytest.mark.parametrize("gap", [0.0, 3.0, -40.0, 80.0, -86.0])
def test_a_single_client_moves_the_model_whatever_its_weight(gap):
    one = {"w": jnp.asarray(UPDATES["w"][:1])}
    found = incfl_update(one, jnp.array([gap]), eps=0.0, server_lr=0.5)["w"]
    np.testing.assert_allclose(found, 0.5 * UPDATES["w"][0], rtol=1e-5)


@pytest.mark.parametrize("gap", [87.0, 88.0, 90.0, 100.0, 103.0, 110.0])
def test_underflowing_weights_never_break_the_model(gap):
    """Between the smallest normal number and zero a weight may count or not, but the step is bounded."""
    found = incfl_update(updates(), jnp.full(4, gap), eps=0.0)["w"]
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= np.abs(UPDATES["w"]).max()


@pytest.mark.in_turn
def test_infinite_loss_has_no_influence():
    gap = jnp.asarray(GAP).at[1].set(jnp.inf)
    others = {"w": jnp.asarray(np.delete(UPDATES["w"], 1, axis=0))}
    found = incfl_update(updates(), gap)["w"]
    np.testing.assert_allclose(found, incfl_update(others, jnp.asarray(np.delete(GAP, 1)))["w"], rtol=1e-6)
    wild = {"w": jnp.asarray(UPDATES["w"]).at[1].set(1e30)}
    np.testing.assert_array_equal(incfl_update(wild, gap)["w"], found)
    # A surrogate that grows with the loss gives the attacker the largest weight.
    assert np.abs(incfl_update(wild, gap, surrogate="softplus")["w"]).min() > 1e28


@pytest.mark.parametrize("normalise", ["sum", "mean"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_absent_clients_change_nothing(surrogate, normalise):
    """Neither by their NaN nor by the weight sigma'(0) = 1/4 of a zero gap."""
    present = jnp.array([True, False, True, False])
    kept = np.array([0, 2])
    update = functools.partial(incfl_update, surrogate=surrogate, normalise=normalise, eps=0.1)
    expected = update({"w": jnp.asarray(UPDATES["w"][kept])}, jnp.asarray(GAP[kept]))["w"]
    for nothing in (jnp.nan, 0.0, jnp.inf):
        empty = {"w": jnp.where(present[:, None], jnp.asarray(UPDATES["w"]), nothing)}
        gap = jnp.where(present, jnp.asarray(GAP), nothing)
        np.testing.assert_allclose(update(empty, gap, present=present)["w"], expected, rtol=1e-6)
    nobody = update(updates(), jnp.full(4, jnp.nan), present=jnp.zeros(4, bool))["w"]
    np.testing.assert_array_equal(nobody, [0, 0])


@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_no_weight_left(eps):
    for surrogate, gap in (("sigmoid", jnp.inf), ("relu", -1.0), ("softplus", -jnp.inf), ("exp", -jnp.inf)):
        found = incfl_update(updates(), jnp.full(4, gap), surrogate=surrogate, eps=eps)["w"]
        np.testing.assert_array_equal(found, [0, 0])


def test_gradients_are_finite():
    present = jnp.array([True, True, False, False])
    gaps = jnp.stack([jnp.zeros(4), jnp.full(4, jnp.inf), jnp.array([1.0, -200.0, jnp.nan, 0.0])])

    def total(stacked, gap, rate, eps):
        return incfl_update(stacked, gap, present=present, server_lr=rate, eps=eps)["w"].sum()

    slopes = jax.jit(jax.vmap(jax.grad(total, argnums=(0, 1, 2)), (None, 0, None, None)))
    found = slopes(updates(), gaps, jnp.float32(1), jnp.float32(0))
    for leaf in jax.tree.leaves(found):
        assert np.isfinite(leaf).all()
    np.testing.assert_array_equal(found[0]["w"][:, 2:], np.zeros((3, 2, 2)))


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_a_nan_gap_shows_instead_of_silencing_the_round(surrogate):
    gap = jnp.array([jnp.nan, 0.0, 0.0])
    assert np.isnan(incfl_weights(gap, surrogate=surrogate)[0])
    assert np.isnan(incfl_update(jnp.ones((3, 2)), gap, surrogate=surrogate)).all()
    present, gap = jnp.array([False, True, True]), gap.at[1:].set(1.0)
    found = incfl_update(jnp.ones((3, 2)), gap, present=present, surrogate=surrogate)
    np.testing.assert_allclose(found, 1.0, rtol=1e-6)
