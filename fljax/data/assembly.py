"""One data set of a training part and a test part, as files and other packages have them, with or without owners."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core.names import shown
from fljax.data.arrays import as_text, check_finite, check_known, is_missing, join_labels, number_labels, plain_labels
from fljax.data.datasets import Dataset, centred, check_rows, dataset
from fljax.protocol import Features

# What users call the parts of a data set: for training (0), validation (1) and test (2).
PARTS = {"train": 0, "training": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}
_NUMBER = re.compile(r"[0-9]+(\.0*)?")


class Piece(NamedTuple):
    """Some rows of a data set."""

    x: np.ndarray
    y: Any
    owner: Any = None  # what the user calls the owner of each row, ``[n]``; None: rows have no owners
    test: bool = False
    name: str = "training rows"  # what error messages call them
    valid: bool = False  # of their owners, or of the server if they have none


def assemble(
    pieces: Sequence[Piece],
    *,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    class_names: Sequence[Any] | None = None,
    standardise: bool = False,
) -> Dataset:
    """Joins pieces into one data set, with numbers for labels and owners, and the user's names for both."""
    # Test rows of owners without training rows are the global test part, and keep their owners, for unseen clients.
    pieces = [piece for piece in pieces if len(piece.y)]
    first = next((piece for piece in pieces if not (piece.test or piece.valid)), None)
    if first is None:
        raise ValueError("expected at least one training row, got none")
    ys = [plain_labels(piece.y, piece.name) for piece in pieces]
    for piece, y in zip(pieces, ys, strict=True):
        check_rows(piece.x, y)
        check_finite(f"features of {piece.name}", piece.x, piece.owner)
        check_finite(f"labels of {piece.name}", y, piece.owner)
        if _form(piece.x, y) != _form(first.x, ys[0]):
            raise ValueError(
                f"expected {piece.name} like {first.name}, which have features {first.x.dtype} {first.x.shape} and "
                f"labels {ys[0].dtype} {ys[0].shape}, got {piece.x.dtype} {piece.x.shape} and {y.dtype} {y.shape}"
            )
    count = len(class_names) if class_names is not None else classes
    joined = join_labels(ys, [piece.name for piece in pieces], regression)
    part = np.concatenate([np.full(len(piece.y), 2 if piece.test else int(piece.valid), np.int8) for piece in pieces])
    check_known(joined, part > 0, regression)
    labels = number_labels(joined, classes=count, regression=regression)
    owner, names = _numbers_of_owners(pieces)
    test = part == 2
    end = test if owner is None else test & ~np.isin(owner, owner[(part == 0) & (owner >= 0)])
    order = np.argsort(end, kind="stable")
    # One piece is taken as it is, since it may be a mapped file.
    x = pieces[0].x if len(pieces) == 1 else np.concatenate([piece.x for piece in pieces])
    standardise = standardise and x.ndim == 2 and (x.dtype.kind in "fb" or x.dtype == np.uint8)
    x = x.astype(np.float32) if standardise and x.dtype == np.uint8 else x  # vectors are no images
    x, shift = centred(x) if standardise else (x, None)
    made = dataset(
        x[order] if end.any() else x,
        labels.y[order],
        owner=None if owner is None else owner[order],
        classes=labels.classes,
        train_size=int(np.sum(~end)),
        vocabulary=vocabulary,
    )
    return made._replace(
        part=part[order] if np.any(part[~end]) else None,
        class_names=labels.names if class_names is None else tuple(class_names),
        owner_names=names,
        standardise=standardise,
        features=Features(shift=shift),
    )


def check_owners(pieces: Sequence[Piece]) -> None:
    """Checks that owners are called as in training rows; warns if most test owners have no training rows."""
    training = _owners(pieces, lambda piece: not (piece.test or piece.valid))
    alone = [value for value in _owners(pieces, lambda piece: piece.test or piece.valid) if value not in training]
    if not training or not alone:
        return
    alike = {_plain(value): value for value in training}
    for value in alone:
        if _plain(value) in alike:
            raise ValueError(
                "expected the clients of test and validation rows to be written as in the training rows, got "
                f"{shown(value)} and {shown(alike[_plain(value)])}"
            )
    lacking = [value for value in _owners(pieces, lambda piece: piece.valid) if value not in training]
    if lacking:
        raise ValueError(
            f"expected training rows of each client with validation rows, got none of {shown(lacking[0])}; leave the "
            "owners of validation rows out to make them the server's"
        )
    tested = _owners(pieces, lambda piece: piece.test)
    if 2 * len(alone) > len(tested):
        warnings.warn(
            f"{len(alone)} of the {len(tested)} clients with test rows have no training rows, e.g. {shown(alone[0])}; "
            "their rows are the global test set, unless unseen = 'test' makes them unseen clients",
            stacklevel=2,
        )


def _owners(pieces: Sequence[Piece], chosen: Callable[[Piece], bool]) -> dict[Any, None]:
    """The owners of chosen pieces, each once."""
    having = [piece.owner for piece in pieces if np.ndim(piece.owner) == 1 and chosen(piece)]
    return dict.fromkeys(name for owner in having for name in as_text(owner).tolist() if not is_missing(name))


def _plain(value: Any) -> str:
    """What two spellings of one owner have in common."""
    text = unicodedata.normalize("NFC", str(value)).strip().casefold()
    return re.sub(r"^0+(?=[0-9])|\.0*$", "", text) if _NUMBER.fullmatch(text) else text


def _form(x: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    """What pieces must have in common: shapes of rows, whether features are scaled as images are, kinds of labels."""
    return x.shape[1:], x.dtype == np.uint8, y.shape[1:], "number" if y.dtype.kind in "iuf" else y.dtype.kind


def _numbers_of_owners(pieces: Sequence[Piece]) -> tuple[np.ndarray | None, tuple[Any, ...] | None]:
    """The number of each row's owner, -1 for none; and the owners' names in order."""
    training = [piece for piece in pieces if not (piece.test or piece.valid)]
    having = [piece for piece in training if piece.owner is not None]
    if not having:
        return None, None
    if len(having) < len(training):
        raise ValueError("expected an owner for each training row, got some without")
    for piece in pieces:
        if piece.owner is not None and np.shape(piece.owner) != (len(piece.y),):
            got = np.shape(piece.owner)
            raise ValueError(f"expected one owner for each of the {len(piece.y)} {piece.name}, got shape {got}")
    values = [value for piece in having for value in as_text(piece.owner).tolist()]
    if any(is_missing(value) for value in values):
        raise ValueError("expected an owner for each training row, got none (NaN) in some")
    others = [piece.owner for piece in pieces if piece.owner is not None and (piece.test or piece.valid)]
    values += [value for owners in others for value in as_text(owners).tolist() if not is_missing(value)]
    try:
        names = sorted(set(values))
    except TypeError:
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise ValueError(f"expected owners of one kind, got {kinds}, e.g. {shown(values[0])}") from None
    number = {name: place for place, name in enumerate(names)}
    numbers = [
        np.full(len(piece.y), -1, np.int32)
        if piece.owner is None
        else np.array([number.get(value, -1) for value in as_text(piece.owner).tolist()], np.int32)
        for piece in pieces
    ]
    return np.concatenate(numbers), tuple(names)
