"""IP-FL's market: clients bid for clusters, the scheduler selects among the bidders, and its slots are rows of updates.

Arrays are ``[N, C]`` (clients by id, clusters) or ``[C]``. The sum of all tokens and pools never changes, and must fit
the dtype of the tokens. Ties are broken by a ``key`` that changes every round, so that no client is favoured for ever:
``lots`` depend on key, id and cluster, not on other clients. Without a key, the lower number wins every tie.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4, equations (9)-(13), Algorithms 1 and 2.
Reconstructed where the text has gaps: the threshold of a bid, the decay of exploration, and the form of equations
(11)-(13), taken from the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.aggregators.arrays import check_shape, on_any_mesh
from fljax.aggregators.clusters import importance_weights
from fljax.core.trees import as_key, set_rows, wide

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key

    Tokens = Int[Array, " N"] | Float[Array, " N"]
    Price = int | float | Array | np.ndarray | Sequence[int] | Sequence[float]

# Tolerance for rounding errors in a share or in a product with a share.
_ROUNDING = 1e-6
# Number folded into the key to break ties in a schedule.
_TIES = 1


class SlotSchedule(NamedTuple):
    """The client ids in each cluster's slots in a round; ``slot_rows`` makes a row of each slot.

    Attributes:
      id: client ids. The id in an empty slot is that of some client.
      present: False where a slot is empty. K is at most the number of clients.
    """

    id: Int[Array, "C K"]
    present: Bool[Array, "C K"]


def lots(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    """``[N, C]`` random numbers that break ties, the smallest first; row k depends only on the key and k."""

    key = as_key(key)

    def draw(id: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(key, id), shape[1:], jnp.uint32)

    return jax.vmap(draw)(jnp.arange(shape[0]))


def check_price(price: Any, whole: bool, dtype: Any) -> None:
    """Raises a ValueError if a price is not a valid amount of tokens; arrays and traced values are not checked."""
    if isinstance(price, list | tuple):  # one for each cluster
        for entry in price:
            check_price(entry, whole, dtype)
        return
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
    price: Price = 1,
    rule: Literal["threshold", "argmax"] = "threshold",
    key: Key[Array, ""] | None = None,
) -> Bool[Array, "N C"]:
    """``{c : u_kc >= least_importance}``: the clusters that a client bids for, limited by its tokens.

    Args:
      accuracy: ``[N, C]``, of each cluster's model on the client's validation rows; u is ``importance_weights`` of it.
      tokens: ``[N]``; a client bids ``price`` for each cluster, in descending order of u.
      least_importance: the threshold; None: ``1 / C``, an average share.
      price: price of one bid; see ``affordable``.
      rule: "threshold", or "argmax": the one cluster whose model is most accurate, as in the authors' code.
      key: the round's key, which orders a client's clusters of equal u; None: the lowest c first.

    Returns:
      ``[N, C]``. A client without a cluster at or above the threshold bids for the cluster of largest u. A client
      that cannot pay does not bid.

    Raises:
      ValueError: if ``rule`` is not a valid name, or ``price`` is not a valid amount of tokens.

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
    price: Price = 1,
    key: Key[Array, ""] | None = None,
) -> Bool[Array, "N C"]:
    """The ``floor(tokens / price)`` wanted clusters of highest priority, for each client.

    With a price for each cluster, a client takes the wanted clusters in the order of priority, and passes over those
    that its other tokens do not cover.

    Args:
      priority: ``[N, C]``.
      wanted: ``[N, C]``.
      tokens: ``[N]``.
      price: above 0, one number or one for each cluster ``[C]``. For whole tokens, the price is rounded up to a whole
        number. A traced price is clipped at 0 and, for whole tokens, at the largest number of their dtype.
      key: the round's key, which orders a client's clusters of equal priority; None: the lowest c first.

    Raises:
      ValueError: if ``price`` is not above 0, not finite, or more than the dtype of ``tokens`` holds; unless ``tokens``
        has an entry for each client, and ``price`` one or one for each cluster.
    """
    tokens, wanted = jnp.asarray(tokens), jnp.asarray(wanted)
    check_shape("tokens", tokens, "N", wanted.shape[0])
    whole = jnp.issubdtype(tokens.dtype, jnp.integer)
    rounded: Any = price
    if whole and isinstance(price, int | float | np.number) and abs(price) < math.inf:
        rounded = math.ceil(price)
    check_price(rounded, whole, tokens.dtype)
    place, cost = ranks(wide(priority), wanted, key, axis=1), price_in(price, tokens.dtype)
    if cost.ndim == 0:
        return wanted & covered(place + 1, tokens[:, None], cost)
    check_shape("price", cost, "C", wanted.shape[1])
    order = jnp.argsort(place, axis=1)
    in_order = bought(jnp.take_along_axis(wanted, order, axis=1), cost[order], tokens)
    return jnp.take_along_axis(in_order, place, axis=1)


