"""Estimators that sample the retrained game: printed numbers, exactness, budgets, and the errors they state."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.contributions import ESTIMATORS, CachedGame, banzhaf, estimate, semivalue, shapley
from fljax.contributions.estimators import (
    ipss,
    msr_banzhaf,
    owen_shapley,
    permutation_shapley,
    stratified_shapley,
    truncated_shapley,
)
from fljax.contributions.estimators.sampled import node_weights
from fljax.contributions.solutions import members_of
from tests.contributions import games

ORDERS = list(itertools.permutations(range(3)))
KEY = jax.random.key(0)


def three(**how):
    return CachedGame.of_table(games.THREE, **how)


def test_printed_numbers_of_orders():
    found = permutation_shapley(three(), orders=ORDERS)
    np.testing.assert_allclose(found.worth, shapley(games.THREE), rtol=1e-12)
    # The printed deviations are those of all 6 orders, so without Bessel's correction.
    deviation = found.error * np.sqrt(6) * np.sqrt(5 / 6)
    np.testing.assert_allclose(deviation, (0.090676, 0.096206, 0.045338), atol=6e-7)
    assert (found.cost.trainings, found.cost.evaluations, found.details["orders"]) == (7, 8, 6)


def test_printed_numbers_of_truncation():
    found = truncated_shapley(three(), orders=ORDERS, tolerance=0.15)
    np.testing.assert_allclose(found.worth, (0.286667, 0.376667, 0.103333), atol=6e-7)
    assert found.details == {"orders": 6, "asked": 16}
    whole = truncated_shapley(three(), orders=ORDERS, tolerance=0)
    np.testing.assert_allclose(whole.worth, shapley(games.THREE), rtol=1e-12)
    assert whole.details["asked"] == 18


def test_printed_strata():
    found = stratified_shapley(three())
    np.testing.assert_allclose(found.details["strata"][0], (0.4, 0.26, 0.2), rtol=1e-12)
    np.testing.assert_allclose(found.worth, shapley(games.THREE), rtol=1e-12)
    assert found.error.tolist() == [0, 0, 0]


def test_printed_numbers_of_nodes():
    found = owen_shapley(three(), samples=None)
    np.testing.assert_allclose(found.worth, shapley(games.THREE), rtol=1e-12)
    grid = node_weights(np.array([0, 0.5, 1]), np.full(3, 1 / 3), 3)
    np.testing.assert_allclose(semivalue(games.THREE, grid), (0.293333, 0.383333, 0.143333), atol=6e-7)


@given(st.integers(1, 8))
def test_half_as_many_nodes_as_clients_have_no_error(clients: int) -> None:
    values = np.random.default_rng(clients).normal(size=2**clients)
    found = owen_shapley(CachedGame.of_table(values), samples=None)
    np.testing.assert_allclose(found.worth, shapley(values), atol=1e-11)
    if clients > 2:
        fewer = owen_shapley(CachedGame.of_table(values), nodes=(clients - 1) // 2, samples=None)
        assert np.abs(fewer.worth - shapley(values)).max() > 1e-6


def test_printed_numbers_of_reused_samples():
    np.testing.assert_allclose(msr_banzhaf(three(), samples=None).worth, (0.28, 0.37, 0.13), rtol=1e-12)


@pytest.mark.parametrize(
    ("budget", "size", "expected"),
    [
        (4, 1, (0.133333, 0.166667, 0.066667)),
        (7, 2, (0.22, 0.283333, 0.103333)),
        (8, 3, (0.286667, 0.376667, 0.136667)),
        (100, 3, (0.286667, 0.376667, 0.136667)),
    ],
)
def test_printed_numbers_of_small_coalitions(budget, size, expected):
    found = ipss(three(), budget=budget)
    np.testing.assert_allclose(found.worth, expected, atol=6e-7)
    assert found.details["size"] == size


def test_the_rest_of_a_budget_is_balanced():
    game = CachedGame.of_table(np.random.default_rng(0).normal(size=1024))
    found = ipss(game, KEY, budget=200)
    assert (found.details["size"], found.details["complete"]) == (3, 176)
    assert (found.cost.evaluations, found.cost.trainings) == (200, 199)
    larger = members_of(10)[[code for code in game.known if code.bit_count() == 4]]
    assert len(larger) == 24
    assert np.ptp(larger.sum(axis=0)) <= 1
    additive = CachedGame.of_table(members_of(4) @ np.arange(1.0, 5))
    np.testing.assert_allclose(ipss(additive, KEY, budget=11).worth, np.arange(1.0, 5) / 2)
    np.testing.assert_allclose(ipss(additive, KEY, budget=14).worth, np.arange(1.0, 5) * 3 / 4)


SAMPLERS = [
    (permutation_shapley, {"orders": 400}, shapley),
    (truncated_shapley, {"orders": 400, "tolerance": 0.0}, shapley),
    (stratified_shapley, {"samples": 8}, shapley),
    (owen_shapley, {"samples": 200}, shapley),
    (msr_banzhaf, {"samples": 1000}, banzhaf),
]


@pytest.mark.parametrize(("sampler", "how", "value"), SAMPLERS)
def test_samples_are_unbiased_and_state_their_errors(sampler, how, value):
    values = np.random.default_rng(1).normal(size=64)
    results = [sampler(CachedGame.of_table(values), jax.random.key(seed), **how) for seed in range(12)]
    off = np.array([(each.worth - value(values)) / each.error for each in results])
    assert np.abs(off).max() < 4.5
    assert 0.6 < off.std() < 1.4
    assert np.abs(off.mean(axis=0)).max() < 4 / np.sqrt(12)
    again = sampler(CachedGame.of_table(values), jax.random.key(0), **how)
    np.testing.assert_array_equal(again.worth, results[0].worth)


@pytest.mark.parametrize(("sampler", "how", "value"), SAMPLERS)
def test_a_budget_is_kept_and_has_the_first_samples(sampler, how, value):
    values = np.random.default_rng(2).normal(size=64)
    few = sampler(CachedGame.of_table(values, budget=30), KEY, **how)
    assert 0 < few.cost.trainings <= 30
    rich = sampler(CachedGame.of_table(values, budget=63), KEY, **how)
    free = sampler(CachedGame.of_table(values), KEY, **how)
    np.testing.assert_allclose(rich.worth, free.worth, atol=1e-12)  # all coalitions are known in the end


def test_permutations_are_efficient_and_errors_need_two():
    values = np.random.default_rng(3).normal(size=32)
    one = permutation_shapley(CachedGame.of_table(values), KEY, orders=1)
    np.testing.assert_allclose(one.worth.sum(), values[-1] - values[0])
    assert np.isnan(one.error).all()
    assert one.cost.trainings == 5
    assert np.isnan(owen_shapley(CachedGame.of_table(values), KEY, samples=1).error).all()


def test_a_client_on_one_side_only_is_unknown():
    found = msr_banzhaf(three(), KEY, samples=1)
    assert np.isnan(found.worth).all()
    assert np.isnan(found.error).all()


def test_each_coalition_is_trained_once():
    asked = []

    def value(members):
        asked.append(tuple(members.tolist()))
        return games.THREE[members @ [1, 2, 4]]

    game = CachedGame(value, 3)
    permutation_shapley(game, KEY, orders=50)
    stratified_shapley(game)
    assert sorted(asked) == sorted(set(asked))
    assert game.cost.trainings == 7
    np.testing.assert_array_equal(game.table(), games.THREE)


def test_many_clients_have_codes_too():
    game = CachedGame(lambda members: float(members.sum()), 100)
    found = permutation_shapley(game, KEY, orders=2)
    np.testing.assert_allclose(found.worth, 1.0)
    assert max(game.known) == 2**100 - 1


def test_a_diverged_coalition_is_seen():
    values = games.THREE.copy()
    values[0b011] = np.nan
    assert np.isnan(permutation_shapley(CachedGame.of_table(values), orders=ORDERS).worth).all()
    assert np.isnan(msr_banzhaf(CachedGame.of_table(values), samples=None).worth).all()


UNBIASED = ("permutation_shapley", "stratified_shapley", "owen_shapley")


@pytest.mark.parametrize("name", [name for name, entry in ESTIMATORS.items() if entry.on_host])
def test_no_client_is_favoured_by_its_id(name):
    """Over keys, every client is valued equally often, and a game whose clients have other ids has the same values."""
    clients, budget, keys, random = 4, 11, 200, np.random.default_rng(5)
    values, ids = random.normal(size=2**clients), random.permutation(clients)
    renamed = values[members_of(clients)[:, ids] @ (1 << np.arange(clients))]  # its client ids[i] is client i

    def worths(table, first):
        games = [CachedGame.of_table(table, budget=budget) for _ in range(keys)]
        how = {"ipss": {"budget": budget}}.get(name, {})
        return np.array(
            [estimate(name, each, key=jax.random.key(first + k), **how).worth for k, each in enumerate(games)]
        )

    rows = [worths(values, 0), worths(renamed, keys)[:, ids]]
    known = np.isfinite(rows).sum(axis=1)
    assert np.ptp(known.sum(axis=0)) < 0.12 * 2 * keys
    means, errors = np.nanmean(rows, axis=1), np.nanstd(rows, axis=1) / np.sqrt(known) + 1e-9
    assert (np.abs(means[0] - means[1]) < 4.5 * np.hypot(*errors)).all()
    if name in UNBIASED:
        assert (np.abs(means - shapley(values)) < 4.5 * errors).all()
