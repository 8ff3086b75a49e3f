"""Checks a user's features, labels and owners, and casts them to the dtypes that fljax stores.

Arrays are checked where they enter: finite, 32 bits, labels in range. A Federation made by hand is not searched for
NaN; see ``fljax.results.non_finite``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fljax.data.mapped_files import check_unchanged, parts

_LARGEST = float(np.finfo(np.float32).max)
# The number of clients that an error message names.
_NAMED = 3


def check_finite(name: str, values: Any, owner: Any = None) -> None:
    """Raises a ValueError if floats include NaN, infinity, or numbers beyond the range of float32.

    Args:
      name: name of the values in the error message.
      values: ``[n, ...]``, on the host or on a device; whole numbers are not checked.
      owner: owner of each row, ``[n]`` numbers or names; None: unknown.
    """
    if not jnp.issubdtype(values.dtype, jnp.floating) or values.size == 0:
        return
    # Minimum and maximum suffice, without a copy of the array: any NaN makes both NaN.
    ends = [(float(part.min()), float(part.max())) for part in parts(values)]
    low, high = float(np.min(ends)), float(np.max(ends))
    if low >= -_LARGEST and high <= _LARGEST:
        return
    flat = np.asarray(values).astype(np.float64).reshape(len(values), -1)
    wrong = np.any(~((flat >= -_LARGEST) & (flat <= _LARGEST)), axis=1, keepdims=True)[:, 0]
    raise ValueError(
        f"expected finite {name} that fit 32 bits, got NaN, infinity or larger numbers in {_count(int(wrong.sum()))}"
        f"{_of_owners(wrong, owner)}"
    )


def _of_owners(wrong: np.ndarray, owner: Any) -> str:
    if owner is None:
        return ""
    names, counts = np.unique(np.asarray(owner)[wrong], return_counts=True)
    named = [f"{_count(int(n))} of client {each}" for each, n in zip(names[:_NAMED].tolist(), counts, strict=False)]
    more = len(names) - len(named)
    return f": {', '.join(named)}" + (f", and rows of {more} more clients" if more else "")


def _count(rows: int) -> str:
    return f"{rows} row" + ("" if rows == 1 else "s")


def stored_features(x: np.ndarray) -> np.ndarray:
    """Casts features for storage: uint8 stays, other whole numbers become int32, floats and bools become float32.

    Raises:
      ValueError: if features are not numbers, or do not fit.
    """
    check_unchanged(x)
    if np.issubdtype(x.dtype, np.integer):
        return x if x.dtype in (np.uint8, np.int32) else whole_numbers("features", x)
    check_numbers("features", x)
    return x.astype(np.float32, copy=False)


def check_numbers(name: str, values: Any) -> None:
    """Raises a ValueError unless the values are whole numbers, floats or bools."""
    kinds = (jnp.integer, jnp.floating)
    if values.dtype != bool and not any(jnp.issubdtype(values.dtype, kind) for kind in kinds):
        raise ValueError(f"expected {name} to be numbers, got an array of {values.dtype}")


def stored_labels(y: np.ndarray) -> np.ndarray:
    """Casts labels of any shape for storage: whole numbers and bools become int32, floats become float32.

    Raises:
      ValueError: if labels are not numbers, or do not fit.
    """
    if y.dtype == bool or np.issubdtype(y.dtype, np.integer):
        return whole_numbers("labels", y)
    if not jnp.issubdtype(y.dtype, jnp.floating):
        raise ValueError(
            f"expected labels to be numbers, got an array of {y.dtype}; numpy.unique(y, return_inverse=True)[1] "
            "numbers names"
        )
    return y.astype(np.float32)


def whole_numbers(name: str, values: np.ndarray) -> Int[np.ndarray, " ..."]:
    """Returns ``values`` as int32.

    Raises:
      ValueError: if values are not whole numbers, or do not fit 32 bits.
    """
    if values.dtype != bool and not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"expected {name} to be whole numbers, got an array of {values.dtype}")
    if not fits(values):
        raise ValueError(f"expected {name} that fit 32 bits, got numbers in {values.min()}..{values.max()}")
    return values.astype(np.int32)


def fits(values: np.ndarray) -> bool:
    """Whether whole numbers fit into int32."""
    limits = np.iinfo(np.int32)
    return not values.size or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)


def check_classes(y: Any, classes: int | None) -> int | None:
    """The number of classes of stored labels: ``classes``, or the largest label plus one; None for float labels.

    Labels with several numbers for each row have no classes unless ``classes`` is given.

    Raises:
      ValueError: if labels are out of range, if ``classes`` is None and no label is 0, or if ``classes`` is given for
        float labels.
    """
    if not jnp.issubdtype(y.dtype, jnp.integer):
        if classes is not None:
            raise ValueError(f"expected whole-number labels for {classes} classes, got an array of {y.dtype}")
        return None
    if classes is None and y.ndim != 1:
        return None
    numbers = np.asarray(y)  # on the host: a device would first compile two programs for it
    low, high = int(numbers.min()), int(numbers.max())
    if classes is None and low > 0:
        raise ValueError(
            f"expected labels from 0, got labels in {low}..{high}; subtract {low} from them, or give "
            f"classes={high + 1} where no row has the first classes"
        )
    found = high + 1 if classes is None else classes
    if low < 0 or high >= found:
        raise ValueError(f"expected labels in 0..{found - 1}, got labels in {low}..{high}")
    return found


def number_owners(owners: np.ndarray) -> Int[np.ndarray, " n"]:
    """Numbers owners from 0 in sorted order, as int32; negative owners become -1, which means no owner.

    Args:
      owners: ``[n]`` numbers of any width, or anything that can be sorted.

    Raises:
      ValueError: if owners cannot be sorted, or some are missing (NaN).
    """
    if owners.dtype == object:  # e.g. nullable whole numbers from a data frame
        plain = np.asarray(owners.tolist())
        owners = plain if plain.dtype.kind in "iuf" and plain.shape == owners.shape else owners
    if jnp.issubdtype(owners.dtype, jnp.floating) and np.isnan(owners).any():
        missing = _count(int(np.isnan(owners).sum()))
        raise ValueError(f"expected an owner for each row, got NaN in {missing}; -1 says that a row is nobody's")
    numeric = jnp.issubdtype(owners.dtype, jnp.floating) or np.issubdtype(owners.dtype, np.integer)
    somebody = owners >= 0 if numeric else np.ones(len(owners), bool)
    try:
        number = np.unique(owners[somebody], return_inverse=True)[1]
    except TypeError:
        raise ValueError(
            "expected owners that can be sorted, such as numbers or names, got values of several kinds"
        ) from None
    found = np.full(len(owners), -1, np.int32)
    found[somebody] = number.reshape(-1)
    return found


def check_wide(name: str, values: Any) -> None:
    """Raises a ValueError if whole numbers in a host array would lose bits on the device."""
    narrow = jax.dtypes.canonicalize_dtype(values.dtype).itemsize < values.dtype.itemsize
    if narrow and np.issubdtype(values.dtype, np.integer) and not fits(np.asarray(values)):
        raise ValueError(f"expected {name} that fit 32 bits, got numbers in {values.min()}..{values.max()}")
