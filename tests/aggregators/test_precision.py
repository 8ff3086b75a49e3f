"""Half precision against float64 NumPy: no NaN and no infinity where the right answer is an ordinary number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax import aggregators

HALF = {"float16": 2e-3, "bfloat16": 2e-2}  # dtypes, and what rounding the arguments and the result may cost
S, N, C = 4, 4, 2
MAGNITUDES = st.sampled_from([1e-6, 1e-3, 1.0, 300.0, 2e4])
EXAMPLES = settings(max_examples=10, deadline=None)


def draws(seed, dtype, magnitude, *shapes):
    """Arrays in half precision, and the same numbers in double."""
    rng = np.random.default_rng(seed)
    found = [jnp.asarray(rng.uniform(-1, 1, shape) * magnitude, dtype) for shape in shapes]
    return found, [np.asarray(x, np.float64) for x in found]


def agree(found: Any, expected, dtype, scale=None):
    """Equal up to the rounding of ``dtype``, relative to the largest entry, where ``expected`` fits the dtype."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    fits = np.abs(expected) < 0.99 * float(jnp.finfo(dtype).max)
    assert np.isfinite(found[fits]).all()
    scale = np.abs(expected).max(initial=0) if scale is None else scale
    # Below the smallest normal number a few digits are left.
    tiny = float(jnp.finfo(dtype).tiny) * 1e-2
    np.testing.assert_allclose(found[fits], expected[fits], rtol=HALF[dtype], atol=HALF[dtype] * scale + tiny)


def q_of(gap, surrogate):
    return {
        "sigmoid": lambda: np.exp(-np.abs(gap)) / (1 + np.exp(-np.abs(gap))) ** 2,
        "softplus": lambda: 1 / (1 + np.exp(-gap)),
        "relu": lambda: (gap > 0) * 1.0,
        "hinge": lambda: (gap > -1) * 1.0,
        "exp": lambda: np.exp(np.minimum(gap, 20)),
    }[surrogate]()


@pytest.mark.in_turn
@pytest.mark.parametrize("surrogate", ["sigmoid", "softplus", "relu", "hinge", "exp"])
@pytest.mark.parametrize("dtype", HALF)
def test_incfl_with_large_gaps(dtype, surrogate):
    """In float16 itself the weights of gaps from 12 on are lost beside eps, which is 0 there, and "exp" overflows."""
    gap = jnp.asarray([12.0, 13.0, 12.5, 15.0], dtype)
    updates = jnp.asarray([[1.0, 6e4], [2.0, 6e4], [3.0, 6e4], [4.0, 6e4]], dtype)
    q = q_of(np.asarray(gap, np.float64), surrogate)
    agree(aggregators.incfl_weights(gap, surrogate=surrogate), q, dtype)
    for normalise, factor in (("sum", 1), ("mean", 4)):
        found = aggregators.incfl_update(updates, gap, surrogate=surrogate, normalise=normalise, server_lr=0.25)
        assert found.dtype == jnp.dtype(dtype)
        expected = factor * 0.25 * q @ np.asarray(updates, np.float64) / (q.sum() + 1e-8)
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=HALF[dtype])


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", HALF)
@given(st.integers(0, 99), MAGNITUDES, st.sampled_from([1e-6, 1.0, 6e4]))
@EXAMPLES
def test_linear_combinations(dtype, seed, magnitude, heavy):
    (matrix, updates), (m, u) = draws(seed, dtype, magnitude, (3, S), (S, 2))
    (weights,), (w,) = draws(seed + 1, dtype, heavy, (S,))
    weights, w = abs(weights), abs(w)
    agree(aggregators.mix(matrix, updates), m @ u, dtype)
    agree(aggregators.weighted_sum(updates, weights), w @ u, dtype)
    # Four weights of 6e4 are a sum that float16 does not hold.
    agree(aggregators.weighted_mean(updates, weights), w @ u / w.sum(), dtype, np.abs(u).max())
    membership = np.array([[1, 0], [1, 0], [1, 1], [0, 0]], bool)
    mass = membership.T * w
    means = mass @ u / np.maximum(mass.sum(axis=1, keepdims=True), 1e-300)
    agree(aggregators.cluster_means(updates, jnp.asarray(membership), weights), means, dtype, np.abs(u).max())


