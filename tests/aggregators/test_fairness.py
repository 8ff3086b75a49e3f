"""q-FFL's update, the projection onto the simplex, multiplicative weights: formulas, edges, transforms."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.aggregators import mw_weights, qffl_update, simplex_projection
from tests.drawn import at_most
from tests.oracles.numpy_baselines import qffl_step, raised, simplex

pytestmark = pytest.mark.usefixtures("strict")

UPDATES = {
    "w": np.array([[1.0, 2.0], [-3.0, 0.5], [2.0, 2.0], [0.1, -4.0]], np.float32),
    "b": np.array([0.5, -1.0, 2.0, 0.25], np.float32),
}
LOSS = np.array([0.4, 1.2, 2.5, 0.9], np.float32)
RATE = 0.3


def updates(rows: Any = slice(None), dtype: Any = None):
    return {name: jnp.asarray(leaf[rows], dtype) for name, leaf in UPDATES.items()}


def expected(q, rate=RATE, rows: Any = slice(None), loss: Any = LOSS, scale=1.0):
    """The formula in double precision."""
    rows = np.arange(4)[rows]
    trees = [{name: scale * leaf[row].astype(float) for name, leaf in UPDATES.items()} for row in rows]
    return qffl_step(trees, [float(loss[row]) for row in rows], rate, q)


def same(found, wanted, rtol=2e-6):
    for name, leaf in wanted.items():
        np.testing.assert_allclose(found[name], leaf, rtol=rtol)


@functools.partial(jax.jit, static_argnames="masked")
def jitted(stacked, loss, q, rate, present, masked=False):
    return qffl_update(stacked, loss, q=q, learning_rate=rate, present=present if masked else None)


def qffl(q, loss: Any = LOSS, stacked=None, rate=RATE, present=None):
    dtype = jnp.zeros(()).dtype
    number = functools.partial(jnp.asarray, dtype=dtype)
    stacked = updates(dtype=dtype) if stacked is None else stacked
    present_rows = jnp.ones(4, bool) if present is None else jnp.asarray(present)
    return jitted(stacked, number(loss), number(q), number(rate), present_rows, masked=present is not None)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0, 10.0])
def test_qffl_formula(q):
    same(qffl(q), expected(q), rtol=1e-5)


def test_qffl_formula_in_double_precision(x64):
    for q in (0.1, 1.0, 10.0):
        found = qffl(q)
        assert found["w"].dtype == jnp.float64
        same(found, expected(q), rtol=1e-12)


def test_q_of_zero_is_the_plain_mean():
    wanted = {name: leaf.mean(axis=0) for name, leaf in UPDATES.items()}
    same(qffl(0.0), wanted, rtol=1e-6)
    same(qffl(0.0, rate=7.0), wanted, rtol=1e-6)  # whatever the rate


@pytest.mark.parametrize("scale", [1e-3, 50.0])
def test_losses_and_gradients_scaled_alike(scale):
    """By s: ``D`` grows by ``s^(q+1)``, the two terms of ``h`` by ``s^(q+1)`` and ``s^q``."""
    q, loss = 2.0, scale * LOSS
    stacked = jax.tree.map(lambda leaf: jnp.float32(scale) * leaf, updates())
    slopes = np.concatenate([UPDATES["w"], UPDATES["b"][:, None]], axis=1).astype(float) / RATE
    powers = LOSS.astype(float) ** q
    first, second = (q * powers / LOSS * (slopes**2).sum(axis=1)).sum(), powers.sum() / RATE
    total = {name: np.tensordot(powers, leaf, 1) / RATE for name, leaf in UPDATES.items()}
    wanted = {name: scale * leaf / (scale * first + second) for name, leaf in total.items()}
    same(qffl(q, loss, stacked), wanted, rtol=1e-5)
    same(wanted, expected(q, loss=loss, scale=scale), rtol=1e-5)


def test_equal_losses_and_norms_shorten_the_mean():
    stacked = {"w": jnp.array([[3.0, 4.0], [5.0, 0.0], [0.0, -5.0], [-4.0, 3.0]])}
    found = qffl(3.0, np.full(4, 0.8), stacked)["w"]
    shorter = 1 + 3.0 * RATE * (25 / RATE**2) / 0.8
    np.testing.assert_allclose(found, np.array([1.0, 0.5]) / shorter, rtol=1e-6)


def test_huge_q_does_not_overflow():
    """Only the largest loss counts, in the limit."""
    for factor in (1.0, 1e-6, 1e6):
        for q in (100.0, 500.0, 1e4):
            found = qffl(q, factor * LOSS)
            square = sum((leaf[2] ** 2).sum() for leaf in UPDATES.values()) / RATE**2
            shorter = 1 + q * RATE * square / (factor * 2.5)
            same(found, {name: leaf[2] / shorter for name, leaf in UPDATES.items()}, rtol=1e-4)


def test_loss_of_zero_and_of_infinity():
    floor = np.array([0.0, 1.2, 1e-30, 0.9], np.float32)
    same(qffl(1.0, floor), expected(1.0, loss=floor), rtol=1e-5)
    same(qffl(2.0, np.zeros(4)), expected(2.0, loss=np.zeros(4)), rtol=1e-5)  # all of them: no division by zero
    # A loss without bound takes all of the weight, and its own term of h vanishes against F^q / rate.
    found = qffl(1.0, np.array([0.4, np.inf, 2.5, 0.9]))
    same(found, {name: leaf[1] for name, leaf in UPDATES.items()}, rtol=1e-5)


def test_absent_clients_are_never_read():
    present, kept = np.array([True, False, True, False]), np.array([0, 2])
    for q in (0.0, 1.0, 10.0):
        wanted = expected(q, rows=kept)
        for nothing in (np.nan, 0.0, np.inf):
            empty = {
                name: jnp.asarray(np.where(present.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, np.float32(nothing)))
                for name, leaf in UPDATES.items()
            }
            same(qffl(q, np.where(present, LOSS, nothing), empty, present=present), wanted, rtol=1e-5)
    nobody = qffl(1.0, np.full(4, np.nan), present=np.zeros(4, bool))
    assert not any(np.any(leaf) for leaf in nobody.values())


def test_qffl_gradients():
    """Finite also where an absent client's power would overflow beside small losses, and right where all is smooth."""

    def total(stacked, loss, q, rate, present):
        return sum(map(jnp.sum, qffl_update(stacked, loss, q=q, learning_rate=rate, present=present).values()))

    losses = jnp.array([[0.4, jnp.nan, 2.5, 0.9], [1e-8, jnp.inf, 1e-9, 1e-8], [0.0, 0.0, 0.0, 1e-9]], jnp.float32)
    present = jnp.array([True, False, True, True])
    slopes = jax.jit(jax.vmap(jax.grad(total, argnums=(0, 1, 2, 3)), (None, 0, None, None, None)))
    for q in (0.0, 1.0, 10.0):
        for leaf in jax.tree.leaves(slopes(updates(), losses, jnp.float32(q), jnp.float32(RATE), present)):
            assert np.isfinite(leaf).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_qffl_keeps_dtypes(dtype):
    stacked = {"w": jnp.asarray(UPDATES["w"], dtype), "b": jnp.asarray(UPDATES["b"])}
    found = jax.eval_shape(lambda: qffl_update(stacked, jnp.asarray(LOSS), q=1.0, learning_rate=RATE))
    assert (found["w"].dtype, found["b"].dtype) == (jnp.dtype(dtype), jnp.float32)


