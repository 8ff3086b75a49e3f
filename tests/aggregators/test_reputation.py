"""CGSV's reputations and sparse rewards: the spec's oracles, edges, transforms."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.aggregators import cgsv_normalised, cgsv_reputation, cgsv_rewards, cgsv_shares, weighted_sum

pytestmark = pytest.mark.usefixtures("quick_compilation")

rng = np.random.default_rng(3)
UPDATES = {"w": rng.normal(size=(4, 5, 2)), "b": rng.normal(size=(4, 3))}


def tree(values: Any = None):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), UPDATES if values is None else values)


def flat(values, row):
    return np.concatenate([np.asarray(leaf)[row].ravel() for leaf in jax.tree.leaves(values)])


@functools.partial(jax.jit, static_argnames=("length", "alpha"))  # operation by operation it takes fifty programs
def one_round(updates, reputation, weight, length=0.5, alpha=0.95):
    unit = cgsv_normalised(updates, length=length)
    total = weighted_sum(unit, weight)
    return cgsv_reputation(reputation, unit, total, alpha=alpha), total


EVEN = jnp.full(4, 0.25)


def test_normalised_updates_have_one_length():
    unit = cgsv_normalised(tree(), length=0.5)
    for k in range(4):
        np.testing.assert_allclose(np.linalg.norm(flat(unit, k)), 0.5, rtol=1e-5)
        np.testing.assert_allclose(flat(unit, k) / 0.5, flat(UPDATES, k) / np.linalg.norm(flat(UPDATES, k)), rtol=1e-4)
    assert not flat(cgsv_normalised(jax.tree.map(jnp.zeros_like, tree()), length=0.5), 0).any()


@pytest.mark.thorough
def test_reputation_is_the_printed_formula():
    old = np.array([0.1, 0.5, 0.15, 0.25])
    found, total = one_round(tree(), jnp.asarray(old, jnp.float32), EVEN, alpha=0.7)
    u = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(total)])
    cosine = [flat(UPDATES, k) @ u / np.linalg.norm(flat(UPDATES, k)) / np.linalg.norm(u) for k in range(4)]
    expected = np.maximum(0.7 * old + 0.3 * np.array(cosine), 1e-3)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)


@pytest.mark.in_turn
def test_reputations_of_members_are_those_without_the_others():
    """Client 3 left: it did not train, and the others have what they had if it never was."""

    @jax.jit
    def reputations(updates, old, there):
        unit = cgsv_normalised(updates, length=0.5)
        three = jax.tree.map(lambda leaf: leaf[:3], unit)
        total = weighted_sum(three, jnp.full(3, 1 / 3))
        found = cgsv_reputation(old, unit, total, present=there, members=there)
        return found, cgsv_reputation(old[:3], three, total)

    old, there = jnp.asarray([0.2, 0.5, 0.3, 0.0]), np.arange(4) < 3
    found, expected = reputations(tree(), old, there)
    np.testing.assert_allclose(found[:3], expected, rtol=1e-6)
    assert found[3] == 0
    assert not np.any(reputations(tree(), old, there & False)[0])


@pytest.mark.thorough
def test_equal_updates_are_rewarded_in_full():
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), tree())
    reputation, total = one_round(same, jnp.zeros(4), EVEN)
    np.testing.assert_allclose(reputation, 0.25, rtol=1e-6)
    rewards = jax.jit(cgsv_rewards)(total, reputation)
    for name, leaf in rewards.items():
        np.testing.assert_array_equal(leaf, np.broadcast_to(total[name], leaf.shape))
    # With length = ||Delta|| this is FedAvg.
    norm = float(np.linalg.norm(flat(same, 0)))
    _, total = one_round(same, jnp.zeros(4), EVEN, length=norm)
    np.testing.assert_allclose(total["w"], same["w"][0], rtol=1e-5)


def test_who_sends_the_opposite_falls_to_the_floor():
    turned = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:1], leaf[:1], leaf[:1], -leaf[:1]]), tree())
    reputation, _ = one_round(turned, jnp.zeros(4), EVEN, alpha=0.0)
    np.testing.assert_allclose(reputation[3], 1e-3 / 3.001, rtol=1e-5)


def test_lengths_of_updates_make_no_difference():
    longer = jax.tree.map(
        lambda leaf: leaf * jnp.array([1.0, 30.0, 0.2, 5.0]).reshape(4, *[1] * (leaf.ndim - 1)), tree()
    )
    (a, total_a), (b, total_b) = (one_round(each, jnp.zeros(4), EVEN) for each in (tree(), longer))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(total_a["w"], total_b["w"], rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_updates_of_zero():
    zero = jax.tree.map(jnp.zeros_like, tree())
    reputation, total = one_round(zero, jnp.zeros(4), EVEN)
    np.testing.assert_allclose(reputation, 0.25, rtol=1e-6)
    assert not np.any(jax.jit(cgsv_rewards)(total, reputation)["w"])
    slope = jax.grad(lambda updates: jnp.sum(one_round(updates, jnp.full(4, 0.25), EVEN)[0] ** 2))(zero)
    assert np.isfinite(slope["w"]).all()


def test_the_absent_have_a_cosine_of_0():
    present, old = jnp.array([True, False, True]), jnp.array([0.2, 0.3, 0.1, 0.4])
    spoiled = jax.tree.map(lambda leaf: leaf[:3].at[1].set(jnp.nan), tree())
    total = jax.tree.map(lambda leaf: leaf[0], tree())
    ids = jnp.array([2, 0, 3])
    found = cgsv_reputation(old, spoiled, total, ids=ids, present=present, alpha=0.5)
    first, third = (flat(UPDATES, k) / np.linalg.norm(flat(UPDATES, k)) for k in (0, 2))
    expected = np.maximum(0.5 * np.array([0.2, 0.3, 0.1 + 1, 0.4 + third @ first]), 1e-3)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)


REPUTATION = jnp.array([0.4, 0.1, 0.3, 0.2])


def test_limits_of_beta():
    np.testing.assert_allclose(cgsv_shares(REPUTATION, beta=1e-4), REPUTATION / 0.4, rtol=1e-4)
    np.testing.assert_allclose(cgsv_shares(REPUTATION, beta=1e7), 1, rtol=1e-6)
    np.testing.assert_allclose(cgsv_shares(REPUTATION), np.tanh(REPUTATION) / np.tanh(0.4), rtol=1e-5)


def test_the_largest_entries_are_kept():
    total = {"w": jnp.array([[3.0, -5.0, 1.0], [0.5, -2.0, 4.0]]), "b": jnp.array([2.0])}
    found = jax.jit(cgsv_rewards)(total, jnp.array([1.0, 0.49, 1e-3]), beta=1e-2)
    assert (found["w"][0].tolist(), found["w"][1].tolist()) == (total["w"].tolist(), [[3, -5, 0], [0, 0, 4]])
    assert found["w"][2].tolist() == [[0, -5, 0], [0, 0, 0]]  # ceil of a small share is one entry
    assert found["b"].ravel().tolist() == [2, 2, 2]


@pytest.mark.thorough
def test_large_layers_are_given_whole():
    total = jnp.arange(1.0, 2_359_297.0)  # a layer of ResNet18
    found = jax.jit(lambda u: jnp.sum(cgsv_rewards(u, jnp.array([1.0, 0.5]), beta=1e-4) != 0, axis=1))(total)
    assert found[0] == total.size
    assert abs(int(found[1]) - total.size / 2) < 2


@pytest.mark.in_turn
def test_ties_go_to_the_entry_that_comes_first():
    found = jax.jit(cgsv_rewards)({"w": jnp.array([1.0, -1.0, 1.0, 1.0])}, jnp.array([1.0, 0.5]), beta=1e-4)
    assert found["w"][1].tolist() == [1, -1, 0, 0]


@pytest.mark.in_turn
@pytest.mark.parametrize("tied", [False, True])
def test_quirk_zeroes_the_smallest_entry(tied):
    total = {"w": jnp.array([3.0, -5.0, 1.0, 1.0 if tied else 2.0]), "b": jnp.array([2.0])}
    found = jax.jit(functools.partial(cgsv_rewards, quirk=True))(total, jnp.array([1.0, 0.5]), beta=1e-4)
    assert (found["w"][0].tolist(), found["w"][1].tolist()) == ([3, -5, 1, 1] if tied else [3, -5, 0, 2], [3, -5, 0, 0])
    assert found["b"].ravel().tolist() == [0, 0]


@pytest.mark.thorough
def test_in_double_precision(x64):
    updates = jax.tree.map(jnp.asarray, UPDATES)
    reputation, total = one_round(updates, jnp.zeros(4), jnp.full(4, 0.25))
    assert reputation.dtype == total["w"].dtype == jnp.float64
    np.testing.assert_allclose(jnp.sum(reputation), 1, rtol=1e-14)
