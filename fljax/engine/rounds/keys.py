"""Randomness keyed by identity: (seed, purpose, round, client id, slot), never by position or by order of splitting."""

from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Key

from fljax.core.values import as_whole
from fljax.protocol.data import Seeds as Seeds
from fljax.protocol.data import seeds_of as seeds_of


class Purpose(enum.IntEnum):
    """The purpose of a key. Values are part of every run's identity: append, never renumber."""

    INIT_SERVER = 0
    INIT_CLIENT = 1
    POLL = 2
    SELECT = 3
    TRAIN = 4
    AGGREGATE = 5
    DEPLOY = 6
    UNSEEN_INIT_CLIENT = 7
    UNSEEN_DEPLOY = 8
    STANDALONE = 9
    UNSEEN_STANDALONE = 10
    INIT_STANDALONE = 11
    UNSEEN_INIT_STANDALONE = 12


# Numbers below which keys differ: ``round_key`` takes rounds in 27 bits, ``client_key`` ids in 24 and slots in 8.
ROUNDS, CLIENTS, SLOTS = 2**27, 2**24, 2**8


def check_below(limit: int, name: str, number: Any) -> None:
    """Raises a ValueError if a number is not below its limit, beyond which keys repeat; traced numbers are unknown."""
    known = as_whole(number)
    if known is not None and known >= limit:
        raise ValueError(f"expected {name} below {limit}, for which random keys differ, got {known}")


def round_key(
    seed: Integer[Array, ""], purpose: Purpose | Integer[Array, ""], round: Integer[Array, ""] | int = 0
) -> Key[Array, ""]:
    """The server's key of a purpose in a round below 2**27; ``client_key`` derives the clients' keys."""
    # One ``fold_in`` takes both numbers, since each hash adds compile time.
    check_below(ROUNDS, "a round", round)
    both = jnp.asarray(round, jnp.uint32) * 32 + jnp.asarray(purpose, jnp.uint32)
    return jax.random.fold_in(jax.random.key(seed), both)


def client_key(key: Key[Array, ""], id: Integer[Array, ""], slot: Integer[Array, ""] | int = 0) -> Key[Array, ""]:
    """The key of one client and slot, from the round's key. Ids are below 2**24, slots below 2**8."""
    check_below(CLIENTS, "the id of a client", id)
    check_below(SLOTS, "a slot", slot)
    both = jnp.asarray(slot, jnp.uint32) * 2**24 + jnp.asarray(id, jnp.uint32)
    return jax.random.fold_in(key, both)