def bought(wanted: Bool[Array, "N C"], cost: Array, tokens: Tokens) -> Bool[Array, "N C"]:
    """What each client pays for, of wanted things from left to right that cost ``[N, C]``; no sum can overflow."""
    # It passes over a thing that its other tokens do not cover.

    def take(left: Array, thing: tuple[Array, Array]) -> tuple[Array, Array]:
        is_wanted, price = thing
        pays = is_wanted & (price <= left)
        return left - jnp.where(pays, price, 0), pays

    return jax.lax.scan(take, tokens, (wanted.T, cost.T))[1].T


def ranks(value: Array, among: Array, key: Any, *, axis: int) -> Array:
    """Places by descending value, from 0, along an axis of ``[N, C]``: first the entries in ``among``; ties by lot."""
    # Along axis 0 a client has one lot for all clusters, so the numbering of clusters does not matter.
    columns = 1 if axis == 0 else value.shape[1]
    lot = () if key is None else (jnp.broadcast_to(lots(key, (value.shape[0], columns)), value.shape),)
    return jnp.argsort(jnp.lexsort((*lot, -value, ~among), axis=axis), axis=axis)


def price_in(price: Any, dtype: Any) -> Array:
    """A price in the dtype of tokens; in whole tokens it is rounded up."""
    if jnp.issubdtype(dtype, jnp.integer):
        return whole_in(price, jnp.iinfo(dtype).max, dtype)
    if isinstance(price, list | tuple):
        return jnp.stack([price_in(entry, dtype) for entry in price])
    return jnp.maximum(jnp.asarray(float(price) if isinstance(price, int) else price, dtype), 0)


def whole_in(amount: Any, most: int, dtype: Any) -> Array:
    """Rounds an amount of tokens, known or traced, up to a whole number in 0..``most``, without overflow."""
    if isinstance(amount, int | float | np.number):
        return jnp.asarray(min(max(math.ceil(amount), 0), most), dtype)
    if isinstance(amount, list | tuple):
        return jnp.stack([whole_in(entry, most, dtype) for entry in amount])
    amount = jnp.asarray(amount)
    if jnp.issubdtype(amount.dtype, jnp.inexact):
        limit = jnp.nextafter(jnp.asarray(most, amount.dtype), jnp.zeros((), amount.dtype))
        amount = jnp.where(amount < most, jnp.ceil(jnp.clip(amount, 0, limit)).astype(dtype), most)
    wider = max(amount.dtype, jnp.dtype(dtype), key=lambda kind: jnp.iinfo(kind).max)
    return jnp.clip(amount.astype(wider), 0, most).astype(dtype)


