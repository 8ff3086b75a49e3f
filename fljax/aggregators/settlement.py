"""IP-FL's token manager: members' payments, refunds and rewards.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4, equations (9)-(13), in the form of the
authors' code. ``fljax.aggregators.tokens`` has bids and the scheduler, and explains the argument ``key``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import check_shape, known, on_any_mesh
from fljax.aggregators.tokens import bought, check_price, covered, price_in, ranks
from fljax.core.trees import as_key, or_nan, wide

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key

    from fljax.aggregators.tokens import Price, Tokens

# Tolerance for rounding errors in a product with a share.
_ROUNDING = 1e-6
# Numbers folded into the key to break ties in the two halves of the rewards.
_CONTRIBUTION_TIES, _PARTICIPATION_TIES = 2, 3


class Ledger(NamedTuple):
    """Balances after a round, and the round's transfers.

    Attributes:
      tokens: ``[N]``, the clients' balances.
      pools: ``[C]``, the clusters' balances.
      best: ``[C]``, best accuracy of each cluster so far; 0 if there is none yet.
      paid: ``[N, C]``, payments from clients to pools.
      reimbursed: ``[N, C]``, refunds from pools to the members that paid.
      rewarded: ``[N, C]``, rewards from pools to clients.
    """

    tokens: Tokens
    pools: Array
    best: Float[Array, " C"]
    paid: Array
    reimbursed: Array
    rewarded: Array


def cluster_utility(
    accuracy: Float[Array, " C"], best: Float[Array, " C"], *, most: float | Array = 1.0
) -> Float[Array, " C"]:
    """``U_c = clip((A_c - best_c) / best_c, 0, most)``; 0 if ``best_c`` is 0 (none yet) or ``A_c`` is NaN.

    Source: IP-FL, equation (11).
    """
    accuracy, best = wide(accuracy), wide(best)
    known = (best > 0) & ~jnp.isnan(accuracy)
    gain = (jnp.where(known, accuracy, 0) - best) / jnp.where(known, best, 1)
    return jnp.where(known, jnp.clip(gain, 0, most), 0)


@on_any_mesh
def member_accuracy(accuracy: Float[Array, "N C"], members: Bool[Array, "N C"]) -> Float[Array, " C"]:
    """``A_c``: the mean accuracy of each cluster's model over its members; NaN for a cluster without members.

    Args:
      accuracy: ``[N, C]``, of each cluster's NEW model on the client's validation rows; those of others are never read.
      members: ``[N, C]``, True where a client trained a cluster's model and reports its accuracy.

    Returns:
      ``[C]``, for ``settle_tokens``.

    Raises:
      ValueError: if ``members`` has another shape than ``accuracy``.
    """
    accuracy, members = wide(accuracy), jnp.asarray(members).astype(bool)
    check_shape("members", members, "N, C", *accuracy.shape)
    count = jnp.sum(members, axis=0)
    total = jnp.sum(jnp.where(members, accuracy, 0), axis=0)
    return or_nan(count > 0, total / jnp.maximum(count, 1))


@on_any_mesh
def settle_tokens(
    tokens: Tokens,
    pools: Array,
    best: Float[Array, " C"],
    members: Bool[Array, "N C"],
    contribution: Float[Array, "N C"],
    participation: Int[Array, "N C"],
    accuracy: Float[Array, " C"],
    *,
    price: Price = 1,
    integer: bool = True,
    most_utility: float | Array = 1.0,
    most_reimbursed: float | Array = 1.0,
    ranked: Literal["members", "all"] = "members",
    eligible: Bool[Array, " N"] | None = None,
    refunded: Literal["pool", "collected"] = "pool",
    key: Key[Array, ""] | None = None,
) -> Ledger:
    """Settles one round: members pay, get a refund that shrinks as the model improves, and share the rest of the pool.

    1. Every member k of cluster c pays ``price`` (of c, if it is by cluster) into pool ``P_c``.
    2. The pool refunds ``floor(P_c most_reimbursed (1 - U_c / most_utility))`` to its members in equal parts, where
       ``U_c`` is ``cluster_utility``. With ``refunded="collected"`` the members' payments of this round replace ``P_c``
       in this product. A cluster without a best accuracy refunds nothing. Then ``best_c <- max(best_c, A_c)``.
    3. Of the n members, the one in place i (0: largest contribution) receives ``(n - i) P_c / (n (n + 1))``: in all,
       half of the pool. The rest is shared by places in participation, ``(n' - i) P_c' 2 / (n' (n' + 1))``.

    Args:
      tokens: ``[N]``. A client that cannot pay for all its clusters remains a member of those with the lowest numbers;
        with a price for each cluster it passes over those that its other tokens do not cover.
      pools: ``[C]`` before the round; an indivisible remainder stays in the pool.
      best: ``[C]`` best accuracy so far, 0 for none.
      members: ``[N, C]``, True where a client trained a cluster's model.
      contribution: ``[N, C]``.
      participation: ``[N, C]``, how often each client trained each cluster's model.
      accuracy: ``[C]``, ``A_c``: mean accuracy of the new model on its members' validation rows (``member_accuracy``).
        NaN: unknown; members then pay, but receive nothing.
      price: payment of each member, above 0, one number or one for each cluster ``[C]``; a whole number for whole
        tokens (a traced price is rounded up).
      integer: round every amount down to a whole token. Refunds of more than 2^24 tokens are exact to single
        precision, all other amounts are exact. False: tokens are divided continuously.
      most_utility: the paper's I_max, above 0.
      most_reimbursed: the paper's T_max, in [0, 1].
      ranked: the clients that share the second half: "members", or "all" clients, as in the authors' code.
      eligible: ``[N]``, the clients that belong to the market; None: all. Others neither pay nor are paid, and are not
        ranked.
      refunded: the tokens of which a part is refunded: "pool", all that the cluster's pool holds, with what earlier
        rounds left there (indivisible remainders, and payments of rounds in which the accuracy was unknown); or
        "collected", those of this round alone, as the paper explains equation (12).
      key: the round's key, which orders clients whose contributions or participations tie; None: the lower id comes
        first, in every round.

    Returns:
      The Ledger, in the dtypes of ``tokens`` and ``pools`` (floats if whole numbers must be divided). The total
      ``sum(tokens) + sum(pools)`` does not change; for integers this is exact. No entry is negative unless an argument
      has a negative entry.

    Raises:
      ValueError: if ``ranked`` or ``refunded`` is not a valid name; if ``price`` is not above 0, not whole for whole
        tokens, or exceeds their dtype; if the sum of all whole tokens exceeds their dtype (under a transform, which
        hides the sum, nothing is settled instead); if an array has another shape.

    Source: IP-FL, equations (9)-(13).
    """
    if ranked not in ("members", "all"):
        raise ValueError(f"expected ranked to be members or all, got {ranked!r}")
    if refunded not in ("pool", "collected"):
        raise ValueError(f"expected refunded to be pool or collected, got {refunded!r}")
    tokens, pools, members = map(jnp.asarray, (tokens, pools, members))
    check_shape("tokens", tokens, "N", tokens.size)
    check_shape("pools", pools, "C", pools.size)
    for name, x in {"best": best, "accuracy": accuracy}.items():
        check_shape(name, x, "C", pools.size)
    for name, x in {"members": members, "contribution": contribution, "participation": participation}.items():
        check_shape(name, x, "N, C", tokens.size, pools.size)
    best, accuracy, participation = jnp.asarray(best), wide(accuracy), jnp.asarray(participation)
    best_kind, best = best.dtype, wide(best)
    kind = _whole_kind(tokens, pools) if integer else _real_kind(tokens, pools, best)
    check_price(price, integer, kind)
    token_kind, pool_kind = (
        x.dtype if integer or jnp.issubdtype(x.dtype, jnp.inexact) else kind for x in (tokens, pools)
    )
    balance, pool = (_whole_part(x, kind) if integer else x.astype(kind) for x in (tokens, pools))
    parts = tokens - balance.astype(tokens.dtype), pools - pool.astype(pools.dtype)  # fractions, which stay
    cost = price_in(price, kind)
    if eligible is not None:
        members = members & eligible[:, None]
    if cost.ndim == 0:
        members = members & covered(jnp.cumsum(members, axis=1), balance[:, None], cost)
    else:
        check_shape("price", cost, "C", pools.size)
        members = bought(members, jnp.broadcast_to(cost, members.shape), balance)
    if integer:
        members = members & _fits(balance, pool)
    paid = jnp.where(members, cost, 0)
    collected = jnp.sum(paid, axis=0)
    pool = pool + collected

    known = ~jnp.isnan(accuracy)
    count = jnp.sum(members, axis=0).astype(kind)
    settles = known & (count > 0)
    refund = most_reimbursed * (1 - cluster_utility(accuracy, best, most=most_utility) / most_utility)
    base = pool if refunded == "pool" else jnp.clip(collected, 0, jnp.maximum(pool, 0))  # a pool may be in debt
    back = jnp.where(settles & (best > 0), _part(base, refund), 0)
    refund_each = back // jnp.maximum(count, 1) if integer else back / jnp.maximum(count, 1)
    reimbursed = jnp.where(members, refund_each[None, :], 0)
    pool = _left(pool, reimbursed)

    ties = (_CONTRIBUTION_TIES, _PARTICIPATION_TIES)
    keys = (None, None) if key is None else [jax.random.fold_in(as_key(key), n) for n in ties]
    first = _shares(members & settles[None, :], wide(contribution), pool, 1, keys[0])
    pool = _left(pool, first)
    others = members if ranked == "members" else jnp.ones_like(members)
    others = others if eligible is None else others & eligible[:, None]
    second = _shares(others & settles[None, :], participation, pool, 2, keys[1])
    pool = _left(pool, second)

    rewarded = first + second
    balance = _left(balance, paid.T) + jnp.sum(reimbursed + rewarded, axis=1)
    higher = jnp.where(known & (count > 0), jnp.maximum(best, jnp.where(known, accuracy, 0)), best)
    amounts = (amount.astype(token_kind) for amount in (paid, reimbursed, rewarded))
    balance, pool = balance.astype(token_kind), pool.astype(pool_kind)
    if integer:
        balance, pool = balance + parts[0], pool + parts[1]
    return Ledger(balance, pool, higher.astype(best_kind), *amounts)


def _whole_kind(tokens: Array, pools: Array) -> Any:
    """The integer dtype for whole tokens: the wider dtype of the two arguments, at least int32."""
    kinds = [x.dtype for x in (tokens, pools) if jnp.issubdtype(x.dtype, jnp.integer)]
    return max([*kinds, jnp.dtype(jnp.int32)], key=lambda kind: jnp.iinfo(kind).max)


def _real_kind(*amounts: Array) -> Any:
    """The floating dtype for divisible tokens: the widest dtype of the arguments, at least float32."""
    kinds = [x.dtype for x in amounts if jnp.issubdtype(x.dtype, jnp.inexact)]
    return max([*kinds, jnp.dtype(jnp.float32)], key=lambda kind: kind.itemsize)


def _whole_part(x: Array, kind: Any) -> Array:
    """The whole tokens of ``x``, limited to the range of ``kind``."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x.astype(kind)
    return jnp.minimum(jnp.floor(x), _below(x.dtype, kind)).astype(kind)