@pytest.mark.parametrize("dtype", HALF)
@given(st.integers(0, 99), MAGNITUDES, st.sampled_from([0.0, 1.0, 5.0]), st.sampled_from([1e-3, 1.0]))
@EXAMPLES
def test_qffl(dtype, seed, magnitude, q, rate):
    (updates, loss), (u, f) = draws(seed, dtype, magnitude, (S, 3), (S,))
    loss, f = abs(loss), np.maximum(abs(f), 1e-10)
    g = -u / rate
    h = q * f ** (q - 1) * np.square(g).sum(axis=1) + f**q / rate
    expected = -(f**q) @ g / h.sum()
    found = aggregators.qffl_update(updates, loss, q=q, learning_rate=rate)
    assert found.dtype == jnp.dtype(dtype)
    agree(found, expected, dtype, 5 * np.abs(u).max() * (f**q).sum() / rate / h.sum())


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", HALF)
@given(st.integers(0, 99), MAGNITUDES)
@EXAMPLES
def test_rewards_and_reputations(dtype, seed, magnitude):
    (updates, total), (u, t) = draws(seed, dtype, magnitude, (N, 3), (3,))
    norm = np.sqrt(np.square(u).sum(axis=1, keepdims=True))
    agree(aggregators.cgsv_normalised(updates, length=0.5), 0.5 * u / (norm + 1e-7), dtype)
    cosine = (u @ t) / np.maximum(norm[:, 0] * np.sqrt(t @ t), 1e-10)
    start = jnp.full(N, 0.25, dtype)
    moved = np.maximum(0.95 * 0.25 + 0.05 * cosine, 1e-3)
    found = aggregators.cgsv_reputation(start, updates, total)
    assert found.dtype == jnp.dtype(dtype)
    agree(found, moved / moved.sum(), dtype)
    agree(aggregators.cgsv_shares(start * 1e-4, beta=1e-3), np.ones(N), dtype)
    score, order = jnp.asarray([3, 1, 2, 0], dtype), np.array([3, 1, 2, 0])
    means = (np.cumsum(u[order], axis=0) / np.arange(1, N + 1)[:, None])[np.argsort(order)]
    agree(aggregators.rank_rewards(updates, score), means, dtype, np.abs(u).max())
    rates = aggregators.iafl_rates(jnp.asarray([1, 0.5, 0.25, 1e-3], dtype), kappa=0.5)
    agree(rates, np.sqrt([1, 0.5, 0.25, 1e-3]), dtype)
    rewards = aggregators.iafl_rewards(jax.random.key(0), updates, jnp.ones(N, dtype))
    agree(rewards, np.tile(u.mean(axis=0), (N, 1)), dtype, np.abs(u).max())


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", HALF)
@given(st.integers(0, 99), MAGNITUDES)
@EXAMPLES
def test_shapley(dtype, seed, magnitude):
    (gradients, updates, models), (g, u, m) = draws(seed, dtype, magnitude, (C, 3), (S, 3), (C, 3))
    weights = aggregators.member_weights(jnp.ones((S, C), bool), jnp.full(S, 3e4, dtype))
    np.testing.assert_allclose(weights, np.full((C, S), 0.25), rtol=1e-6)
    slope, scale = g @ u.T, 4 * magnitude**2
    found = aggregators.shapley_first_order(gradients, updates, weights)
    agree(found, -0.25 * (slope - slope.mean(axis=1, keepdims=True)), dtype, scale)
    own = (g * m).sum(axis=1, keepdims=True)
    found = aggregators.shapley_first_order(gradients, updates, weights, normalised=False, models=models)
    agree(found, -0.25 * (slope + own), dtype, scale)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", HALF)
@given(st.integers(0, 99), MAGNITUDES)
@EXAMPLES
def test_weights_of_clients(dtype, seed, magnitude):
    (accuracy, point), (a, x) = draws(seed, dtype, magnitude, (N, C), (300,))
    a = abs(a)
    agree(aggregators.importance_weights(abs(accuracy)), a / a.sum(axis=1, keepdims=True), dtype)
    found = aggregators.mw_weights(jnp.full(N, 0.25, dtype), jnp.arange(N) < 2, factor=6e4)
    agree(found, np.array([6e4, 6e4, 1, 1]) / 120002, dtype)
    u = -np.sort(-x)
    shift = (1 - np.cumsum(u)) / np.arange(1, 301)
    last = np.flatnonzero(u + shift > 0)[-1]
    found = aggregators.simplex_projection(point)
    assert found.dtype == jnp.dtype(dtype)
    agree(found, np.maximum(x + shift[last], 0), dtype, 1)


@pytest.mark.thorough
def test_lists_and_whole_numbers_are_welcome():
    every: Any = aggregators  # whose annotations name arrays only
    updates = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    q = q_of(np.array([0.0, 2.0]), "softplus")
    np.testing.assert_allclose(every.incfl_weights(jnp.asarray([0, 2]), surrogate="softplus"), q, rtol=1e-6)
    found = every.incfl_update(updates, [0, 2], surrogate="softplus", present=[True, True])
    np.testing.assert_allclose(found, q @ updates / q.sum(), rtol=1e-6)
    np.testing.assert_allclose(every.weighted_mean(updates, [1, 3]), [2.5, 3.5])
    np.testing.assert_allclose(every.mix([[1, 0], [0, 2]], updates), [[1, 2], [6, 8]])
    np.testing.assert_allclose(every.importance_weights([[0, 0], [1, 3]]), [[0.5, 0.5], [0.25, 0.75]])
    members = [[True], [True]]
    np.testing.assert_allclose(every.cluster_means(updates, members, [2**30, 2**30]), [[2, 3]])
    np.testing.assert_allclose(every.simplex_projection([2, 0]), [1, 0])
    np.testing.assert_allclose(every.mw_weights([1, 1], [True, False]), [2 / 3, 1 / 3], rtol=1e-6)
    step = every.qffl_update(updates, [1, 1], q=0, learning_rate=1)
    np.testing.assert_allclose(step, [2, 3])
    np.testing.assert_allclose(every.rank_rewards(updates, [2, 1]), [[2, 3], [3, 4]])
    np.testing.assert_allclose(every.cgsv_shares([1, 1]), [1, 1])