def covered(count: Array, tokens: Array, price: Array) -> Array:
    """Whether ``tokens`` cover ``count`` times the price. Whole tokens are divided, as a product could overflow."""
    if jnp.issubdtype(tokens.dtype, jnp.integer):
        return (price == 0) | (count <= tokens // jnp.maximum(price, 1))
    return count.astype(tokens.dtype) * price <= tokens  # a floating-point quotient may round up


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
      eligible: ``[N]``, the clients to count; None: all.
      initial: share of random slots before any client was selected.
      least: the smallest share of random slots.

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
) -> SlotSchedule:
    """Fills the slots of every cluster with the bidders of largest contribution and some bidders at random.

    ``K_r = ceil(epsilon_c K)`` slots are random; the other slots go to the largest contributions. If a cluster has at
    most K bidders, all of them are selected.

    Args:
      key: the key of this round, which also breaks ties. A client's draw does not depend on the other bidders.
      bids: ``[N, C]``; multiply by the availability of clients first.
      contribution: ``[N, C]``, the last known values.
      participation: ``[N, C]``; clients never selected in a cluster rank behind all others, and tie with each other.
      exploration: ``[C]``, the share of random slots (``exploration_share``).
      slots: K for each cluster; at most N are made.

    Raises:
      ValueError: if an array has another shape.

    Source: IP-FL, section 4.3 and Algorithm 1 (Scheduler).
    """
    bids, participation = jnp.asarray(bids), jnp.asarray(participation)
    check_shape("contribution", contribution, "N, C", *bids.shape)
    check_shape("participation", participation, "N, C", *bids.shape)
    check_shape("exploration", exploration, "C", bids.shape[1])
    rows = min(slots, bids.shape[0])
    random_slots = jnp.ceil(wide(exploration) * slots - _ROUNDING)
    new = participation == 0
    merit = jnp.where(new, 0, wide(contribution))
    key = as_key(key)
    lot = lots(jax.random.fold_in(key, _TIES), bids.shape).T
    by_merit = jnp.lexsort((lot, -merit.T, new.T, ~bids.T), axis=-1)  # [C, N], best first
    place = jnp.argsort(by_merit, axis=-1)
    chosen = bids.T & (place < (slots - random_slots)[:, None])
    drawn = jax.random.uniform(key, bids.shape, jnp.float32).T
    score = jnp.where(chosen, 2.0, jnp.where(bids.T, drawn, -jnp.inf))
    value, id = jax.lax.top_k(score, rows)
    return SlotSchedule(id.astype(jnp.int32), jnp.isfinite(value))


class SlotRows(NamedTuple):
    """A row for each slot of a schedule, S = C K: first those of cluster 0.

    Attributes:
      id: ``[S]``, the client that trains; in an empty slot, some client, whose update is not used.
      cluster: ``[S]``, the cluster whose model it trains.
      present: ``[S]``, False where the slot is empty.
      membership: ``[S, C]``, for ``cluster_means`` and ``member_weights``; False in the row of an empty slot.
    """

    id: Int[Array, " S"]
    cluster: Int[Array, " S"]
    present: Bool[Array, " S"]
    membership: Bool[Array, "S C"]


@on_any_mesh
def slot_rows(chosen: SlotSchedule) -> SlotRows:
    """The slots of all clusters as rows, in which updates are stacked.

    Args:
      chosen: from ``schedule``. If a client did not answer, set ``present`` False in its slots first.
    """
    clusters = jnp.arange(chosen.id.shape[0], dtype=jnp.int32)
    cluster, present = jnp.repeat(clusters, chosen.id.shape[1]), chosen.present.reshape(-1)
    return SlotRows(chosen.id.reshape(-1), cluster, present, present[:, None] & (cluster[:, None] == clusters[None, :]))


@on_any_mesh
def record_slots(table: Array, chosen: SlotSchedule, values: Float[Array, "C S"] | Array | complex) -> Array:
    """``table[k, c] = values[c, s]`` where slot s of cluster c holds client k; other entries of ``table`` stay.

    Args:
      table: ``[N, C]``, by client and cluster.
      chosen: from ``schedule``; nothing is recorded for an empty slot.
      values: ``[C, S]``, columns in the order of ``slot_rows``, as from ``shapley_first_order``; or one value for all.

    Returns:
      ``[N, C]`` in the dtype of ``table``. ``record_slots(jnp.zeros((N, C), bool), chosen, True)`` gives the members.

    Raises:
      ValueError: if ``table`` or ``values`` has another shape.
    """
    rows, table, values = slot_rows(chosen), jnp.asarray(table), jnp.asarray(values)
    check_shape("table", table, "N, C", table.shape[0], chosen.id.shape[0])
    if values.ndim > 0:
        check_shape("values", values, "C, S", chosen.id.shape[0], rows.id.shape[0])
        values = values[rows.cluster, jnp.arange(rows.id.shape[0])]
    return set_rows(table, (rows.id, rows.cluster), rows.present, values.astype(table.dtype))
