"""IAFL's rates, subsets and rewards, and rewards by rank: the spec's oracles, edges, transforms."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.aggregators import iafl_rates, iafl_reference, iafl_rewards, iafl_subsets, rank_rewards
from tests.drawn import at_most
from tests.oracles.numpy_rewards import subset_sizes
from tests.precision import enable_x64

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Compiled as wholes: operation by operation they take fifty small programs for each number of clients.
subsets, reference = jax.jit(iafl_subsets), jax.jit(iafl_reference)
KEY = jax.random.key(5)
DRAWS = 4000
rng = np.random.default_rng(0)
UPDATES = {"w": rng.normal(size=(6, 2, 3)), "b": rng.normal(size=6)}


def updates(dtype: Any = jnp.float32):
    return {name: jnp.asarray(leaf, dtype) for name, leaf in UPDATES.items()}


@functools.cache
def many(population: int, rate: float):
    """Subsets of many draws ``[draws, N, N]``."""
    draw = jax.jit(jax.vmap(lambda key: iafl_subsets(key, jnp.full(population, rate))))
    return np.asarray(draw(jax.random.split(KEY, DRAWS)))


@pytest.mark.parametrize("kappa", [0.0, 0.25, 0.5, 0.8])
@pytest.mark.parametrize("ceiling", ["max", 0.7, 2.0])
def test_rates_are_equation_1(kappa, ceiling):
    p = np.array([0.9, 0.1, 0.0, 0.7, 0.35])
    top = p.max() if ceiling == "max" else ceiling
    found = iafl_rates(jnp.asarray(p, jnp.float32), ceiling=ceiling, kappa=kappa)
    np.testing.assert_allclose(found, np.minimum(p / top, 1) ** (1 - kappa), rtol=1e-5)


def test_kappa_1_gives_everybody_everything():
    assert iafl_rates(jnp.array([0.0, 0.5, 1.0]), kappa=1.0).tolist() == [1, 1, 1]
    assert iafl_rates(jnp.zeros(3), kappa=1.0).tolist() == [1, 1, 1]


def test_who_contributes_nothing_gets_nothing():
    assert iafl_rates(jnp.zeros(3)).tolist() == [0, 0, 0]
    assert iafl_rates(jnp.array([jnp.nan, -1.0, 2.0])).tolist() == [0, 0, 1]
    assert iafl_rates(jnp.array([3, 0, 6])).tolist() == [0.5, 0, 1]


def test_an_infinite_contribution_gets_everything():
    assert iafl_rates(jnp.array([jnp.inf, 1.0, 2.0])).tolist() == [1, 0, 0]
    assert iafl_rates(jnp.array([jnp.inf, 1.0, 2.0]), ceiling=2.0).tolist() == [1, 0.5, 1]


@pytest.mark.in_turn
def test_rates_keep_their_dtype_and_trace():
    with enable_x64(True):
        assert iafl_rates(jnp.ones(2, jnp.float64), kappa=0.3).dtype == jnp.float64
    found = jax.jit(lambda p, c, k: iafl_rates(p, ceiling=c, kappa=k))(jnp.array([1.0, 3.0]), 2.0, 0.5)
    np.testing.assert_allclose(found, [0.5**0.5, 1], rtol=1e-6)


@pytest.mark.in_turn
@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_a_contribution_of_zero_leaves_gradients_finite(kappa):
    """The rate of client 1 is (p / 4)^(1 - kappa), whatever another client contributes."""
    by_client, by_kappa = jax.jacrev(lambda p, k: iafl_rates(p, ceiling=4.0, kappa=k), argnums=(0, 1))(
        jnp.array([0.0, 1.0]), kappa
    )
    np.testing.assert_allclose(by_client[1], [0, (1 - kappa) * 0.25 ** (1 - kappa)], rtol=1e-6)
    np.testing.assert_allclose(by_kappa, [0, -np.log(0.25) * 0.25 ** (1 - kappa)], rtol=1e-6)
    if kappa:
        np.testing.assert_allclose(by_client[0], [0, 0])


@pytest.mark.in_turn
def test_inclusion_frequencies():
    chosen = many(6, 0.4) > 0
    share = chosen.mean(axis=0)
    np.testing.assert_array_equal(np.diag(share), 1)
    others = share[~np.eye(6, dtype=bool)]
    # |R| = 2 of 5 others; five standard errors.
    np.testing.assert_allclose(others, 2 / 5, atol=5 * np.sqrt(0.24 / DRAWS))


def test_pairs_of_others_are_equally_likely():
    chosen = many(6, 0.4)[:, 0, 1:] > 0
    pairs, count = np.unique(chosen, axis=0, return_counts=True)
    assert len(pairs) == 10
    np.testing.assert_allclose(count / DRAWS, 0.1, atol=5 * np.sqrt(0.09 / DRAWS))


def test_rows_are_drawn_independently():
    chosen = many(6, 0.4) > 0
    both = (chosen[:, 0, 2] & chosen[:, 1, 2]).mean()
    assert abs(both - 0.16) < 5 * np.sqrt(0.16 * 0.84 / DRAWS)


@pytest.mark.thorough
@pytest.mark.parametrize("population", [2, 11, 26, 101])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["single", "double"])
def test_rounding_errors_add_nobody(population, dtype):
    """Rates k / (M - 1) and k / 10 give exactly k others, and ceil(gamma' M) is their number with the client's own."""
    with enable_x64(dtype == jnp.float64):
        whole = np.arange(population) % population
        rates = jnp.asarray(whole, dtype) / jnp.asarray(population - 1, dtype)
        sizes = np.asarray((subsets(KEY, rates) > 0).sum(axis=1))
        np.testing.assert_array_equal(sizes, 1 + whole)
        if population == 11:
            tenths = jnp.asarray([k * 0.1 for k in range(11)], dtype)
            sizes = np.asarray((subsets(KEY, tenths) > 0).sum(axis=1))
            np.testing.assert_array_equal(sizes, 1 + whole)


@at_most(60)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.integers(0, 2**31 - 1),
)
def test_sizes_of_any_subset(rates, present, seed):
    matrix = np.asarray(subsets(jax.random.key(seed), jnp.asarray(rates, jnp.float32), present=jnp.asarray(present)))
    chosen = matrix > 0
    assert chosen.sum(axis=1).tolist() == subset_sizes(np.asarray(rates, np.float32).tolist(), present)
    assert not chosen[:, ~np.asarray(present)].any()
    assert all(chosen[i, i] for i in range(6) if present[i])
    totals = matrix.sum(axis=1)
    np.testing.assert_allclose(totals, (chosen.sum(axis=1) > 0).astype(float), rtol=1e-6)


@pytest.mark.thorough
def test_the_order_of_columns_makes_no_difference():
    rates = jnp.array([0.1, 0.5, 0.9, 0.3, 1.0, 0.0])
    order = jnp.array([3, 0, 5, 1, 4, 2])
    present = jnp.array([True, True, False, True, True, True])
    usual = np.asarray(subsets(KEY, rates, present=present))
    shuffled = np.asarray(subsets(KEY, rates, ids=order, present=present[order]))
    np.testing.assert_array_equal(shuffled, usual[:, order])
    usual = np.asarray(reference(KEY, rates, present=present))
    shuffled = np.asarray(reference(KEY, rates, ids=order, present=present[order]))
    np.testing.assert_array_equal(shuffled, usual[:, order])


@pytest.mark.in_turn
def test_edges_of_subsets():
    assert iafl_subsets(KEY, jnp.zeros(1)).tolist() == [[1]]
    assert iafl_subsets(KEY, jnp.ones(3), present=jnp.zeros(3, bool)).tolist() == [[0] * 3] * 3
    alone = iafl_subsets(KEY, jnp.ones(3), present=jnp.array([False, True, False]))
    # Somebody who is absent is promised ceil(gamma (J - 1)) = 0 others.
    assert alone.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    two = np.asarray(iafl_subsets(KEY, jnp.ones(3), present=jnp.array([True, True, False])))
    assert (two > 0).sum(axis=1).tolist() == [2, 2, 1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rule", "size"), [("max", 4), ("median", 3)])
def test_reference_takes_as_many_as_its_client(rule, size):
    rates = jnp.array([0.0, 0.1, 0.35, 0.5, 0.55, 0.2])  # median 0.275: 1 + ceil(1.375)
    keys = jax.random.split(KEY, 500)
    rows = np.asarray(jax.jit(jax.vmap(lambda key: iafl_reference(key, rates, rule=rule)))(keys))
    assert rows.shape == (500, 1, 6)
    assert set((rows > 0).sum(axis=2).ravel().tolist()) == {size}
    np.testing.assert_allclose(rows.sum(axis=2), 1, rtol=1e-6)
    share = (rows > 0).mean(axis=0)[0]  # everybody alike: nobody's own update is always in it
    np.testing.assert_allclose(share, size / 6, atol=5 * np.sqrt(0.25 / 500))


@pytest.mark.in_turn
@pytest.mark.parametrize(("rule", "size"), [("max", 4), ("median", 3)])
def test_the_reference_follows_the_rates_of_members(rule, size):
    """Of 5 members, rates of 0.6 and 0.45 (the median of .2 .3 .45 .5 .6) give 1 + 3 and 1 + 2 of 5 updates."""
    rates, members = jnp.asarray([0.6, 1.0, 0.2, 0.45, 1.0, 0.3, 0.5]), jnp.arange(7) % 3 != 1
    row = iafl_reference(KEY, rates, present=members, rule=rule, members=members)
    assert int((row > 0).sum()) == size
    expected = iafl_reference(KEY, rates[members], ids=jnp.flatnonzero(members), present=jnp.ones(5, bool), rule=rule)
    np.testing.assert_array_equal(row[0, np.asarray(members)], expected[0])
    nobody = iafl_reference(KEY, rates, present=members & False, rule=rule, members=members & False)
    assert not nobody.any()


@pytest.mark.unchecked
def test_edges_of_the_reference():
    assert iafl_reference(KEY, jnp.ones(3), present=jnp.zeros(3, bool)).tolist() == [[0, 0, 0]]
    np.testing.assert_allclose(iafl_reference(KEY, jnp.ones(3)), [[1 / 3] * 3], rtol=1e-6)


@pytest.mark.thorough
def test_rewards_are_naive_means():
    rates = jnp.array([0.1, 0.5, 0.9, 0.3, 1.0, 0.0])
    ids = jnp.array([3, 0, 5, 1, 4, 2])
    present = jnp.array([True, True, True, False, True, True])
    spoiled = {name: leaf.at[3].set(jnp.nan) for name, leaf in updates().items()}
    found = iafl_rewards(KEY, spoiled, rates, ids=ids, present=present)
    matrix = np.asarray(iafl_subsets(KEY, rates, ids=ids, present=present))
    for i in range(6):
        rows = np.flatnonzero(matrix[i])
        for name, leaf in UPDATES.items():
            np.testing.assert_allclose(found[name][i], leaf[rows].mean(axis=0), rtol=1e-5, atol=1e-6)
    everybody = iafl_rewards(KEY, updates(), rates)["b"]
    np.testing.assert_allclose(everybody, iafl_subsets(KEY, rates) @ updates()["b"], rtol=1e-5, atol=1e-6)


RATES = jnp.array([0.1, 0.5, 0.9, 0.3, 1.0, 0.0])


@pytest.mark.parametrize("score", [[0.5, 0.1, 0.9, 0.3, 0.2, 0.7], [0.5, 0.5, 0.2, 0.5, 0.2, 0.9]])
def test_rank_rewards_are_naive_means(score):
    found = jax.jit(rank_rewards)(updates(), jnp.array(score))
    order = sorted(range(6), key=lambda k: (score[k], k))
    for name, leaf in UPDATES.items():
        for place, k in enumerate(order):
            np.testing.assert_allclose(found[name][k], leaf[order[: place + 1]].mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[name][order[-1]], leaf.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found[name][order[0]], updates()[name][order[0]])


@pytest.mark.in_turn
def test_rank_rewards_of_the_absent():
    present = jnp.array([True, False, True, True, True, True])
    spoiled = {name: leaf.at[1].set(jnp.nan) for name, leaf in updates().items()}
    score = jnp.array([0.5, 0.1, 0.9, 0.3, 0.2, 0.7])
    found = rank_rewards(spoiled, score, present=present)
    np.testing.assert_array_equal(found["b"][1], 0)
    # Its zero counts in the mean of the next one.
    np.testing.assert_allclose(found["b"][4], UPDATES["b"][4] / 2, rtol=1e-6)


def test_ranks_tie_by_id_in_any_order():
    ids = np.array([4, 1, 0, 5, 3, 2])
    shuffled = {name: leaf[ids] for name, leaf in updates().items()}
    usual = rank_rewards(updates(), jnp.full(6, 0.5))
    found = rank_rewards(shuffled, jnp.full(6, 0.5), ids=jnp.asarray(ids))
    np.testing.assert_allclose(found["w"], usual["w"][ids], rtol=1e-6)