def _below(dtype: Any, kind: Any) -> Array:
    """The largest number of a floating dtype that fits the integer dtype ``kind``."""
    return jnp.nextafter(jnp.asarray(2.0 ** (jnp.iinfo(kind).bits - 1), dtype), jnp.zeros((), dtype))


def _fits(tokens: Array, pool: Array) -> Array:
    """Whether the sum of all tokens fits their dtype; raises a ValueError if not and the values are known."""
    most = jnp.iinfo(pool.dtype).max
    parts = [sum(part.tolist()) for part in map(known, (tokens, pool)) if part is not None]
    total = sum(parts)
    if len(parts) == 2 and total > most:
        raise ValueError(f"expected all tokens to sum to at most {most}, which {pool.dtype} holds, got {total}")
    # If the sum in floats is below 1.5 * most, the sum in unsigned integers is exact.
    rough = jnp.sum(tokens.astype(float)) + jnp.sum(pool.astype(float))
    unsigned = jnp.uint32 if jnp.iinfo(pool.dtype).bits == 32 else jnp.uint64
    total = jnp.sum(tokens.astype(unsigned)) + jnp.sum(pool.astype(unsigned))
    return (rough < 1.5 * most) & (total <= jnp.asarray(most, unsigned))


def _part(pool: Array, share: Array) -> Array:
    """``pool * share``, rounded down for whole tokens; the whole pool for a share of 1."""
    product = pool.astype(share.dtype) * share
    if jnp.issubdtype(pool.dtype, jnp.integer):
        product = jnp.floor(product + jnp.minimum(_ROUNDING * jnp.maximum(product, 1), 0.5))
        product = jnp.minimum(product, _below(product.dtype, pool.dtype))
    return jnp.where(share >= 1, pool, jnp.clip(product.astype(pool.dtype), 0, pool))


