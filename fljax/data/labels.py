"""Labels of any dtype as numbers of classes, with the user's own labels kept as names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from fljax.core.names import shown
from fljax.data.arrays import check_finite, stored_labels

# Whole numbers with more different values than this, and more than a quarter as many as there are rows, may be amounts.
_MANY = 100


class Labels(NamedTuple):
    """Labels as fljax stores them.

    Attributes:
      y: numbers of classes, int32 ``[n]``; or other targets, float32 or int32 ``[n, ...]``.
      classes: the number of classes; None if labels are not classes.
      names: the user's label of each class; None if the user's labels are numbers of classes, or not classes.
    """

    y: Shaped[np.ndarray, "n ..."]
    classes: int | None
    names: tuple[Any, ...] | None


def number_labels(y: Any, *, classes: int | None = None, regression: bool | None = None) -> Labels:
    """Numbers labels of any dtype from 0, and keeps the user's labels as names.

    Text is numbered in alphabetical order, bools as False and True, and whole numbers in ascending order, unless
    they are 0..C-1 already. Floats are numbers to predict, and so are several numbers for each row.

    Args:
      y: labels ``[n]``, or ``[n, ...]`` numbers, which are kept.
      classes: number of classes. Whole numbers are then numbers of classes, although some classes may have no row.
      regression: True keeps numbers as numbers to predict; False makes classes of floats; None: the dtype decides.

    Raises:
      ValueError: if labels are missing, of several kinds or not finite, if there are more than ``classes``, or if so
        many whole numbers are different that the user must choose ``regression``.
    """
    y = plain_labels(y)
    check_finite("labels", y)
    kind = y.dtype.kind
    if regression and kind not in "biuf":
        raise ValueError(f"expected numbers as labels for a regression, got {_kind(y.dtype)}")
    if regression and classes is not None:
        raise ValueError(f"expected classes or regression=True, got both, classes={classes} and regression=True")
    if regression or y.ndim > 1 or (kind == "f" and regression is None):
        if kind not in "biuf":
            raise ValueError(f"expected numbers where each row has several labels, got {_kind(y.dtype)}")
        y = stored_labels(y.astype(np.float32) if regression else y)
        return Labels(y, classes if y.ndim > 1 else _no_classes(y, classes), None)
    if kind in "iu" and classes is not None:
        return Labels(stored_labels(y), classes, None)
    if kind == "b":
        return Labels(y.astype(np.int32), _count(2, classes), (False, True))
    names, numbers = np.unique(y, return_inverse=True)
    if kind in "iu" and np.array_equal(names, np.arange(len(names))):
        return Labels(stored_labels(y), len(names), None)
    if kind in "iu" and regression is None and len(names) > max(_MANY, len(y) // 4):
        raise ValueError(
            f"expected regression=True (numbers to predict) or regression=False (classes) for labels with "
            f"{len(names)} different whole numbers in {len(y)} rows, got neither"
        )
    return Labels(numbers.reshape(y.shape).astype(np.int32), _count(len(names), classes), tuple(names.tolist()))


def plain_labels(y: Any) -> np.ndarray:
    """Labels as an array of bools, numbers, text or dates, all of one kind.

    Raises:
      ValueError: if a label is missing, or labels are of several kinds.
    """
    # NumPy alone would make text of a list with text and numbers, and floats of large whole numbers.
    y = np.asarray(y) if hasattr(y, "dtype") else np.asarray(y, object)
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "replace")
    if y.dtype.name == "bfloat16":
        return y.astype(np.float32)
    if y.dtype.kind != "O":
        if y.dtype.kind not in "biufUM":
            raise ValueError(f"expected labels to be numbers, bools or text, got {_kind(y.dtype)}")
        return y
    values: list[Any] = [
        each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in y.ravel().tolist()
    ]
    missing = sum(is_missing(each) for each in values)
    if missing:
        raise ValueError(f"expected a label in each row, got none in {missing} of {len(values)} rows")
    kinds = sorted({_word(each) for each in values})
    if len(kinds) > 1 and kinds != ["a number", "a whole number"]:
        raise ValueError(f"expected labels of one kind, got {' and '.join(kinds)}")
    found = np.asarray(values)
    if kinds == ["a whole number"] and found.dtype.kind not in "iu":
        if min(values) < 0 or max(values) > np.iinfo(np.uint64).max:
            raise ValueError(f"expected whole numbers that fit 64 bits as labels, got {min(values)}..{max(values)}")
        found = np.asarray(values, np.uint64)
    if found.dtype.kind not in "biufUM" or found.shape != (len(values),):
        raise ValueError(f"expected labels to be numbers, bools or text, got {shown(values[0])}")
    return found.reshape(y.shape)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or what pandas writes in their place."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def join_labels(parts: Sequence[np.ndarray], owners: Sequence[Any], regression: bool | None = None) -> np.ndarray:
    """Joins labels that ``plain_labels`` made; ``owners`` says whose each part is, for the error message.

    Whole numbers and floats are joined only if ``regression`` says what they are: alone, the former are classes, and
    the latter are numbers to predict.

    Raises:
      ValueError: if labels are of several kinds, or rows of several shapes.
    """
    for part, owner in zip(parts, owners, strict=True):
        alike = _group(part, regression) == _group(parts[0], regression)
        if not alike or part.shape[1:] != parts[0].shape[1:]:
            first, other = (f"{_kind(each.dtype)} {each.shape}" for each in (parts[0], part))
            raise ValueError(
                f"expected labels alike in all clients, got {first} of {shown(owners[0])} and {other} of {shown(owner)}"
            )
    if {part.dtype.kind for part in parts} == {"i", "u"}:  # NumPy alone would make floats of them
        parts = [part.astype(np.int64) for part in parts]
    return np.concatenate(parts)


def _group(y: np.ndarray, regression: bool | None) -> str:
    """The kind of labels; whole numbers with and without a sign may be joined."""
    return "number" if y.dtype.kind in ("iu" if regression is None else "iuf") else y.dtype.kind


def _word(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "a bool"
    if isinstance(value, int | np.integer):
        return "a whole number"
    if isinstance(value, float | np.floating):
        return "a number"
    return "text" if isinstance(value, str) else f"a {type(value).__name__}"


def _kind(dtype: np.dtype) -> str:
    return {"U": "text", "b": "bools", "M": "dates"}.get(dtype.kind, str(dtype))


def _count(found: int, classes: int | None) -> int:
    if classes is not None and classes < found:
        raise ValueError(f"expected at most {classes} different labels, which is the number of classes, got {found}")
    return found if classes is None else classes


def _no_classes(y: np.ndarray, classes: int | None) -> None:
    if classes is not None:
        raise ValueError(f"expected whole numbers or text as labels of {classes} classes, got {_kind(y.dtype)}")
