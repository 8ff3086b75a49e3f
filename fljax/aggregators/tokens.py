"""IP-FL's market: clients bid for clusters, the scheduler chooses among bidders, payments, refunds and rewards follow.

Everything is ``[N, C]`` (clients by id, clusters) or ``[C]``. Tokens are only moved: their sum with that of the pools
never changes. That sum must fit the dtype of the tokens: 2^31 - 1 in int32.

Where clients or clusters tie, functions take a ``key``: of the round, so that no client is favoured for ever. Each pair
of client and cluster then has a random number that depends on the key, the client's id and the cluster, but not on
other clients (``lots``). Without a key ties go to the lower number, in every round.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4, equations (9)-(13), Algorithms 1 and 2.
Reconstructed where the printed text leaves gaps: the threshold of a bid, the decay of exploration, and the shapes of
equations (11)-(13), which are those of the authors' code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.aggregators.arrays import on_any_mesh, wide
from fljax.aggregators.clusters import importance_weights

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key

    Tokens = Int[Array, " N"] | Float[Array, " N"]

# A share, or a product with a share, that rounding has moved by less than this counts as exact.
_ROUNDING = 1e-6
# What a key is folded with for ties in a schedule.
_TIES = 1


class Schedule(NamedTuple):
    """Whom each cluster trains with in a round; rows that are not present are empty."""

    id: Int[Array, "C K"]
    present: Bool[Array, "C K"]


def lots(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """``[N, C]`` random numbers that order what ties, the smallest first; row k depends on the key and k alone."""
    draw = lambda id: jax.random.bits(jax.random.fold_in(key, id), shape[1:])  # noqa: E731
    return jax.vmap(draw)(jnp.arange(shape[0]))


def check_price(price: Any, whole: bool, dtype: Any) -> None:
    """Raises a ValueError if a price is no amount of tokens; arrays and traced values are not looked at."""
    if not isinstance(price, int | float | np.number):
        return
    if not 0 < price < math.inf:
        raise ValueError(f"expected price to be a finite number above 0, got {price}")
    if whole and price != int(price):
        raise ValueError(f"expected a whole price for whole tokens, got {price}")
    if whole and price > jnp.iinfo(dtype).max:
        raise ValueError(f"expected a price that {jnp.dtype(dtype)} holds, at most {jnp.iinfo(dtype).max}, got {price}")


# --- Bids ---------------------------------------------------------------------------------------------------


def bid_preferences(
    accuracy: Float[Array, "N C"],
    tokens: Tokens,
    *,
    least_importance: float | Array | None = None,
    price: int | float | Array = 1,
    rule: Literal["threshold", "argmax"] = "threshold",
    key: Key[Array, ""] | None = None,
) -> Bool[Array, "N C"]:
    """``{c : u_kc >= least_importance}``: the clusters that a client wants to train, as far as its tokens go.

    Args:
      accuracy: ``[N, C]`` of every cluster's model on the client's validation rows; ``u`` are its importance weights.
      tokens: ``[N]``; a client bids ``price`` for each cluster, for that of the largest u first.
      least_importance: the threshold; None: ``1 / C``, an average share.
      price: of one bid; see ``affordable``.
      rule: "threshold", or "argmax": the one cluster whose model is most accurate, as in the authors' code.
      key: of the round: which of a client's clusters comes first where their u are equal; None: the lowest c.

    Returns:
      ``[N, C]``. Who finds no cluster important enough bids for the one of the largest u; who cannot pay does not bid.

    Raises:
      ValueError: if ``rule`` is no valid name, or ``price`` is no amount of tokens.

    Source: IP-FL, Algorithm 2 (ClientPreferences).
    """
    if rule not in ("threshold", "argmax"):
        raise ValueError(f"expected rule to be threshold or argmax, got {rule!r}")
    importance = importance_weights(wide(accuracy))
    clusters = importance.shape[1]
    best = ranks(importance, jnp.ones(importance.shape, bool), key, axis=1) == 0
    if rule == "argmax":
        wanted = best
    else:
        least = 1 / clusters if least_importance is None else least_importance
        wanted = importance >= jnp.asarray(least, importance.dtype) - _ROUNDING
        wanted = jnp.where(jnp.any(wanted, axis=1, keepdims=True), wanted, best)
    return affordable(importance, wanted, tokens, price=price, key=key)


def affordable(
    priority: Float[Array, "N C"],
    wanted: Bool[Array, "N C"],
    tokens: Tokens,
    *,
    price: int | float | Array = 1,
    key: Key[Array, ""] | None = None,
) -> Bool[Array, "N C"]:
    """Of what is wanted the first ``floor(tokens / price)``, by descending priority.

    Args:
      priority: ``[N, C]``.
      wanted: ``[N, C]``.
      tokens: ``[N]``.
      price: above 0. Beside whole tokens one that is no whole number is rounded up. A traced one counts as 0 below 0,
        and as the most that the dtype of whole tokens holds above that.
      key: of the round: which of a client's clusters comes first where priorities tie; None: the lowest c.

    Raises:
      ValueError: if ``price`` is not above 0, not finite, or more than the dtype of ``tokens`` holds.
    """
    tokens, wanted = jnp.asarray(tokens), jnp.asarray(wanted)
    whole = jnp.issubdtype(tokens.dtype, jnp.integer)
    known = whole and isinstance(price, int | float | np.number) and abs(price) < math.inf
    check_price(math.ceil(price) if known else price, whole, tokens.dtype)
    place = ranks(wide(priority), wanted, key, axis=1)
    return wanted & covered(place + 1, tokens[:, None], price_in(price, tokens.dtype))


def ranks(value: Array, among: Array, key: Any, *, axis: int) -> Array:
    """Places by descending value, from 0 on, along an axis of ``[N, C]``: first those ``among``; ties by lot.

    Between clients (axis 0) every client has one lot for all clusters, so that names of clusters do not matter.
    """
    columns = 1 if axis == 0 else value.shape[1]
    lot = () if key is None else (jnp.broadcast_to(lots(key, (value.shape[0], columns)), value.shape),)
    return jnp.argsort(jnp.lexsort((*lot, -value, ~among), axis=axis), axis=axis)


def price_in(price: Any, dtype: Any) -> Array:
    """A price in the dtype of tokens; in whole tokens it is rounded up."""
    if jnp.issubdtype(dtype, jnp.integer):
        return whole_in(price, jnp.iinfo(dtype).max, dtype)
    return jnp.maximum(jnp.asarray(float(price) if isinstance(price, int) else price, dtype), 0)


def whole_in(amount: Any, most: int, dtype: Any) -> Array:
    """An amount of tokens, known or traced, rounded up to a whole number from 0 to ``most``, without overflow."""
    if isinstance(amount, int | float | np.number):
        return jnp.asarray(min(max(math.ceil(amount), 0), most), dtype)
    amount = jnp.asarray(amount)
    if jnp.issubdtype(amount.dtype, jnp.inexact):
        limit = jnp.nextafter(jnp.asarray(most, amount.dtype), jnp.zeros((), amount.dtype))
        amount = jnp.where(amount < most, jnp.ceil(jnp.clip(amount, 0, limit)).astype(dtype), most)
    wider = max(amount.dtype, jnp.dtype(dtype), key=lambda kind: jnp.iinfo(kind).max)
    return jnp.clip(amount.astype(wider), 0, most).astype(dtype)


def covered(count: Array, tokens: Array, price: Array) -> Array:
    """Whether ``tokens`` pay for ``count`` times the price. Whole tokens are divided: a product would overflow."""
    if jnp.issubdtype(tokens.dtype, jnp.integer):
        return (price == 0) | (count <= tokens // jnp.maximum(price, 1))
    return count.astype(tokens.dtype) * price <= tokens  # a quotient of floats may round up


# --- Scheduling ---------------------------------------------------------------------------------------------


@on_any_mesh
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


@on_any_mesh
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
      key: of this round; a client's draw does not depend on who else bids. Ties are broken by it as well.
      bids: ``[N, C]``; multiply by who is available first.
      contribution: ``[N, C]``, the last that is known.
      participation: ``[N, C]``; who was never selected in a cluster ranks behind all who were. These tie.
      exploration: ``[C]``, the share of random slots (``exploration_share``).
      slots: K for each cluster.

    Source: IP-FL, section 4.3 and Algorithm 1 (Scheduler).
    """
    bids, participation = jnp.asarray(bids), jnp.asarray(participation)
    rows = min(slots, bids.shape[0])
    random_slots = jnp.ceil(wide(exploration) * slots - _ROUNDING)
    new = participation == 0
    merit = jnp.where(new, 0, wide(contribution))
    lot = lots(jax.random.fold_in(key, _TIES), bids.shape).T
    by_merit = jnp.lexsort((lot, -merit.T, new.T, ~bids.T), axis=-1)  # [C, N], best first
    place = jnp.argsort(by_merit, axis=-1)
    chosen = bids.T & (place < (slots - random_slots)[:, None])
    drawn = jax.random.uniform(key, bids.shape).T
    score = jnp.where(chosen, 2.0, jnp.where(bids.T, drawn, -jnp.inf))
    value, id = jax.lax.top_k(score, rows)
    return Schedule(id.astype(jnp.int32), jnp.isfinite(value))
