"""Tokens with extreme prices and supplies, and who is favoured where clients tie."""

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

from fljax.aggregators import affordable, bid_preferences, settle_tokens
from fljax.aggregators.settlement import _product_over
from fljax.aggregators.tokens import lots
from tests.drawn import at_most
from tests.precision import enable_x64

pytestmark = [pytest.mark.in_turn, pytest.mark.usefixtures("quick_compilation")]

N, C = 5, 2
MOST = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def count_affordable(tokens, price):
    wanted = jnp.ones((len(tokens), 3), bool)
    found = jax.jit(functools.partial(affordable, price=price))(jnp.zeros(wanted.shape), wanted, tokens)
    return np.asarray(found).sum(axis=1).tolist()


@pytest.mark.thorough
def test_nobody_bids_without_money():
    """Of (place + 1) * price the second product left 32 bits, and was negative."""
    tokens = jnp.asarray([0, 10**9 - 1, 10**9, 2 * 10**9, 2**31 - 1])
    assert count_affordable(tokens, 10**9) == [0, 0, 1, 2, 2]
    assert count_affordable(tokens, jnp.asarray(10**9)) == [0, 0, 1, 2, 2]
    # A traced price beyond the dtype counts as the most that it holds.
    assert count_affordable(tokens, jnp.float32(3e9)) == [0, 0, 0, 0, 1]
    assert count_affordable(jnp.asarray([0, 1, 2, 3]), 0.5) == [0, 1, 2, 3]  # beside whole tokens it is rounded up
    assert count_affordable(jnp.asarray([0.0, 1.0, 1.4, 1.5]), 0.5) == [0, 2, 2, 3]
    with enable_x64(True):
        assert count_affordable(jnp.asarray([2**63 - 1, 2**62 - 1]), 2**62) == [1, 0]


def books(tokens, members, *, pools=0, accuracy=0.5, **options):
    members = jnp.asarray(members)
    zeros, tokens = jnp.zeros(members.shape), jnp.asarray(tokens)
    clusters = members.shape[1]
    start = jnp.full(clusters, pools, tokens.dtype)
    return settle_tokens(
        tokens, start, jnp.zeros(clusters), members, zeros, zeros, jnp.full(clusters, accuracy), **options
    )


# As one program; operation by operation a hundred small ones are compiled.
settled = jax.jit(books, static_argnames=("price", "accuracy", "integer"))


@pytest.mark.thorough
def test_a_supply_that_does_not_fit_is_refused():
    """3,000 members who pay 10^6 each: the pool of 3 * 10^9 left 32 bits, and 2^32 tokens vanished."""
    tokens, members = np.full(3000, 10**6), np.ones((3000, 1), bool)
    with pytest.raises(ValueError, match=r"expected all tokens to sum to at most 2147483647, .* got 3000000000"):
        books(tokens, members, price=10**6)
    # Where values cannot be seen nothing is booked, and no token is lost.
    ledger = jax.jit(functools.partial(books, price=10**6))(tokens, members)
    np.testing.assert_array_equal(ledger.tokens, tokens)
    assert not np.any(ledger.pools)
    assert not np.any(ledger.paid)
    ledger = settled(tokens[:2000], members[:2000], price=10**6)
    assert np.asarray(ledger.tokens, np.int64).sum() + int(ledger.pools[0]) == 2 * 10**9
    assert int(ledger.paid.sum()) == 2 * 10**9


