"""Importance weights, means of clusters, first-order Shapley values: IP-FL's oracles, edges, transforms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.aggregators import cluster_means, importance_weights, member_weights, shapley_first_order, weighted_mean
from tests.drawn import at_most
from tests.precision import enable_x64

rng = np.random.default_rng(5)
UPDATES = {"w": rng.normal(size=(6, 3, 2)), "b": rng.normal(size=(6, 2))}
SIZES = np.array([4.0, 1, 3, 2, 5, 7])
MEMBERS = np.array([[1, 0, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]], bool).T


def tree(values=None):
    return jax.tree.map(jnp.asarray, UPDATES if values is None else values)


@pytest.fixture(autouse=True, params=[pytest.param(False, marks=pytest.mark.thorough), True], ids=["single", "double"])
def tolerance(request):
    with enable_x64(request.param):
        yield 1e-12 if request.param else 1e-5


@pytest.mark.in_turn
def test_importance_weights_of_the_spec():
    accuracy = jnp.asarray([[0.8, 0.2], [0, 0], [0.3, 0.3], [0, 0.5]])
    expected = [[0.8, 0.2], [0.5, 0.5], [0.5, 0.5], [0, 1]]
    np.testing.assert_allclose(importance_weights(accuracy), expected, rtol=1e-6)
    np.testing.assert_allclose(importance_weights(accuracy[0]), expected[0], rtol=1e-6)
    slope = jax.grad(lambda a: importance_weights(a)[1, 0])(accuracy)
    assert np.isfinite(slope).all()


@pytest.mark.in_turn
def test_means_of_clusters_are_written_out(tolerance):
    found = cluster_means(tree(), jnp.asarray(MEMBERS), jnp.asarray(SIZES))
    for name, leaf in UPDATES.items():
        for c in range(3):
            mass = SIZES * MEMBERS[:, c]
            expected = np.tensordot(mass / max(mass.sum(), 1), leaf, 1)
            np.testing.assert_allclose(found[name][c], expected, rtol=tolerance, atol=tolerance)
    assert not np.any(found["w"][2])


@pytest.mark.in_turn
def test_one_cluster_of_all_is_the_mean_by_size(tolerance):
    found = cluster_means(tree(), jnp.ones((6, 1), bool), jnp.asarray(SIZES))
    expected = weighted_mean(tree(), jnp.asarray(SIZES))
    for name in UPDATES:
        np.testing.assert_allclose(found[name][0], expected[name], rtol=tolerance, atol=tolerance)


def test_rows_without_a_cluster_are_never_read():
    spoilt = {name: leaf.copy() for name, leaf in UPDATES.items()}
    for leaf in spoilt.values():
        leaf[5] = np.nan
    sizes = jnp.asarray(SIZES).at[5].set(jnp.nan)
    weights = member_weights(jnp.asarray(MEMBERS), jnp.asarray(SIZES))
    gradients = {"w": jnp.ones((3, 3, 2)), "b": jnp.ones((3, 2))}
    whole, gone = (
        cluster_means(tree(v), jnp.asarray(MEMBERS), s) for v, s in ((None, jnp.asarray(SIZES)), (spoilt, sizes))
    )
    for name in UPDATES:
        np.testing.assert_array_equal(whole[name], gone[name])
    values = [shapley_first_order(gradients, tree(v), weights) for v in (None, spoilt)]
    np.testing.assert_array_equal(values[0], values[1])


@pytest.mark.sampled(2)
def test_shapley_values_of_a_quadratic(tolerance):
    """``L = ||w - a||^2 / 2``: ``phi_k = alpha_k <a - w_c, w_k - w_c>``."""
    d, aim = 4, rng.normal(size=4)
    old, moves = rng.normal(size=(2, d)), rng.normal(size=(6, d))
    members, sizes = MEMBERS[:, :2], SIZES
    alpha = (members * sizes[:, None] / (members * sizes[:, None]).sum(axis=0)).T
    new = old + alpha @ moves
    expected, raw = np.zeros((2, 6)), np.zeros((2, 6))
    for c in range(2):
        for k in range(6):
            end = old[c] + moves[k]
            expected[c, k] = alpha[c, k] * (aim - new[c]) @ (end - new[c])
            raw[c, k] = alpha[c, k] * (aim - new[c]) @ end
    gradients = jnp.asarray(new - aim[None])
    weights = member_weights(jnp.asarray(members), jnp.asarray(sizes))
    found = shapley_first_order(gradients, jnp.asarray(moves), weights)
    np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=10 * tolerance)
    raw_found = shapley_first_order(gradients, jnp.asarray(moves), weights, normalised=False, models=jnp.asarray(old))
    np.testing.assert_allclose(raw_found, raw, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.sampled(2)
@at_most(60)
@given(st.integers(0, 10**6), st.sampled_from([(1, 1), (3, 7)]))
def test_contributions_sum_to_zero(seed, shape):
    clusters, rows = shape
    draw = np.random.default_rng(seed)
    members = draw.random((rows, clusters)) < 0.6
    sizes = draw.integers(1, 50, rows).astype(float)
    weights = member_weights(jnp.asarray(members), jnp.asarray(sizes))
    updates = {"w": jnp.asarray(draw.normal(size=(rows, 5))), "b": jnp.asarray(draw.normal(size=(rows, 2, 2)))}
    gradients = {
        "w": jnp.asarray(draw.normal(size=(clusters, 5))),
        "b": jnp.asarray(draw.normal(size=(clusters, 2, 2))),
    }
    found = np.asarray(shapley_first_order(gradients, updates, weights))
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=2e-5)
    assert not found.T[~members].any()
