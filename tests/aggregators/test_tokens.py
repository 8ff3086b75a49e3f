"""Bids, scheduling, settlement, rows of slots: IP-FL's oracles, conservation to the last token, edges, transforms."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import aggregators
from fljax.aggregators import (
    SlotSchedule,
    affordable,
    bid_preferences,
    cluster_utility,
    exploration_share,
    member_accuracy,
    record_slots,
    schedule,
    settle_tokens,
    slot_rows,
)
from tests.drawn import at_most

# Compiled as wholes: operation by operation they take some fifty small programs for each shape.
bid = jax.jit(bid_preferences, static_argnames=("rule", "least_importance", "price"))
scheduled = jax.jit(schedule, static_argnames=("slots",))
settle = jax.jit(settle_tokens, static_argnames=("price", "integer", "most_utility", "most_reimbursed", "ranked"))
exploration = jax.jit(exploration_share)


def bids(accuracy, tokens=None, **options):
    accuracy = jnp.asarray(accuracy, jnp.float32)
    tokens = jnp.full(accuracy.shape[0], 100) if tokens is None else jnp.asarray(tokens)
    return np.asarray(bid(accuracy, tokens, **options)).astype(int).tolist()


@pytest.mark.thorough
def test_bids_are_the_clusters_of_at_least_an_average_share():
    accuracy = [[0.8, 0.2], [0.5, 0.5], [0, 0], [0.2, 0.3]]
    assert bids(accuracy) == [[1, 0], [1, 1], [1, 1], [0, 1]]
    assert bids(accuracy, rule="argmax") == [[1, 0], [1, 0], [1, 0], [0, 1]]
    # Equal shares of three are an average share each, whatever rounding makes of a third.
    assert bids([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7]]) == [[1, 1, 1], [1, 1, 1]]
    # Above what anybody reaches the most important cluster remains.
    assert bids([[0.4, 0.3, 0.3], [0.3, 0.3, 0.3]], least_importance=0.9) == [[1, 0, 0], [1, 0, 0]]
    assert bids([[0.4, 0.3, 0.3]], least_importance=0.3) == [[1, 1, 1]]


@pytest.mark.in_turn
def test_bids_end_where_the_tokens_do():
    accuracy, expected = [[0.3, 0.4, 0.3]] * 4, [[1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert bids(accuracy, [3, 2, 1, 0], least_importance=0.1) == expected
    assert bids(accuracy, [6, 5, 2, 1], least_importance=0.1, price=2) == expected


@pytest.mark.in_turn
def test_what_is_affordable_is_never_more_than_the_tokens():
    wanted, priority = jnp.ones((1, 10), bool), jnp.zeros((1, 10))
    for tokens in (0.0, 0.1, 0.3, 0.7, 1.0):
        taken = int(affordable(priority, wanted, jnp.asarray([tokens]), price=0.1).sum())
        assert np.float32(taken) * np.float32(0.1) <= np.float32(tokens)
        assert taken >= math.floor(tokens / 0.1) - 1


# --- Scheduling ---------------------------------------------------------------------------------------------


def test_exploration_decays_with_those_who_were_never_selected():
    participation = np.zeros((10, 2), int)
    np.testing.assert_allclose(exploration(jnp.asarray(participation)), [0.9, 0.9])
    participation[:4, 0], participation[:, 1] = 2, 1
    np.testing.assert_allclose(exploration(jnp.asarray(participation)), [0.54, 0.2], rtol=1e-6)
    eligible = jnp.arange(10) < 5  # four of these five were selected
    np.testing.assert_allclose(exploration(jnp.asarray(participation), eligible=eligible), [0.2, 0.2], rtol=1e-6)


def chosen(seed, some_bids, contribution, participation, exploration, slots):
    found = scheduled(
        jax.random.key(seed),
        jnp.asarray(some_bids),
        jnp.asarray(contribution, jnp.float32),
        jnp.asarray(participation),
        jnp.asarray(exploration, jnp.float32),
        slots=slots,
    )
    return [set(np.asarray(ids)[np.asarray(there)].tolist()) for ids, there in zip(*found, strict=True)]


@pytest.mark.thorough
def test_without_exploration_the_largest_contributions_win():
    contribution = np.array([0.1, 0.5, -0.2, 0.5, 0.4, 9])[:, None]
    everybody, seen = np.ones((6, 1), bool), np.ones((6, 1), int)
    assert chosen(0, everybody & (np.arange(6) < 5)[:, None], contribution, seen, [0.0], 3) == [{1, 3, 4}]
    # Clients 1 and 3 tie: a lot of the round decides.
    found = [chosen(seed, everybody, contribution, seen, [0.0], 2)[0] for seed in range(8)]
    assert {5, 1} in found
    assert {5, 3} in found
    # Who was never selected ranks behind, even behind a negative contribution; among them a lot decides.
    seen[[1, 3, 5]] = 0
    found = [chosen(seed, everybody, contribution, seen, [0.0], 4)[0] for seed in range(20)]
    assert all({0, 4, 2} < some for some in found)
    assert set.union(*found) == set(range(6))


@pytest.mark.in_turn
def test_all_bidders_are_selected_where_they_fit():
    some = np.zeros((6, 2), bool)
    some[[0, 2, 5], 0] = True
    for share in (0.0, 0.5, 1.0):
        assert chosen(1, some, np.zeros((6, 2)), np.zeros((6, 2), int), [share, share], 3) == [{0, 2, 5}, set()]


@pytest.mark.thorough
def test_random_slots_are_uniform_over_the_other_bidders():
    """K = 4 with half of them random: the two best always, each of six others with probability a third."""
    contribution = -np.arange(8.0)[:, None]
    counts = np.zeros(8)
    for seed in range(400):
        (found,) = chosen(seed, np.ones((8, 1), bool), contribution, np.ones((8, 1), int), [0.5], 4)
        assert {0, 1} <= found
        assert len(found) == 4
        counts[list(found)] += 1
    # Six others share 800 draws; a binomial's standard deviation is below 10.
    np.testing.assert_allclose(counts[2:], 400 / 3, atol=40)


@pytest.mark.thorough
def test_a_share_of_one_is_all_random_and_clusters_draw_apart():
    contribution = np.zeros((50, 2))
    first, second = chosen(3, np.ones((50, 2), bool), contribution, np.ones((50, 2), int), [1.0, 1.0], 5)
    assert len(first) == len(second) == 5
    assert first != second
    assert first != {0, 1, 2, 3, 4}


# --- Settlement ---------------------------------------------------------------------------------------------


def settled(tokens, pools, best, members, contribution, participation, accuracy, **options):
    integer = options.get("integer", True)
    kind = jnp.int32 if integer else jnp.float32
    return settle(
        jnp.asarray(tokens, kind),
        jnp.asarray(pools, kind),
        jnp.asarray(best, jnp.float32),
        jnp.asarray(members, bool),
        jnp.asarray(contribution, jnp.float32),
        jnp.asarray(participation),
        jnp.asarray(accuracy, jnp.float32),
        **options,
    )


def four(best, accuracy, pool=16, **options):
    """Four members of one cluster, with 16 tokens in the pool already: 20 with what they pay."""
    return settled(
        [10] * 4,
        [pool],
        [best],
        np.ones((4, 1)),
        np.array([[4], [3], [2], [1]]),
        np.array([[9], [8], [7], [6]]),
        [accuracy],
        **options,
    )


@pytest.mark.thorough
def test_rewards_of_the_spec():
    """No best accuracy yet, so nothing is refunded: 20 tokens are shared 4, 3, 2, 1 twice over."""
    ledger = four(0.0, 0.5, integer=False)
    np.testing.assert_allclose(ledger.rewarded[:, 0], [8, 6, 4, 2], rtol=1e-6)
    np.testing.assert_allclose(ledger.pools, [0], atol=1e-5)
    np.testing.assert_allclose(ledger.best, [0.5])
    assert not np.any(ledger.reimbursed)
    whole = four(0.0, 0.5)
    np.testing.assert_array_equal(whole.rewarded[:, 0], [8, 6, 4, 2])
    np.testing.assert_array_equal(whole.tokens, [17, 15, 13, 11])


@pytest.mark.thorough
def test_orders_of_contribution_and_participation_are_apart():
    ledger = settled(
        [10] * 4, [16], [0.0], np.ones((4, 1)), np.array([[1], [2], [3], [4]]), np.array([[9], [8], [7], [6]]), [0.5]
    )
    np.testing.assert_array_equal(ledger.rewarded[:, 0], [1 + 4, 2 + 3, 3 + 2, 4 + 1])


@pytest.mark.in_turn
def test_no_improvement_is_refunded_in_full_and_twice_the_accuracy_is_not():
    for best, accuracy, refund, rewards in (
        *((0.5, accuracy, 5, [0] * 4) for accuracy in (0.5, 0.4, 0.0)),
        *((0.25, accuracy, 0, [8, 6, 4, 2]) for accuracy in (0.5, 0.9)),
    ):
        ledger = four(best, accuracy)
        np.testing.assert_array_equal(ledger.reimbursed[:, 0], refund)
        np.testing.assert_array_equal(ledger.rewarded[:, 0], rewards)
        np.testing.assert_array_equal(ledger.best, np.float32(max(best, accuracy)))


def test_a_fifth_better_is_refunded_by_four_fifths():
    """U = 0.2: 16 of 20 go back, 4 each; 4 are left: half of them by contribution rounds down to 0, 0, 0, 0 ..."""
    ledger = four(0.5, 0.6)
    np.testing.assert_array_equal(ledger.reimbursed[:, 0], [4] * 4)
    # floor(4/20 * 4) = 0 each for contribution, then floor(points * 4 / 10) = 1, 1, 0, 0; two tokens stay.
    np.testing.assert_array_equal(ledger.rewarded[:, 0], [1, 1, 0, 0])
    np.testing.assert_array_equal(ledger.pools, [2])
    # Half of it may be refunded at most: 8 of 20.
    np.testing.assert_array_equal(four(0.5, 0.6, most_reimbursed=0.5).reimbursed[:, 0], [2] * 4)
    # A gain of a fifth is the largest that counts: nothing goes back.
    assert not np.any(four(0.5, 0.6, most_utility=0.2).reimbursed)


def test_utility_of_the_spec():
    found = cluster_utility(jnp.asarray([0.6, 0.4, 0.5, 0.9, math.nan]), jnp.asarray([0.5, 0.5, 0.0, 0.3, 0.5]))
    np.testing.assert_allclose(found, [0.2, 0, 0, 1, 0], rtol=1e-5)


@pytest.mark.in_turn
def test_all_clients_may_share_by_participation():
    members = np.array([[1], [1], [0]])
    ledger = settled([5] * 3, [10], [0.0], members, [[2], [1], [0]], [[1], [2], [3]], [0.5], ranked="all")
    # 12 tokens: 12/6 * (2, 1) by contribution; the other 6 for all by 3, 2, 1 points: places of client 2, 1, 0.
    np.testing.assert_array_equal(ledger.rewarded[:, 0], [4 + 1, 2 + 2, 3])


@pytest.mark.in_turn
def test_nobody_to_tell_means_that_members_only_pay():
    ledger = four(0.5, math.nan)
    np.testing.assert_array_equal(ledger.tokens, [9] * 4)
    np.testing.assert_array_equal(ledger.pools, [20])
    np.testing.assert_array_equal(ledger.best, np.float32(0.5))
    # A cluster without members keeps its pool, whatever accuracy is reported.
    empty = settled([3], [7], [0.5], [[0]], [[0]], [[0]], [0.9], ranked="all")
    assert (np.asarray(empty.tokens).tolist(), np.asarray(empty.pools).tolist()) == ([3], [7])


@pytest.mark.in_turn
def test_large_pools_do_not_leave_32_bits():
    n, pool = 2000, 16_000_000
    ledger = settled(
        np.ones(n), [pool - n], [0.0], np.ones((n, 1)), -np.arange(n)[:, None], -np.arange(n)[:, None], [0.5]
    )
    points, total = n - np.arange(n, dtype=object), n * (n + 1)
    first = np.array([int(p) * pool // total for p in points])
    second = np.array([2 * int(p) * int(pool - first.sum()) // total for p in points])
    np.testing.assert_array_equal(ledger.rewarded[:, 0], first + second)
    assert int(ledger.pools[0]) == pool - first.sum() - second.sum() >= 0


@functools.partial(jax.jit, static_argnames=("integer", "ranked"))
def _one_round(key, tokens, pools, best, participation, accuracy, contribution, lost, mean, numbers, integer, ranked):
    """Bids, scheduling, and the settlement of those who were not lost."""
    price, most, back = numbers
    wanted = bid_preferences(accuracy, tokens, price=price)
    plan = schedule(key, wanted, contribution, participation, exploration_share(participation), slots=2)
    place = jnp.where(plan.present, plan.id, tokens.shape[0])
    members = jnp.zeros(wanted.shape, bool).T.at[jnp.arange(wanted.shape[1])[:, None], place].set(True, mode="drop").T
    members = members & ~lost
    participation = participation + members
    ledger = settle_tokens(
        tokens,
        pools,
        best,
        members,
        contribution,
        participation,
        mean,
        price=price,
        integer=integer,
        most_utility=most,
        most_reimbursed=back,
        ranked=ranked,
    )
    return ledger, participation, jnp.all(wanted | ~members)


@pytest.mark.thorough
@at_most(150)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 1), (6, 3)]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["members", "all"]),
    st.sampled_from([0.25, 1.0, 3.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_tokens_are_conserved_and_never_negative(seed, shape, price, integer, ranked, most, back):
    """Several rounds of bids, scheduling and settlement with whatever contributions, accuracies and lost clients."""
    draw = np.random.default_rng(seed)
    kind = np.int32 if integer else np.float32
    tokens = draw.integers(0, 6, shape[0]).astype(kind)
    pools, best, participation = np.zeros(shape[1], kind), np.zeros(shape[1], np.float32), np.zeros(shape, np.int32)
    total, slack = tokens.sum(), 0 if integer else 1e-4
    for round in range(3):
        mean = np.where(draw.random(shape[1]) < 0.2, np.nan, draw.random(shape[1])).astype(np.float32)
        ledger, participation, bid = _one_round(
            jax.random.key(seed + round),
            tokens,
            pools,
            best,
            participation,
            draw.random(shape).round(1).astype(np.float32),
            draw.normal(size=shape).astype(np.float32),
            draw.random(shape) < 0.2,
            mean,
            (price, most, back),
            integer,
            ranked,
        )
        ledger = jax.tree.map(np.asarray, ledger)
        assert bid
        assert abs(ledger.tokens.sum() + ledger.pools.sum() - total) <= slack
        assert min(ledger.tokens.min(), ledger.pools.min()) >= 0
        moved = (ledger.reimbursed + ledger.rewarded - ledger.paid).sum(axis=1)
        np.testing.assert_allclose(ledger.tokens, tokens + moved, atol=slack)
        assert {leaf.dtype for leaf in (ledger.tokens, ledger.pools, ledger.rewarded)} == {np.dtype(kind)}
        tokens, pools, best = ledger[:3]


@pytest.mark.thorough
def test_permuting_clusters_permutes_the_books():
    draw = np.random.default_rng(2)
    arguments: Any = (
        draw.random((5, 3)) < 0.6,
        draw.normal(size=(5, 3)),
        draw.integers(0, 4, (5, 3)),
    )
    pools, best, accuracy = np.array([3, 0, 8]), np.array([0.2, 0, 0.5]), np.array([0.3, 0.4, 0.55])
    order = np.array([2, 0, 1])
    everything: Any = functools.partial(settled, [9] * 5)
    straight = everything(pools, best, *arguments, accuracy)
    turned = everything(pools[order], best[order], *(each[:, order] for each in arguments), accuracy[order])
    np.testing.assert_array_equal(straight.tokens, turned.tokens)
    for one, other in zip(straight[1:3], turned[1:3], strict=True):
        np.testing.assert_array_equal(np.asarray(one)[order], other)
    for one, other in zip(straight[3:], turned[3:], strict=True):
        np.testing.assert_array_equal(np.asarray(one)[:, order], other)


@pytest.mark.in_turn
def test_numpy_arrays_are_welcome_and_whole_numbers_may_be_divided():
    arguments: Any = (
        np.full(4, 10),
        np.array([17]),
        np.zeros(1),
        np.ones((4, 1), bool),
        np.array([[4], [3], [2], [1]]),
        np.array([[9], [8], [7], [6]]),
        np.array([0.5]),
    )
    divided = settle_tokens(*arguments, integer=False)
    np.testing.assert_allclose(divided.tokens, 9 + np.array([8.4, 6.3, 4.2, 2.1]), rtol=1e-6)
    np.testing.assert_allclose(divided.tokens.sum() + divided.pools.sum(), 57, rtol=1e-6)
    whole = settle_tokens(*arguments)
    assert int(whole.tokens.sum() + whole.pools.sum()) == 57
    assert jnp.issubdtype(whole.tokens.dtype, jnp.integer)


@pytest.mark.in_turn
def test_parts_of_whole_tokens_stay_where_they_are():
    tokens, pools = jnp.asarray([1.5, 2.25, 3.0]), jnp.asarray([0.75])
    members = jnp.asarray([[True], [True], [False]])
    zeros = jnp.zeros((3, 1))
    ledger = settle_tokens(tokens, pools, jnp.zeros(1), members, zeros, zeros, jnp.asarray([0.5]))
    np.testing.assert_allclose(ledger.tokens.sum() + ledger.pools.sum(), 7.5, rtol=1e-6)
    np.testing.assert_allclose(ledger.tokens % 1, [0.5, 0.25, 0], rtol=1e-6)
    np.testing.assert_array_equal(ledger.paid[:, 0], [1, 1, 0])


N, C = 5, 2
# Client 3 trains both models; the last slot of cluster 1 is empty, and its id is that of a client that did not train.
CHOSEN = SlotSchedule(jnp.array([[3, 0, 4], [1, 3, 2]]), jnp.array([[True, True, True], [True, True, False]]))


def test_a_row_for_each_slot():
    rows = slot_rows(CHOSEN)
    assert (rows.id.tolist(), rows.cluster.tolist()) == ([3, 0, 4, 1, 3, 2], [0, 0, 0, 1, 1, 1])
    assert rows.present.tolist() == [True] * 5 + [False]
    assert rows.membership.astype(int).tolist() == [[1, 0]] * 3 + [[0, 1]] * 2 + [[0, 0]]


def test_one_value_for_all_slots_makes_the_members():
    members = record_slots(jnp.zeros((N, C), bool), CHOSEN, True)
    assert members.astype(int).tolist() == [[1, 0], [0, 1], [0, 0], [1, 1], [1, 0]]
    counts = record_slots(jnp.full((N, C), 7), CHOSEN, 2)
    assert (counts.dtype, counts.tolist()) == (jnp.int32, [[2, 7], [7, 2], [7, 7], [2, 2], [2, 7]])


def test_values_by_cluster_and_row_go_to_their_clients():
    values = jnp.arange(12.0).reshape(C, 6).at[1, 5].set(jnp.nan)
    found = record_slots(jnp.full((N, C), -1.0), CHOSEN, values)
    assert found.tolist() == [[1, -1], [-1, 9], [-1, -1], [0, 10], [2, -1]]


def test_a_member_that_does_not_answer_is_no_member():
    answers = jnp.array([True, True, True, False, True])
    chosen = CHOSEN._replace(present=CHOSEN.present & answers[CHOSEN.id])
    assert record_slots(jnp.zeros((N, C), bool), chosen, True).astype(int).tolist() == [
        [1, 0], [0, 1], [0, 0], [0, 0], [1, 0],
    ]  # fmt: skip
    assert not slot_rows(chosen).membership[jnp.array([0, 4])].any()


@pytest.mark.in_turn
def test_more_slots_than_clients():
    bids = jnp.ones((3, C), bool)
    chosen = aggregators.schedule(jax.random.key(0), bids, bids * 1.0, bids * 1, jnp.full(C, 0.5), slots=9)
    assert slot_rows(chosen).id.shape == (6,)
    assert record_slots(jnp.zeros((3, C), bool), chosen, True).all()


def test_member_accuracy_is_the_mean_over_members():
    accuracy = jnp.array([[0.5, 0.1], [0.7, jnp.nan], [jnp.nan, jnp.nan]])
    members = jnp.array([[True, False], [True, False], [False, False]])
    found = member_accuracy(accuracy, members)
    np.testing.assert_allclose(found, [0.6, np.nan], rtol=1e-6)


@pytest.mark.in_turn
def test_an_empty_cluster_has_no_gradient():
    members = jnp.array([[True, False], [True, False]])
    found = jax.grad(lambda a: jnp.nansum(member_accuracy(a, members)))(jnp.full((2, 2), 0.5))
    assert found.tolist() == [[0.5, 0], [0.5, 0]]
