"""Randomness keyed by identity: (seed, purpose, round, client id, slot), never by position or by order of splitting."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Int, Key


class Purpose(enum.IntEnum):
    """What a key is for. Values are part of every run's identity: append, never renumber."""

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


def round_key(
    seed: Int[Array, ""], purpose: Purpose | Int[Array, ""], round: Int[Array, ""] | int = 0
) -> Key[Array, ""]:
    """The key of a purpose in a round, shared by all clients (and used as it is by the server).

    Rounds are below 2**27. Two numbers share one ``fold_in``: hashing is most of what random keys cost to compile.
    """
    both = jnp.asarray(round, jnp.uint32) * 32 + jnp.asarray(purpose, jnp.uint32)
    return jax.random.fold_in(jax.random.key(seed), both)


def client_key(key: Key[Array, ""], id: Int[Array, ""], slot: Int[Array, ""] | int = 0) -> Key[Array, ""]:
    """The key of one client and slot, from the round's key; ids are below 2**24, slots below 2**8."""
    both = jnp.asarray(slot, jnp.uint32) * 2**24 + jnp.asarray(id, jnp.uint32)
    return jax.random.fold_in(key, both)
