"""Coalitions that block, stable partitions, and the game of joining: Donahue and Kleinberg's uniform federation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fljax import games
from fljax.contributions.solutions import members_of
from tests.contributions.games import MAJORITY, THREE
from tests.games.known import table_of
from tests.games.played import uniform_federation


def names_of(members: np.ndarray, chosen: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in members[chosen]]


def test_who_leaves_the_uniform_federation() -> None:
    result = games.blocking_coalitions(uniform_federation())
    assert names_of(result.members, result.blocks) == [(0, 1), (2,)]
    assert names_of(result.members, result.blocks_with_transfers) == [(0, 1), (2,)]
    assert (result.certain, result.certain_with_transfers) == (None, None)
    pair = result.members.tolist().index([True, True, False])
    assert result.least[pair] == pytest.approx(1.551020 - 1.5, abs=5e-7)
    assert result.total[pair] == pytest.approx(2 * (1.551020 - 1.5), abs=1e-6)
    margin = games.blocking_coalitions(uniform_federation(), margin=0.01)
    assert names_of(margin.members, margin.blocks) == [(0, 1)]


def test_a_group_may_gain_together_though_a_member_loses() -> None:
    payoffs = np.zeros((1, 8, 3))
    payoffs[0, 3, :2] = 0.5, -0.1
    result = games.blocking_coalitions(table_of(np.zeros((1, 8)), payoffs=payoffs))
    assert names_of(result.members, result.blocks) == []
    assert names_of(result.members, result.blocks_with_transfers) == [(0, 1)]


def test_blocking_is_certain_where_bounds_exclude_chance() -> None:
    """Noise that all runs of a seed share is in no difference; noise of single runs is."""
    result = games.blocking_coalitions(uniform_federation(seeds=6, noise=0.5))
    assert result.certain is not None
    assert result.certain_with_transfers is not None
    np.testing.assert_array_equal(result.certain, result.blocks)
    np.testing.assert_array_equal(result.certain_with_transfers, result.blocks_with_transfers)
    table = uniform_federation(seeds=6)
    noise = np.random.default_rng(0).normal(size=table.payoffs.shape)
    result = games.blocking_coalitions(table._replace(payoffs=table.payoffs + noise - noise.mean(axis=0)))
    assert names_of(result.members, result.blocks) == [(0, 1), (2,)]
    assert result.certain is not None
    assert not result.certain.any()


def test_nobody_prefers_a_run_that_diverged() -> None:
    table = uniform_federation(seeds=6)
    payoffs = table.payoffs.copy()
    payoffs[2, 3] = np.nan
    result = games.blocking_coalitions(table._replace(payoffs=payoffs))
    assert names_of(result.members, result.blocks) == [(2,)]
    assert result.certain is not None
    assert names_of(result.members, result.certain) == [(2,)]
    # Without {0, 1}, client 2 has .389 with a small client, which has 1.722 in place of 2.
    assert games.core_stable_partitions(table._replace(payoffs=payoffs)) == (((0, 2), (1,)), ((0,), (1, 2)))


def test_a_federation_that_diverged_is_left_by_everybody_who_can() -> None:
    """As in ``core_stable_partitions``; whose own run diverged, too, has nowhere to go."""
    table = uniform_federation(seeds=6)
    payoffs = table.payoffs.copy()
    payoffs[2, 7] = payoffs[:, 3] = np.nan
    result = games.blocking_coalitions(table._replace(payoffs=payoffs))
    others = [(0,), (1,), (2,), (0, 2), (1, 2)]
    assert sorted(names_of(result.members, result.blocks)) == sorted(others)
    assert sorted(names_of(result.members, result.blocks_with_transfers)) == sorted(others)
    assert result.certain is not None  # bounds of gains that are not known exclude nothing
    assert not result.certain.any()


def test_the_stable_partition_of_the_uniform_federation() -> None:
    assert games.core_stable_partitions(uniform_federation()) == (((0, 1), (2,)),)


def plainly(payoffs: np.ndarray, clients: int) -> set[frozenset[frozenset[int]]]:
    """Stable partitions by their definition."""
    everybody = range(clients)
    groups = [frozenset(c) for size in range(1, clients + 1) for c in itertools.combinations(everybody, size)]
    partitions = {
        frozenset(frozenset(i for i in everybody if label[i] == block) for block in label)
        for label in itertools.product(everybody, repeat=clients)
    }
    code = {group: sum(1 << i for i in group) for group in groups}

    def blocked(partition: frozenset[frozenset[int]]) -> bool:
        mine = {i: payoffs[code[group], i] for group in partition for i in group}
        return any(all(payoffs[code[group], i] > mine[i] for i in group) for group in groups)

    return {partition for partition in partitions if not blocked(partition)}


@pytest.mark.parametrize("seed", range(4))
def test_stable_partitions_by_their_definition(seed: int) -> None:
    payoffs = np.random.default_rng(seed).normal(size=(1, 16, 4))
    result = games.core_stable_partitions(table_of(np.zeros((1, 16)), payoffs=payoffs))
    assert {frozenset(map(frozenset, partition)) for partition in result} == plainly(payoffs[0], 4)
    assert [len(partition) for partition in result] == sorted(len(partition) for partition in result)


def test_a_majority_divides_what_it_gets() -> None:
    """Two of three clients that divide 1 are stable: the third one has nothing to offer them."""
    members = members_of(3)
    shares = MAJORITY[:, None] * members / np.maximum(members.sum(axis=1, keepdims=True), 1)
    result = games.core_stable_partitions(table_of(MAJORITY, payoffs=shares[None]))
    assert result == (((0, 1), (2,)), ((0, 2), (1,)), ((0,), (1, 2)))


def test_eight_clients_have_4140_partitions() -> None:
    members = members_of(8)
    payoffs = members.sum(axis=1)[None, :, None] * np.ones(8)
    table = table_of(np.zeros((1, 256)), payoffs=payoffs, names=tuple("abcdefgh"))
    assert games.core_stable_partitions(table) == ((tuple(range(8)),),)


def test_who_joins_the_uniform_federation() -> None:
    """Client 2 has .400 alone and .408 with both others; a pair without it is content."""
    table = games.join_or_leave(uniform_federation())
    result = games.pure_equilibria(table, half_width=0)
    assert sorted(games.coalitions_of(table.choices[result.certain])) == [(), (0, 1)]
    assert table.outside is not None
    np.testing.assert_allclose(table.outside, [[-2, -2, -0.4]])
    assert table.choices[table.honest].tolist() == [0, 0, 0]
    gains = games.unilateral_gains(table)
    assert gains.deviations == ("leave",) * 3
    np.testing.assert_allclose(gains.gains[0, gains.clients == 2], 0.408163 - 0.4, atol=5e-7)


def test_joining_may_cost_something() -> None:
    table = games.join_or_leave(uniform_federation(), cost=0.6)
    result = games.pure_equilibria(table, half_width=0)
    assert games.coalitions_of(table.choices[result.certain]) == ((),)


def test_one_client_has_nobody_to_leave() -> None:
    table = table_of(THREE[[0, 1]])
    result = games.blocking_coalitions(table)
    assert result.members.shape == (0, 1)
    assert games.core_stable_partitions(table) == (((0,),),)