def _left(amount: Array, taken: Array) -> Array:
    """``amount [X] - sum_Y taken [Y, X]``. Rounding does not make the result negative; a negative amount stays."""
    return jnp.maximum(amount - jnp.sum(taken, axis=0), jnp.minimum(amount, 0))


def _shares(among: Bool[Array, "N C"], value: Array, pool: Array, factor: int, key: Any) -> Array:
    """``factor (n - i) P / (n (n + 1))`` for place i of n by descending value; rounded down if P is whole."""
    place = ranks(value, among, key, axis=0).astype(pool.dtype)
    count = jnp.maximum(jnp.sum(among, axis=0), 1).astype(pool.dtype)[None, :]
    points, pool = jnp.where(among, count - place, 0), pool[None, :]
    if not jnp.issubdtype(pool.dtype, jnp.integer):
        return factor * points / (count * (count + 1)) * pool
    # floor(floor(x / n) / m) = floor(x / (n m)). With points p, p P / n = whole + rest / n; no step exceeds P or 2 n.
    more, rest = _product_over(points, pool % count, count, among.shape[0])
    whole = points * (pool // count) + more
    more = (factor * rest) // count
    return factor * (whole // (count + 1)) + (factor * (whole % (count + 1)) + more) // (count + 1)


def _product_over(a: Array, b: Array, n: Array, most: int) -> tuple[Array, Array]:
    """``a b // n`` and ``a b % n`` for ``0 <= a <= n <= most`` and ``0 <= b < n``; no step is more than ``2 n``."""
    if most <= math.isqrt(jnp.iinfo(n.dtype).max):
        return a * b // n, a * b % n
    zero = jnp.zeros_like(a * b)

    def step(place: int | Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        """Doubles, and adds b where the next bit of a is 1."""
        quotient, rest = so_far
        bit = (a >> jnp.asarray(most.bit_length() - 1 - place, a.dtype)) & 1
        quotient, rest = 2 * quotient + (2 * rest) // n, (2 * rest) % n
        return quotient + (rest + bit * b) // n, (rest + bit * b) % n

    return jax.lax.fori_loop(0, most.bit_length(), step, (zero, zero))