def test_prices_by_cluster():
    """In the order of priority, clients take what their tokens still cover."""
    wanted = jnp.asarray([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]], bool)
    priority = jnp.asarray([[3.0, 2.0, 1.0]] * 4)
    for price in ((2, 5, 1), jnp.asarray([2, 5, 1])):
        found = jax.jit(functools.partial(affordable, price=price))(priority, wanted, jnp.asarray([8, 7, 4, 0]))
        np.testing.assert_array_equal(found, [[1, 1, 1], [1, 1, 0], [0, 0, 1], [0, 0, 0]])
    ledger = settled(jnp.asarray([8, 3, 0]), np.ones((3, 3), bool), price=(2, 5, 1), accuracy=math.nan)
    np.testing.assert_array_equal(ledger.paid, [[2, 5, 1], [2, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(ledger.pools, [4, 5, 2])
    np.testing.assert_array_equal(ledger.tokens, [0, 0, 0])
    # Sums of prices that no whole number holds are never formed.
    rich = jnp.asarray([[1.0, 1.0]]), jnp.ones((1, 2), bool), jnp.asarray([2**31 - 1])
    np.testing.assert_array_equal(affordable(*rich, price=(2**31 - 2, 2**31 - 1)), [[1, 0]])


def test_equal_prices_of_clusters_are_one_price():
    draw = np.random.default_rng(0)
    priority, wanted = jnp.asarray(draw.random((40, 4))), jnp.asarray(draw.random((40, 4)) < 0.7)
    tokens = jnp.asarray(draw.integers(0, 13, 40))
    expected = affordable(priority, wanted, tokens, price=3)
    np.testing.assert_array_equal(affordable(priority, wanted, tokens, price=(3, 3, 3, 3)), expected)


@pytest.mark.thorough
def test_who_cannot_pay_is_no_member():
    ledger = settled(np.array([3, 1, 0]), np.ones((3, 2), bool), price=2, accuracy=math.nan)
    np.testing.assert_array_equal(ledger.paid, [[2, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(ledger.tokens, [1, 1, 0])


@functools.partial(jax.jit, static_argnames=("integer", "ranked", "refunded"))
def _settled(tokens, pools, best, members, contribution, participation, accuracy, price, key, **how):
    return settle_tokens(
        tokens,
        pools,
        best,
        members,
        contribution,
        participation,
        accuracy,
        price=price,
        key=key,
        most_reimbursed=0.7,
        **how,
    )


def supply(draw, kind, fraction):
    """Tokens of clients and pools that sum to a fraction of the most that the dtype holds."""
    shares = draw.dirichlet(np.full(N + C, 0.5))
    if kind == "float32":
        return (shares * fraction * 3e38).astype(np.float32)
    return np.array([int(share * fraction * 0.999 * 2**40) * MOST[kind] // 2**40 for share in shares], kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int32", "int64", "float32"])
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-9, 1e-6, 1e-3, 1.0]),
    st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 1.0]),
    st.sampled_from(["members", "all"]),
    st.sampled_from(["pool", "collected"]),
)
@at_most(25)
def test_whatever_the_price_tokens_are_conserved(kind, seed, fraction, cost, ranked, refunded):
    """Supplies up to the most that a dtype holds, prices up to all of it, members who may not be able to pay."""
    draw, whole = np.random.default_rng(seed), kind != "float32"
    with enable_x64(kind == "int64"):
        amounts = supply(draw, kind, fraction)
        most = float(MOST[kind]) if whole else 3e38
        price = max(int(cost * most * 0.999), 1) if whole else np.float32(cost * most)
        arrays = (
            np.where(draw.random(C) < 0.3, 0, draw.random(C)).astype(np.float32),
            draw.random((N, C)) < 0.7,
            draw.normal(size=(N, C)).round().astype(np.float32),
            draw.integers(0, 3, (N, C)),
            np.where(draw.random(C) < 0.2, np.nan, draw.random(C)).astype(np.float32),
        )
        price, how = jnp.asarray(price, kind), {"integer": whole, "ranked": ranked, "refunded": refunded}
        found = _settled(amounts[:N], amounts[N:], *arrays, price, jax.random.key(seed), **how)
        ledger = jax.tree.map(np.asarray, found)
    for leaf in (ledger.tokens, ledger.pools, ledger.paid, ledger.reimbursed, ledger.rewarded):
        assert leaf.dtype == np.dtype(kind)
        assert leaf.min() >= 0
    exact: Any = lambda x: sum(map(int if whole else float, x.ravel().tolist()))  # noqa: E731
    before, after = exact(amounts), exact(ledger.tokens) + exact(ledger.pools)
    assert before == after if whole else after == pytest.approx(before, rel=3e-6)
    if whole:
        for k in range(N):
            moved = exact(ledger.reimbursed[k]) + exact(ledger.rewarded[k]) - exact(ledger.paid[k])
            assert int(ledger.tokens[k]) - int(amounts[k]) == moved
    assert set(np.unique(ledger.paid).tolist()) <= {0, price.item()}
    if refunded == "collected":
        assert np.all(ledger.reimbursed.astype(object) <= ledger.paid.astype(object))


@pytest.mark.thorough
def test_a_refund_is_a_part_of_the_pool_or_of_what_the_round_collected():
    """Two members pay 6 each into a pool of 20, and nothing improved: all of the base is refunded."""
    zeros, known = jnp.zeros((3, 1)), jnp.full(1, 0.5)

    @functools.partial(jax.jit, static_argnames=("accuracy", "refunded"))
    def settle(accuracy=0.5, **options):
        members = jnp.asarray([[True], [True], [False]])
        given = (jnp.full(3, 100), jnp.full(1, 20), known, members, zeros, zeros, jnp.full(1, accuracy))
        return settle_tokens(*given, price=6, **options)

    np.testing.assert_array_equal(settle().reimbursed[:, 0], [16, 16, 0])
    found = settle(refunded="collected")
    np.testing.assert_array_equal(found.reimbursed[:, 0], [6, 6, 0])
    # The 20 tokens that earlier rounds left are rewards: 2/6 and 1/6 of them by contribution, then 2/3 and 1/3.
    np.testing.assert_array_equal(found.rewarded[:, 0], [6 + 7, 3 + 3, 0])
    assert int(found.tokens.sum() + found.pools.sum()) == 320
    # Half of the largest gain in accuracy: half of the 12 tokens.
    np.testing.assert_array_equal(settle(0.75, refunded="collected").reimbursed[:, 0], [3, 3, 0])


@pytest.mark.thorough
def test_divisible_pools_do_not_fall_below_zero():
    tokens, members = np.full(1000, 7.3, np.float32), np.ones((1000, 1), bool)
    for price in (0.1, 0.7, 3.3):
        ledger = settled(tokens, members, price=price, integer=False)
        assert ledger.pools.min() >= 0
        np.testing.assert_allclose(np.asarray(ledger.tokens, np.float64).sum() + ledger.pools[0], 7300, rtol=1e-5)


@pytest.mark.quick
def test_shares_of_many_members_are_exact():
    """Beyond 46,340 members products of two places leave 32 bits: long multiplication, checked by Python's integers."""
    rng = np.random.default_rng(3)
    n = np.concatenate([[70_000, 70_000, 1], rng.integers(1, 70_001, 20)])
    b = np.concatenate([[69_999, 0, 0], rng.integers(0, n[3:])])
    a = np.concatenate([[70_000, 70_000, 1], rng.integers(0, n[3:] + 1)])
    found = _product_over(*(jnp.asarray(x, jnp.int32) for x in (a, b, n)), most=70_000)
    np.testing.assert_array_equal(found[0], a.astype(object) * b // n)
    np.testing.assert_array_equal(found[1], a.astype(object) * b % n)


def test_lots_depend_on_the_round_and_on_the_client_alone():
    key = jax.random.key(5)
    np.testing.assert_array_equal(lots(key, (4, 2)), lots(key, (9, 2))[:4])
    assert np.unique(lots(key, (9, 2))).size == 18
    assert not np.array_equal(lots(key, (4, 2)), lots(jax.random.key(6), (4, 2)))


@pytest.mark.thorough
def test_without_a_key_ties_go_to_the_lower_id():
    ledger = settled(jnp.full(4, 10), np.ones((4, 1), bool), price=5)
    np.testing.assert_array_equal(ledger.rewarded[:, 0], [8, 6, 4, 2])
    equal = jnp.full((3, 2), 0.5)
    np.testing.assert_array_equal(bid_preferences(equal, jnp.ones(3, int)), [[1, 0]] * 3)
    keyed = [bid_preferences(equal, jnp.ones(3, int), key=jax.random.key(seed)) for seed in range(6)]
    assert 0 < np.mean([bids[:, 0] for bids in keyed]) < 1
    assert (np.sum(keyed, axis=2) == 1).all()
    first = [bid_preferences(equal, jnp.ones(3, int), rule="argmax", key=jax.random.key(s)) for s in range(6)]
    assert 0 < np.mean([bids[:, 0] for bids in first]) < 1


POPULATION, ROUNDS = 100, 120


@functools.partial(jax.jit, static_argnames="lottery")
def profits(lottery):
    """Honest clients who are all alike play: everybody is a member, contributions are noise, half of them exactly 0."""

    def play(state, round):
        tokens, pools, best, participation = state
        key = jax.random.fold_in(jax.random.key(7), round)
        noise = jax.random.normal(jax.random.fold_in(key, 10), (POPULATION, 1))
        contribution = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, 11), 0.5, noise.shape), noise, 0)
        members = jnp.ones((POPULATION, 1), bool)
        ledger = settle_tokens(
            tokens,
            pools,
            best,
            members,
            contribution,
            participation + members,
            jnp.full(1, 0.5),
            price=40,
            key=key if lottery else None,
        )
        return (ledger.tokens, ledger.pools, jnp.zeros(1), participation + members), None

    start = jnp.full(POPULATION, 100_000), jnp.zeros(1, int), jnp.zeros(1), jnp.zeros((POPULATION, 1), int)
    return jax.lax.scan(play, start, jnp.arange(ROUNDS))[0][0] - 100_000


@pytest.mark.thorough
def test_no_id_is_favoured_under_honest_play():
    """The correlation of profit and id has a standard deviation of 0.1 for 100 clients whose ids mean nothing."""
    ids = np.arange(POPULATION)
    by_id = np.corrcoef(ids, np.asarray(profits(lottery=False), float))[0, 1]
    by_lot = np.corrcoef(ids, np.asarray(profits(lottery=True), float))[0, 1]
    assert by_id < -0.8
    assert abs(by_lot) < 0.35  # 3.5 standard deviations


@pytest.mark.thorough
def test_debts_are_not_forgiven():
    """Conservation holds for whatever stands in the books."""
    ledger = books([-5, 10], jnp.zeros((2, 1), bool), pools=-3, accuracy=1.0)
    assert (ledger.tokens.tolist(), ledger.pools.tolist()) == ([-5, 10], [-3])


@pytest.mark.parametrize("ranked", ["members", "all"])
def test_who_is_not_eligible_neither_pays_nor_is_paid(ranked):
    """Two members pay 6 each: shares of contribution are 4 and 2, and of participation 4 and 2."""
    members = jnp.asarray([[True], [True], [True]])
    contribution, eligible = jnp.asarray([[1.0], [3.0], [2.0]]), jnp.asarray([True, False, True])
    ledger = settle_tokens(
        jnp.asarray([10, 10, 10]),
        jnp.zeros(1, int),
        jnp.zeros(1),
        members,
        contribution,
        jnp.asarray([[2], [9], [1]]),
        jnp.full(1, 0.5),
        price=6,
        ranked=ranked,
        eligible=eligible,
    )
    assert (ledger.paid[:, 0].tolist(), ledger.rewarded[:, 0].tolist()) == ([6, 0, 6], [2 + 4, 0, 4 + 2])
    assert ledger.tokens.tolist() == [10, 10, 10]
