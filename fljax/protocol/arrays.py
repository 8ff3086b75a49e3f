"""Arrays and seeds that a user gives or gets. Seeds are a list of whole numbers, or how many."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import jax
import numpy as np
from jaxtyping import Integer

# An array of JAX, which may be traced, or of NumPy.
AnyArray = jax.Array | np.ndarray

# NumPy makes a number of an array without axes. For type checkers it is an array, too.
if TYPE_CHECKING:
    NumpyArray = np.ndarray
else:
    NumpyArray = np.ndarray | np.generic


# Whole numbers of Python, NumPy or JAX.
Seeds = SupportsIndex | Sequence[SupportsIndex] | Integer[AnyArray, "*seeds"]


def seeds_of(seeds: Seeds) -> list[int]:
    """The list of seeds: the given seeds, or the seeds 0 to n - 1 for a number n."""

    count = _whole(seeds)
    if count is not None:
        if count < 1:
            raise ValueError(f"expected a positive number of seeds, or a list of them, got {count}")
        return list(range(count))
    expected = "expected seeds to be distinct integers from 0 to 2**32 - 1, or a number of seeds, got"
    values = cast(Any, seeds)  # a user may give anything
    if isinstance(values, str | bytes) or np.ndim(values) != 1:
        raise ValueError(f"{expected} {seeds!r}")
    entries = list(values)
    whole_numbers = [whole for whole in map(_whole, entries) if whole is not None]
    if not entries or len(whole_numbers) < len(entries):
        raise ValueError(f"{expected} {entries}")
    if min(whole_numbers) < 0 or max(whole_numbers) >= 2**32 or len(set(whole_numbers)) != len(whole_numbers):
        raise ValueError(f"{expected} {whole_numbers}")
    return whole_numbers


def _whole(value: Any) -> int | None:
    """A whole number as Python's int; None for anything else, True and 1.0 included."""
    if np.ndim(value) > 0 or isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
