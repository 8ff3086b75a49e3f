"""Semivalues of a table: printed numbers of small games, the definition over orders and coalitions, and the axioms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.contributions import banzhaf, beta_shapley, exact_shapley, leave_one_out, semivalue, shapley
from fljax.contributions.solutions import members_of, sizes_of
from tests.contributions import games

pytestmark = pytest.mark.usefixtures("quick_compilation")

VALUES = {
    "shapley": shapley,
    "banzhaf": banzhaf,
    "beta_4_1": lambda values: beta_shapley(values, 4, 1),
    "beta_1_4": lambda values: beta_shapley(values, 1, 4),
    "beta_16_1": lambda values: beta_shapley(values, 16, 1),
    "leave_one_out": leave_one_out,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shapley", (0.286667, 0.376667, 0.136667)),
        ("banzhaf", (0.28, 0.37, 0.13)),
        ("beta_4_1", (0.349333, 0.445333, 0.169333)),
        ("beta_1_4", (0.229333, 0.313333, 0.109333)),
        ("beta_16_1", (0.384052, 0.482876, 0.189935)),
        ("leave_one_out", (0.2, 0.28, 0.1)),
    ],
)
def test_printed_numbers_of_three_clients(name, expected):
    np.testing.assert_allclose(VALUES[name](games.THREE), expected, atol=6e-7)


def test_printed_numbers_of_other_games():
    np.testing.assert_allclose(shapley(games.GLOVE), [2 / 3, 1 / 6, 1 / 6], rtol=1e-12)
    np.testing.assert_allclose(banzhaf(games.GLOVE), [3 / 4, 1 / 4, 1 / 4], rtol=1e-12)
    np.testing.assert_allclose(banzhaf(games.MAJORITY), [1 / 2] * 3, rtol=1e-12)


def test_a_client_that_splits_gains_in_shapley_values_but_not_in_banzhaf_values():
    one, two = games.root_of_sizes(1, 2, 4), games.root_of_sizes(1, 2, 2, 2)
    np.testing.assert_allclose(shapley(one), (0.491071, 0.804889, 1.349791), atol=6e-7)
    np.testing.assert_allclose(shapley(two)[2:].sum(), 1.472140, atol=6e-7)
    np.testing.assert_allclose(shapley(two)[2:].sum() / shapley(one)[2] - 1, 0.091, atol=5e-4)
    np.testing.assert_allclose(banzhaf(one)[2], 1.296261, atol=6e-7)
    np.testing.assert_allclose(banzhaf(two)[2:].sum(), banzhaf(one)[2], rtol=1e-12)


def by_coalitions(values, weights):
    """The definition, one coalition after another."""
    clients = int(math.log2(len(values)))
    found = np.zeros(clients)
    for client in range(clients):
        others = [other for other in range(clients) if other != client]
        for size in range(clients):
            for chosen in itertools.combinations(others, size):
                code = sum(2**other for other in chosen)
                found[client] += weights[size] * (values[code + 2**client] - values[code])
    return found


def by_orders(values):
    clients = int(math.log2(len(values)))
    found = np.zeros(clients)
    for order in itertools.permutations(range(clients)):
        code = 0
        for client in order:
            found[client] += values[code + 2**client] - values[code]
            code += 2**client
    return found / math.factorial(clients)


tables = st.integers(1, 5).flatmap(
    lambda clients: st.lists(st.floats(-8, 8, width=32), min_size=2**clients, max_size=2**clients).map(np.array)
)


@given(tables)
def test_the_definitions(values: np.ndarray) -> None:
    clients = int(math.log2(len(values)))
    np.testing.assert_allclose(shapley(values), by_orders(values), atol=1e-11)
    np.testing.assert_allclose(banzhaf(values), by_coalitions(values, [2.0 ** (1 - clients)] * clients), atol=1e-11)
    np.testing.assert_allclose(beta_shapley(values, 1, 1), by_orders(values), atol=1e-11)
    last = [size == clients - 1 for size in range(clients)]
    np.testing.assert_allclose(leave_one_out(values), by_coalitions(values, last), atol=1e-11)
    weights = np.arange(clients) - 1.5
    np.testing.assert_allclose(semivalue(values, weights), by_coalitions(values, weights), atol=1e-11)


@pytest.mark.parametrize("name", VALUES)
@given(values=tables, seed=st.integers(0, 100))
def test_axioms(name: str, values: np.ndarray, seed: int) -> None:
    """Linearity, null player, symmetry; and p_s are a distribution over the coalitions of the others."""
    value, clients, random = VALUES[name], int(math.log2(len(values))), np.random.default_rng(seed)
    other, codes, client = random.normal(size=len(values)), np.arange(len(values)), int(random.integers(clients))
    np.testing.assert_allclose(value(2 * values - other), 2 * value(values) - value(other), atol=1e-10)
    assert value(values[codes & ~(1 << client)])[client] == 0  # exactly
    order = random.permutation(clients)
    moved = members_of(clients)[:, order] @ (1 << np.arange(clients))  # v'(S) = v(order[S])
    np.testing.assert_allclose(value(values[moved])[order], value(values), atol=1e-11)
    np.testing.assert_allclose(value(members_of(clients)[:, client] * 3.0), 3.0 * np.eye(clients)[client], atol=1e-11)


@given(tables)
def test_only_shapley_values_are_efficient(values: np.ndarray) -> None:
    np.testing.assert_allclose(shapley(values).sum(), values[-1] - values[0], atol=1e-10)


def test_other_values_are_not_rescaled():
    total = games.THREE[-1] - games.THREE[0]
    assert all(abs(VALUES[name](games.THREE).sum() - total) > 1e-3 for name in VALUES if name != "shapley")


@given(st.integers(2, 5), st.integers(0, 100))
def test_banzhaf_values_of_two_clients_that_merge_add_up(clients: int, seed: int) -> None:
    """2-efficiency: in the game where clients 0 and 1 are one, that one gets what the two got."""
    values = np.random.default_rng(seed).normal(size=2**clients)
    codes = np.arange(2 ** (clients - 1))
    merged = values[(codes >> 1) * 4 + (codes & 1) * 3]
    np.testing.assert_allclose(banzhaf(merged)[0], banzhaf(values)[:2].sum(), atol=1e-12)


@given(st.integers(1, 6), st.floats(0.2, 20), st.floats(0.2, 20))
def test_beta_weights_are_a_distribution(clients: int, alpha: float, beta: float) -> None:
    additive = members_of(clients) @ np.arange(1.0, clients + 1)
    np.testing.assert_allclose(beta_shapley(additive, alpha, beta), np.arange(1.0, clients + 1), rtol=1e-9)


def test_leading_axes_and_libraries(x64: Any) -> None:
    table = np.random.default_rng(0).normal(size=(3, 2, 16))
    for value in VALUES.values():
        found = value(table)
        assert isinstance(found, np.ndarray)
        assert found.shape == (3, 2, 4)
        np.testing.assert_array_equal(found[1, 0], value(table[1, 0]))
    together = jax.jit(lambda table: [value(table) for value in VALUES.values()])(jnp.asarray(table))
    for one, value in zip(together, VALUES.values(), strict=True):
        np.testing.assert_allclose(one, value(table), atol=1e-12)
    assert jax.eval_shape(shapley, jnp.zeros(4, jnp.float32)).dtype == jnp.float32
    assert jax.eval_shape(shapley, jnp.arange(4)).dtype == jnp.float64
    slope = jax.jit(jax.grad(lambda values: shapley(values)[0]))(jnp.asarray(games.THREE))
    np.testing.assert_allclose(slope @ games.THREE, shapley(games.THREE)[0], rtol=1e-12)


@pytest.mark.in_turn
def test_functions_of_a_coalition_are_the_same_values(x64: Any) -> None:
    table = jnp.asarray(games.THREE)
    found = exact_shapley(lambda members: table[jnp.sum(jnp.where(members, jnp.asarray([1, 2, 4]), 0))], 3)
    np.testing.assert_allclose(found, shapley(games.THREE), rtol=1e-12)


def test_a_diverged_coalition_makes_what_uses_it_unknown():
    values = games.THREE.copy()
    values[0b001] = np.nan
    assert np.isnan(shapley(values)).all()
    assert np.isnan(banzhaf(values)).all()
    np.testing.assert_allclose(leave_one_out(values), (0.2, 0.28, 0.1))
    values = games.THREE.copy()
    values[0b011] = np.nan
    assert np.isnan(leave_one_out(values)).tolist() == [False, False, True]
    np.testing.assert_allclose(semivalue(values, (1, 0, 0)), (0.4, 0.5, 0.2))


def test_codes():
    assert sizes_of(3).tolist() == [0, 1, 1, 2, 1, 2, 2, 3]