project = jax.jit(simplex_projection)
numbers = st.floats(-1e4, 1e4, width=32)


@given(st.lists(numbers, min_size=6, max_size=6), st.floats(0.0625, 100, width=32))
@at_most(60)
def test_projection_against_bisection(point, mass):
    found = np.asarray(project(jnp.array(point, jnp.float32), mass=jnp.float32(mass)))
    scale = max(mass, np.ptp(point))
    np.testing.assert_allclose(found, simplex(np.array(point), mass), rtol=0, atol=4e-6 * scale)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(), mass, rtol=1e-5, atol=4e-6 * scale)


@given(st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
@at_most(40)
def test_projection_of_some_entries(point, mask):
    point, mask = np.array(point), np.array(mask)
    spoiled = jnp.asarray(np.where(mask, point, np.nan), jnp.float32)
    found = np.asarray(project(spoiled, mass=jnp.float32(0.7), mask=jnp.asarray(mask)))
    np.testing.assert_array_equal(found[~mask], 0)
    if mask.any():
        np.testing.assert_allclose(found[mask], simplex(point[mask], 0.7), atol=4e-6)


def test_projection_is_the_nearest_point(x64):
    """The variational inequality ``<u - p, v - p> <= 0`` for all v of the simplex: its corners suffice."""
    rng = np.random.default_rng(0)
    for point in rng.normal(scale=(0.1, 1.0, 10.0), size=(20, 3)):
        nearest = np.asarray(project(jnp.asarray(point)))
        assert max((point - nearest) @ (corner - nearest) for corner in np.eye(3)) < 1e-12
        np.testing.assert_allclose(nearest, simplex(point), atol=1e-12)
        np.testing.assert_allclose(project(jnp.asarray(nearest)), nearest, atol=1e-15)


@pytest.mark.parametrize("size", [1e8, 1e30])
def test_large_points_keep_the_sum(size):
    """An entry far above the others takes all of the mass; it is not lost in rounding."""
    np.testing.assert_array_equal(project(jnp.array([size])), [1])
    np.testing.assert_array_equal(project(jnp.array([size, 0.0, 1.0])), [1, 0, 0])
    np.testing.assert_allclose(project(jnp.array([size, size, -size])), [0.5, 0.5, 0])
    np.testing.assert_allclose(project(jnp.array([-size, -size])), [0.5, 0.5])


def test_no_mass_and_nobody():
    point = jnp.array([3.0, -1.0, 0.5, jnp.nan])
    mask = jnp.array([True, True, True, False])
    np.testing.assert_array_equal(project(point, mass=jnp.float32(0), mask=mask), np.zeros(4))
    np.testing.assert_array_equal(project(point, mask=jnp.zeros(4, bool)), np.zeros(4))


@pytest.mark.in_turn
def test_projection_under_transforms():
    points = jnp.array([[2.0, 0.0, -1.0], [0.3, 0.4, 0.1], [5.0, 5.0, 4.9]])
    each = np.stack([project(point) for point in points])
    np.testing.assert_allclose(jax.jit(jax.vmap(simplex_projection))(points), each, rtol=1e-6)
    # Where r entries are positive the derivative is the identity less 1/r on them, and 0 elsewhere.
    found = jax.jit(jax.jacobian(simplex_projection))(jnp.array([0.6, 0.5, -3.0, jnp.nan]), mask=jnp.arange(4) < 3)
    wanted = np.zeros((4, 4))
    wanted[:2, :2] = [[0.5, -0.5], [-0.5, 0.5]]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert jax.eval_shape(simplex_projection, jnp.array([1.0, 2.0], jnp.bfloat16)).dtype == jnp.bfloat16


reweigh = jax.jit(mw_weights)
WEIGHTS = np.array([0.1, 0.4, 0.3, 0.2])


def test_weights_against_numpy(x64):
    for who, factor in itertools.product(([0, 3], [0, 1, 2, 3], []), (1.0, 2.0, 4.0)):
        found = reweigh(jnp.asarray(WEIGHTS), jnp.asarray(np.isin(np.arange(4), who)), factor=jnp.asarray(factor))
        np.testing.assert_allclose(found, raised(WEIGHTS, who, factor), rtol=1e-14)


def test_weights_stay_positive_and_finite():
    """For ever: a client that was content for long can still come back, and one without data never does."""
    weights = jnp.array([0.5, 0.5, 0.0])
    for _ in range(30):
        weights = reweigh(weights, jnp.array([True, False, True]), factor=jnp.float32(1e6))
    np.testing.assert_allclose(weights, [1, 1e-12, 0], rtol=1e-5)
    back = reweigh(weights, jnp.array([False, True, False]), factor=jnp.float32(1e6))
    np.testing.assert_allclose(back, [1, 1e-6, 0], rtol=1e-4)
    huge = reweigh(weights, jnp.array([True, False, False]), factor=jnp.float32(1e30))
    np.testing.assert_allclose(huge, [1, 1e-12, 0], rtol=1e-5)
    np.testing.assert_array_equal(reweigh(jnp.zeros(3), jnp.ones(3, bool)), np.zeros(3))


def test_weights_under_transforms():
    several = jnp.array([[True, False, False, True], [False, True, True, True]])
    weights = jnp.asarray(WEIGHTS, jnp.float32)
    found = jax.jit(jax.vmap(mw_weights, (None, 0)))(weights, several)
    for row, unsatisfied in zip(found, np.asarray(several), strict=True):
        np.testing.assert_allclose(row, raised(WEIGHTS, np.flatnonzero(unsatisfied).tolist(), 2.0), rtol=1e-6)
    # W_0 = c w_0 / (c w_0 + 1 - w_0) for a single complaint: by the factor, w_0 (1 - w_0) / (c w_0 + 1 - w_0)^2.
    first = jnp.array([True, False, False, False])
    slope = jax.jit(jax.grad(lambda c: mw_weights(weights, first, factor=c)[0]))(jnp.float32(3))
    np.testing.assert_allclose(slope, 0.09 / 1.2**2, rtol=1e-5)
    assert jax.eval_shape(mw_weights, weights.astype(jnp.bfloat16), first).dtype == jnp.bfloat16
