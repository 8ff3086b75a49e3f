"""Randomness keyed by identity: (seed, purpose, round, client id, slot), never by position or by order of splitting."""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer, Key

from fljax.types import AnyArray


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


# Whole numbers of Python, NumPy or JAX.
Seeds = SupportsIndex | Sequence[SupportsIndex] | Integer[AnyArray, "*seeds"]


def seeds_of(seeds: Seeds) -> list[int]:
    """The list of seeds: the given seeds, or the seeds 0 to n - 1 for a number n.

    Raises:
      ValueError: unless ``seeds`` is a positive number, or distinct integers from 0 to 2**32 - 1.
    """

    count = _whole(seeds)
    if count is not None:
        if count < 1:
            raise ValueError(f"expected a positive number of seeds, or a list of them, got {count}")
        return list(range(count))
    expected = "expected seeds to be distinct integers from 0 to 2**32 - 1, or a number of seeds, got"
    values = cast(Any, seeds)  # a user may give anything
    if isinstance(values, str | bytes) or np.ndim(values) != 1:
        raise ValueError(f"{expected} {seeds!r}")
    each = list(values)
    found = [whole for whole in map(_whole, each) if whole is not None]
    if not each or len(found) < len(each):
        raise ValueError(f"{expected} {each}")
    if min(found) < 0 or max(found) >= 2**32 or len(set(found)) != len(found):
        raise ValueError(f"{expected} {found}")
    return found


def _whole(value: Any) -> int | None:
    """A whole number as Python's int; None for anything else, True and 1.0 included."""
    if np.ndim(value) > 0 or isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def round_key(
    seed: Integer[Array, ""], purpose: Purpose | Integer[Array, ""], round: Integer[Array, ""] | int = 0
) -> Key[Array, ""]:
    """The key of a purpose in a round. The server uses it directly; ``client_key`` derives the clients' keys.

    Rounds are below 2**27. One ``fold_in`` takes both numbers, since each hash adds compile time.
    """
    both = jnp.asarray(round, jnp.uint32) * 32 + jnp.asarray(purpose, jnp.uint32)
    return jax.random.fold_in(jax.random.key(seed), both)


def client_key(key: Key[Array, ""], id: Integer[Array, ""], slot: Integer[Array, ""] | int = 0) -> Key[Array, ""]:
    """The key of one client and slot, from the round's key. Ids are below 2**24, slots below 2**8."""
    both = jnp.asarray(slot, jnp.uint32) * 2**24 + jnp.asarray(id, jnp.uint32)
    return jax.random.fold_in(key, both)
