"""IP-FL's market: clients bid for clusters, the scheduler chooses among bidders, payments, refunds and rewards follow.

Everything is ``[N, C]`` (clients by id, clusters) or ``[C]``. Tokens are only moved: their sum with that of the pools
never changes.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4, equations (9)-(13), Algorithms 1 and 2.
Reconstructed where the printed text leaves gaps: the threshold of a bid, the decay of exploration, and the shapes of
equations (11)-(13), which are those of the authors' code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fljax.aggregators.clusters import importance_weights

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key

    Tokens = Int[Array, " N"] | Float[Array, " N"]

# A share, or a product with a share, that rounding has moved by less than this counts as exact.
_ROUNDING = 1e-6


class Schedule(NamedTuple):
    """Whom each cluster trains with in a round; rows that are not present are empty."""

    id: Int[Array, "C K"]
    present: Bool[Array, "C K"]


class Ledger(NamedTuple):
    """The books after a round, and what moved.

    Attributes:
      tokens: ``[N]`` of clients.
      pools: ``[C]`` of clusters.
      best: ``[C]`` best accuracy of each cluster so far; 0 where there is none yet.
      paid: ``[N, C]`` from clients to pools.
      reimbursed: ``[N, C]`` back to those who paid.
      rewarded: ``[N, C]`` from pools to clients.
    """

    tokens: Tokens
    pools: Array
    best: Float[Array, " C"]
    paid: Array
    reimbursed: Array
    rewarded: Array


# --- Bids ---------------------------------------------------------------------------------------------------


def bid_preferences(
    accuracy: Float[Array, "N C"],
    tokens: Tokens,
    *,
    least_importance: float | Array | None = None,
    price: int | float | Array = 1,
    rule: Literal["threshold", "argmax"] = "threshold",
) -> Bool[Array, "N C"]:
    """``{c : u_kc >= least_importance}``: the clusters that a client wants to train, as far as its tokens go.

    Args:
      accuracy: ``[N, C]`` of every cluster's model on the client's validation rows; ``u`` are its importance weights.
      tokens: ``[N]``; a client bids ``price`` for each cluster, for that of the largest u first; ties go to the lowest
        c.
      least_importance: the threshold; None: ``1 / C``, an average share.
      price: of one bid.
      rule: "threshold", or "argmax": the one cluster whose model is most accurate, as in the authors' code.

    Returns:
      ``[N, C]``. Who finds no cluster important enough bids for the one of the largest u; who cannot pay does not bid.

    Raises:
      ValueError: if ``rule`` is no valid name.

    Source: IP-FL, Algorithm 2 (ClientPreferences).
    """
    if rule not in ("threshold", "argmax"):
        raise ValueError(f"expected rule to be threshold or argmax, got {rule!r}")
    importance = importance_weights(accuracy)
    clusters = accuracy.shape[1]
    best = jnp.arange(clusters)[None, :] == jnp.argmax(importance, axis=1)[:, None]
    if rule == "argmax":
        wanted = best
    else:
        least = 1 / clusters if least_importance is None else least_importance
        wanted = importance >= jnp.asarray(least, importance.dtype) - _ROUNDING
        wanted = jnp.where(jnp.any(wanted, axis=1, keepdims=True), wanted, best)
    return affordable(importance, wanted, tokens, price=price)


def affordable(
    priority: Float[Array, "N C"], wanted: Bool[Array, "N C"], tokens: Tokens, *, price: int | float | Array = 1
) -> Bool[Array, "N C"]:
    """Of what is wanted the first ``floor(tokens / price)``, by descending priority; ties go to the lowest c."""
    order = jnp.argsort(-jnp.where(wanted, priority, -jnp.inf), axis=1, stable=True)
    place = jnp.argsort(order, axis=1)
    # (place + 1) bids must be covered: products, since a quotient of floats may round up.
    return wanted & ((place + 1) * price <= tokens[:, None])


# --- Scheduling ---------------------------------------------------------------------------------------------


def exploration_share(
    participation: Int[Array, "N C"],
    *,
    eligible: Bool[Array, " N"] | None = None,
    initial: float | Array = 0.9,
    least: float | Array = 0.2,
) -> Float[Array, " C"]:
    """``epsilon_c = max(least, initial * U_c / N)``, where ``U_c`` clients were never selected in cluster c.

    Args:
      participation: ``[N, C]``, how often each client trained each cluster's model.
      eligible: ``[N]``, who is counted; None: all.
      initial: share of random slots while nobody was selected.
      least: below which it does not fall.

    Source: IP-FL, section 4.3, after Oort; the numbers are Oort's.
    """
    counted = jnp.ones(participation.shape[0], bool) if eligible is None else eligible
    unexplored = jnp.sum((participation == 0) & counted[:, None], axis=0)
    return jnp.maximum(least, initial * unexplored / jnp.maximum(jnp.sum(counted), 1))


def schedule(
    key: Key[Array, ""],
    bids: Bool[Array, "N C"],
    contribution: Float[Array, "N C"],
    participation: Int[Array, "N C"],
    exploration: Float[Array, " C"],
    *,
    slots: int,
) -> Schedule:
    """Fills the slots of every cluster: the largest contributions among its bidders, and some bidders at random.

    ``K_r = ceil(epsilon_c K)`` slots are random, the others go to the largest contributions; where no more than K bid,
    all of them are selected.

    Args:
      key: of this round; a client's draw does not depend on who else bids.
      bids: ``[N, C]``; multiply by who is available first.
      contribution: ``[N, C]``, the last that is known. Ties go to the lower id.
      participation: ``[N, C]``; who was never selected in a cluster ranks behind all who were, by id.
      exploration: ``[C]``, the share of random slots (``exploration_share``).
      slots: K for each cluster.

    Source: IP-FL, section 4.3 and Algorithm 1 (Scheduler).
    """
    rows = min(slots, bids.shape[0])
    random_slots = jnp.ceil(exploration * slots - _ROUNDING)
    new = participation == 0
    merit = jnp.where(new, 0, contribution)
    by_merit = jnp.lexsort((-merit.T, new.T, ~bids.T), axis=-1)  # [C, N], best first
    place = jnp.argsort(by_merit, axis=-1)
    chosen = bids.T & (place < (slots - random_slots)[:, None])
    drawn = jax.random.uniform(key, bids.shape).T
    score = jnp.where(chosen, 2.0, jnp.where(bids.T, drawn, -jnp.inf))
    value, id = jax.lax.top_k(score, rows)
    return Schedule(id.astype(jnp.int32), jnp.isfinite(value))


# --- Settlement ---------------------------------------------------------------------------------------------


def cluster_utility(
    accuracy: Float[Array, " C"], best: Float[Array, " C"], *, most: float | Array = 1.0
) -> Float[Array, " C"]:
    """``U_c = clip((A_c - best_c) / best_c, 0, most)``; 0 where there is no best accuracy yet, or no accuracy (NaN).

    Source: IP-FL, equation (11).
    """
    known = (best > 0) & ~jnp.isnan(accuracy)
    gain = (jnp.where(known, accuracy, 0) - best) / jnp.where(known, best, 1)
    return jnp.where(known, jnp.clip(gain, 0, most), 0)


def settle_tokens(
    tokens: Tokens,
    pools: Array,
    best: Float[Array, " C"],
    members: Bool[Array, "N C"],
    contribution: Float[Array, "N C"],
    participation: Int[Array, "N C"],
    accuracy: Float[Array, " C"],
    *,
    price: int | float | Array = 1,
    integer: bool = True,
    most_utility: float | Array = 1.0,
    most_reimbursed: float | Array = 1.0,
    ranked: Literal["members", "all"] = "members",
) -> Ledger:
    """Books one round: members pay, are refunded as far as the model did not improve, and share what is left.

    1. Every member k of cluster c pays ``price`` into pool ``P_c``.
    2. ``floor(P_c most_reimbursed (1 - U_c / most_utility))`` goes back to the members in equal parts, where ``U_c`` is
       ``cluster_utility``; nothing does while the cluster has no best accuracy. Then ``best_c <- max(best_c, A_c)``.
    3. Of the n members the one in place i (0: largest contribution) is given ``(n - i) P_c / (n (n + 1))``: half of the
       pool. The rest is shared by places in participation, ``(n' - i) P_c' 2 / (n' (n' + 1))``.

    Args:
      tokens: ``[N]``, at least what is to be paid.
      pools: ``[C]`` before the round; what cannot be divided stays there.
      best: ``[C]`` best accuracy so far, 0 for none.
      members: ``[N, C]``, who trained which cluster's model.
      contribution: ``[N, C]``; ties go to the lower id, here and in participation.
      participation: ``[N, C]``, how often each client trained each cluster's model.
      accuracy: ``[C]``, ``A_c``: mean accuracy of the new model on its members' validation rows; NaN where nobody could
        tell: then members only pay.
      price: what each member pays; a whole number for whole tokens.
      integer: every amount is rounded down to a whole token; exact for less than 2^24 tokens in a pool and 32,000
        members. Otherwise tokens are divided continuously.
      most_utility: the paper's I_max, above 0.
      most_reimbursed: the paper's T_max, in [0, 1].
      ranked: who shares the second half: "members", or "all" clients, as in the authors' code.

    Returns:
      The Ledger, in the dtypes of ``tokens`` and ``pools`` (floats where whole numbers are to be divided);
      ``sum(tokens) + sum(pools)`` is that of the arguments.

    Raises:
      ValueError: if ``ranked`` is no valid name, or ``price`` is no whole number for whole tokens.

    Source: IP-FL, equations (9)-(13).
    """
    if ranked not in ("members", "all"):
        raise ValueError(f"expected ranked to be members or all, got {ranked!r}")
    if integer and isinstance(price, float) and not price.is_integer():
        raise ValueError(f"expected a whole price for whole tokens, got {price}")
    tokens, pools, best, members, accuracy = map(jnp.asarray, (tokens, pools, best, members, accuracy))
    contribution, participation = jnp.asarray(contribution), jnp.asarray(participation)
    real = jnp.result_type(best, float)
    kind = jnp.int32 if integer else real
    given, kept = (x.dtype if integer or jnp.issubdtype(x.dtype, jnp.inexact) else real for x in (tokens, pools))
    held, pool = (jnp.floor(x).astype(kind) if integer else x.astype(kind) for x in (tokens, pools))
    parts = tokens - held.astype(tokens.dtype), pools - pool.astype(pools.dtype)  # of whole tokens: they stay
    paid = members.astype(kind) * jnp.asarray(price, kind)
    pool = pool + jnp.sum(paid, axis=0)

    known = ~jnp.isnan(accuracy)
    count = jnp.sum(members, axis=0).astype(kind)
    settles = known & (count > 0)
    utility = cluster_utility(accuracy, best, most=most_utility)
    back = jnp.where(settles & (best > 0), pool * (most_reimbursed * (1 - utility / most_utility)), 0)
    if integer:
        back = jnp.minimum(jnp.floor(back + _ROUNDING * jnp.maximum(back, 1)).astype(kind), pool)
    each = _divided(back.astype(kind), jnp.maximum(count, 1))
    reimbursed = members.astype(kind) * each[None, :]
    pool = pool - jnp.sum(reimbursed, axis=0)

    first = _shares(members & settles[None, :], contribution, pool, 1)
    pool = pool - jnp.sum(first, axis=0)
    others = members if ranked == "members" else jnp.ones_like(members)
    second = _shares(others & settles[None, :], participation, pool, 2)
    pool = pool - jnp.sum(second, axis=0)

    rewarded = first + second
    held = held + jnp.sum(reimbursed + rewarded - paid, axis=1)
    higher = jnp.where(known & (count > 0), jnp.maximum(best, jnp.where(known, accuracy, 0)), best)
    amounts = (each.astype(given) for each in (paid, reimbursed, rewarded))
    held, pool = held.astype(given), pool.astype(kept)
    if integer:
        held, pool = held + parts[0], pool + parts[1]
    return Ledger(held, pool, higher.astype(best.dtype), *amounts)


def _divided(amount: Array, by: Array) -> Array:
    return amount // by if jnp.issubdtype(amount.dtype, jnp.integer) else amount / by


def _shares(among: Bool[Array, "N C"], value: Array, pool: Array, factor: int) -> Array:
    """``factor (n - i) P / (n (n + 1))`` for those in place i of n by descending value, rounded down if P is whole."""
    order = jnp.lexsort((-value, ~among), axis=0)
    place = jnp.argsort(order, axis=0).astype(pool.dtype)
    count = jnp.maximum(jnp.sum(among, axis=0), 1).astype(pool.dtype)[None, :]
    points, pool = factor * (count - place), pool[None, :]
    if jnp.issubdtype(pool.dtype, jnp.integer):
        # floor(floor(x / n) / m) = floor(x / (n m)), and x / n in two parts: no product leaves 32 bits.
        part = (points * (pool // count) + points * (pool % count) // count) // (count + 1)
    else:
        part = points * pool / (count * (count + 1))
    return jnp.where(among, part, 0)
