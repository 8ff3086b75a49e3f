"""Coalitions of clients by code, ``sum_{i in S} 2^i`` for S, and the values of a function for many coalitions.

A value table ``[..., 2^N]`` has the values by code, the empty coalition first and all clients last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax.core import users
from fljax.core.errors import AlgorithmError
from fljax.protocol.arrays import NumpyArray

Value = Callable[[Bool[Array, " N"]], Float[Array, ""] | float]

# Numbers that become an array: one of JAX, of NumPy, or nested lists.
Numbers = jax.Array | NumpyArray | Sequence[Any]

# More clients would have too many coalitions to evaluate.
LARGEST = 16

# What JAX raises where code of the host is given traced arrays.
_NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def members_of(clients: int) -> Bool[np.ndarray, "coalitions N"]:
    """``[2^N, N]`` bools: who belongs to each coalition, by code."""
    return (np.arange(2**clients)[:, None] >> np.arange(clients)[None, :] & 1).astype(bool)


def sizes_of(clients: int) -> Int[np.ndarray, " coalitions"]:
    """``[2^N]``: the number of members of each coalition, by code."""
    return members_of(clients).sum(axis=1)


def clients_in(code: int) -> tuple[int, ...]:
    """The ids of the members of a coalition."""
    return tuple(i for i in range(int(code).bit_length()) if int(code) >> i & 1)


def clients_of(values: jax.Array | np.ndarray) -> int:
    """N, of a value table ``[..., 2^N]``; raises a ValueError unless N is from 1 to 16."""
    count = values.shape[-1] if values.ndim else 0
    clients = max(count, 1).bit_length() - 1
    if count != 2**clients or not 1 <= clients <= LARGEST:
        raise ValueError(
            f"expected a value for each of 2^N coalitions of N clients, N from 1 to {LARGEST}, on the last axis, got "
            f"shape {tuple(values.shape)}"
        )
    return clients


def value_table(value: Value, members: Bool[Array, "M N"], batch_size: int | None) -> Float[Array, " M"]:
    """``[M]``: ``value`` of every row of ``members``, mapped over ``batch_size`` rows at a time (None: all)."""

    def one(row: Array) -> Array:
        try:
            returned = users.call("value", "(members)", value, row)
        except AlgorithmError as error:
            if not isinstance(error.__cause__, _NEEDS_NUMBERS):
                raise
            raise ValueError(
                "expected value to be a function of jax.numpy, which is mapped over coalitions, got one that needs the "
                f"numbers themselves ({type(error.__cause__).__name__}); jax.pure_callback calls code of the host"
            ) from error.__cause__
        found = users.numbers("value", value, "one number for a coalition", returned, ())
        return found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(jnp.result_type(float))

    if batch_size is None or members.shape[0] <= batch_size:
        return jax.vmap(one)(members)
    return jax.lax.map(one, members, batch_size=batch_size)
