"""Dataset: examples with labels, before they are assigned to clients; and moments of its features, in float64.

Files and other packages have a training part and perhaps a test part, with or without owners: ``assemble`` joins them.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from fljax.core.names import check_same_labels, names_of_columns, shown
from fljax.data.arrays import (
    as_array,
    as_text,
    check_classes,
    check_finite,
    check_known,
    check_unchanged,
    fits,
    is_missing,
    join_labels,
    number_labels,
    number_owners,
    plain_labels,
    stored_features,
    stored_labels,
    whole_numbers,
)
from fljax.protocol import Features, Federation, Moments


class Dataset(NamedTuple):
    """Examples with labels and metadata. Arrays are NumPy arrays on the host.

    Attributes:
      x: uint8 images ``[n, height, width, channels]``, float32 features ``[n, d]``, or int32 tokens ``[n, length]``.
      y: labels ``[n]`` in 0..classes-1, or other targets of a task, ``[n, ...]`` of any dtype.
      classes: number of classes; None if labels are not classes.
      train_size: the first ``train_size`` rows are upstream's training part, and the other rows its test part; n if
        upstream has no test part.
      mean: the model of a config subtracts it from features (from images after division by 255). It is declared, not
        learnt from the clients' rows: images in SOURCES have the mean of upstream's training part, other images .5.
      std: the divisor of the difference: the standard deviation of the same part, or .5.
      owner: natural owner of each row, -1 for none; None if the data set has no owners. Rows of upstream's test part
        may have owners who have no training rows; ``federate`` can make unseen clients of them.
      vocabulary: number of different tokens, including padding; None if features are not tokens.
      part: which rows of an owner are for training (0), validation (1) and test (2), as the data's author chose; None:
        no author chose, and ``federate`` splits by its fractions. Validation rows without an owner, or of an owner
        without training rows, are the server's.
      class_names: the label of each class in the user's data; None if labels are numbers of classes, or not classes.
      owner_names: the user's name of each owner; None if owners have no names.
      standardise: whether models see each float feature with mean 0 and standard deviation 1. ``federate`` then takes
        the moments of the training rows of the clients that train, without missing numbers (NaN), which become the
        mean.
      features: the names of features, their words, and what was subtracted from them before they became float32.
    """

    x: np.ndarray
    y: Shaped[np.ndarray, "n ..."]
    classes: int | None
    train_size: int
    mean: float | Float[np.ndarray, " d"] = 0.0
    std: float | Float[np.ndarray, " d"] = 1.0
    owner: Int[np.ndarray, " n"] | None = None
    vocabulary: int | None = None
    part: Int[np.ndarray, " n"] | None = None
    class_names: tuple[Any, ...] | None = None
    owner_names: tuple[Any, ...] | None = None
    standardise: bool = False
    features: Features = Features()


def dataset(
    x: Any,
    y: Any,
    *,
    owner: Any = None,
    classes: int | None = None,
    train_size: int | None = None,
    vocabulary: int | None = None,
    standardise: bool = False,
) -> Dataset:
    """Makes a Dataset from arrays: checks the arrays and casts them to the dtypes that fljax stores.

    uint8 features stay uint8; ``mean`` and ``std`` are .5, which maps pixels to [-1, 1]. Other whole numbers become
    int32, and floats become float32; these features are assumed to be on a suitable scale (mean 0, std 1).

    Args:
      x: features, ``[n, ...]``.
      y: labels. Whole numbers ``[n]`` are classes, counted from 0. Floats, and several numbers for each row
        ``[n, ...]``, are for custom tasks: regression, several labels, next tokens.
      owner: owner of each row, ``[n]`` whole numbers. If a number does not fit 32 bits, owners are renumbered in sorted
        order.
      classes: number of classes; the largest label plus one if not given.
      train_size: length of upstream's training part; all n rows if not given.
      vocabulary: number of different tokens; ``x`` is then ``[n, length]`` whole numbers in 0..vocabulary-1, with 0 as
        padding at the end.
      standardise: as in ``Dataset``; NaN is then a missing number.

    Raises:
      ValueError: if lengths differ, there are no rows, labels or tokens are out of range, or floats are not finite.
    """
    check_same_labels(0, {"x": x, "y": y, "owner": owner})
    features = Features(names_of_columns(x))
    x, y = as_array("features", x), as_array("labels", y)
    owner = None if owner is None else as_array("owners", owner)
    check_rows(x, y, owner)
    if owner is not None:
        owner = (
            whole_numbers("owners", owner)
            if not np.issubdtype(owner.dtype, np.integer) or fits(owner)
            else number_owners(owner)
        )
    check_finite("features", x, owner, missing=standardise)
    check_finite("labels", y, owner)
    classes = 2 if classes is None and y.dtype == bool and y.ndim == 1 else classes
    plain, y = y, stored_labels(y)
    size = len(y) if train_size is None else train_size
    if not 1 <= size <= len(y):
        raise ValueError(f"expected train_size in 1..{len(y)}, got {train_size}")
    check_known(plain, np.arange(len(y)) >= size)
    classes = check_classes(y, classes)
    if vocabulary is not None:
        tokens = whole_numbers("tokens", x)
        if tokens.ndim != 2 or tokens.size == 0 or tokens.min() < 0 or tokens.max() >= vocabulary:
            raise ValueError(f"expected tokens [n, length] in 0..{vocabulary - 1}, got others in an array {x.shape}")
        return Dataset(tokens, y, classes, size, owner=owner, vocabulary=vocabulary, features=features)
    if x.dtype != np.uint8:
        x = stored_features(x)
        return Dataset(x, y, classes, size, owner=owner, standardise=standardise, features=features)
    return Dataset(x, y, classes, size, 0.5, 0.5, owner, features=features)


def training_owners(dataset: Dataset) -> np.ndarray:
    """The owners with training rows, outside upstream's test part, in ascending order; none if rows have no owners."""
    if dataset.owner is None:
        return np.zeros(0, np.int32)
    owner = np.asarray(dataset.owner)[: dataset.train_size]
    if dataset.part is not None:
        owner = owner[np.asarray(dataset.part)[: dataset.train_size] == 0]
    return np.unique(owner[owner >= 0])


def check_rows(x: Any, y: Any, owner: Any = None) -> None:
    """Raises a ValueError unless features, labels and owners have the same number of rows, at least one."""
    if np.ndim(y) < 1 or np.ndim(x) < 1 or np.size(y) == 0 or np.size(x) == 0 or len(x) != len(y):
        raise ValueError(
            "expected features [n, ...] and labels [n] or [n, ...] of at least 1 row, got shapes "
            f"{np.shape(x)} and {np.shape(y)}"
        )
    if owner is not None and np.shape(owner) != (len(y),):
        raise ValueError(f"expected one owner for each of the {len(y)} rows, got shape {np.shape(owner)}")


def with_moments(made: Dataset) -> Dataset:
    """For SOURCES: images with the mean and deviation of all pixels of their training part; others as they are."""
    if made.x.dtype != np.uint8:
        return made
    images = made.x[: made.train_size]
    # The histogram of the 256 values gives exact moments without a copy of the images in floating point.
    # It is computed in parts, since bincount uses 8 bytes for each pixel.
    step = max(2**24 // max(images[0].size, 1), 1)
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), step):
        counts += np.bincount(images[start : start + step].reshape(-1), minlength=256)
    shares, values = counts / images.size, np.arange(256) / 255
    mean = float(shares @ values)
    std = float(np.sqrt(shares @ (values - mean) ** 2))
    return made._replace(mean=mean, std=std if std > 0 else 1.0)


# Numbers of a table that are read at a time.
_AT_ONCE = 2**24
# A feature whose numbers are so many standard deviations from 0 loses its differences in float32.
_FAR = 2**10
# Kinds and bytes of numbers that float32 may not hold.
_WIDE = (("f", 8), ("f", 16), ("i", 4), ("i", 8), ("u", 4), ("u", 8))


class Sums(NamedTuple):
    """What moments of some rows are made of, in float64: number of rows, mean, and squares of the distances from it."""

    count: Any  # of rows without a missing number, by feature
    mean: np.ndarray
    squares: np.ndarray


def sums_of(x: Any, rows: np.ndarray) -> Sums:
    """The sums of some rows (or none) of an array or a mapped file; not all rows are read at once."""
    width = int(np.prod(x.shape[1:]))
    count, mean, squares = (np.zeros(x.shape[1:], kind) for kind in (int, float, float))
    # Each row is read once. Moments of parts are joined as by Chan, Golub and LeVeque (1979).
    for part in np.array_split(np.sort(rows), -(-len(rows) * width // _AT_ONCE)) if len(rows) else ():
        check_unchanged(x)
        values = np.asarray(x[part], np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # rows that no run reads may hold anything
            known = ~np.isnan(values)
            more = known.sum(axis=0)
            centre = np.where(known, values, 0).sum(axis=0) / np.maximum(more, 1)
            share = more / np.maximum(count + more, 1)
            apart = np.where(known, values - centre, 0)
            squares += (apart**2).sum(axis=0) + (centre - mean) ** 2 * count * share
            mean, count = mean + (centre - mean) * share, count + more
    return Sums(count, mean, squares)


def scale_of(sums: Sums) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature; 1 in place of a deviation of 0, and 0 and 1 without a number."""
    std = np.sqrt(sums.squares / np.maximum(sums.count, 1))
    # A feature that is constant up to rounding has no scale.
    still = std <= 1e-9 * np.maximum(np.abs(sums.mean), 1e-30)
    return sums.mean, np.where(still, 1.0, std)


def moments(x: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature over some rows, at least one, in float64."""
    return scale_of(sums_of(x, rows))


def centred(x: np.ndarray) -> tuple[np.ndarray, tuple[float, ...] | None]:
    """Features in which those far from 0 are shifted by their mean, and the shifts; None: nothing was shifted."""
    # Seconds since 1970, for example, differ by less than float32 resolves. A shift changes nothing that is
    # standardised later. All rows choose it, so it is declared for all clients (``Features.shift``).
    kind, size = x.dtype.kind, x.dtype.itemsize
    if (kind, size) not in _WIDE or (kind == "f" and np.isinf(x).any()):
        return x, None
    mean, std = moments(x, np.arange(len(x)))
    low, high = np.fmin.reduce(x), np.fmax.reduce(x)  # without missing numbers
    with np.errstate(over="ignore"):
        largest = np.maximum(np.abs(low.astype(np.float64)), np.abs(high.astype(np.float64)))
    still, inexact = low == high, low.astype(np.float32).astype(x.dtype) != low
    far = np.where(still, inexact, largest > _FAR * std)
    if not far.any():
        return x, None
    shift = np.where(far, mean, 0.0)
    return x.astype(np.float64) - shift, tuple(shift.tolist())


def training_moments(x: Any, trains: list[np.ndarray], words: Sequence[Any] | None = None) -> Moments:
    """The moments of the training rows of some clients, as arrays of float32; of ``Features.words`` 0 and 1."""
    rows = np.unique(np.concatenate(trains)) if trains else np.zeros(0, np.int64)
    if not len(rows):
        raise ValueError("expected at least one training row of a client that trains to standardise features, got none")
    mean, std = moments(np.asarray(x), rows)
    if words is not None:  # a rare word would be far from 0
        mask = np.repeat([some is not None for some in words], [1 if some is None else len(some) + 1 for some in words])
        mean, std = np.where(mask, 0, mean), np.where(mask, 1, std)
    return Moments(jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32))


def stored_standardised(federation: Federation) -> Federation:
    """A federation whose stored features are standardised; its ``features`` keep raw ones for runs of some members."""
    if federation.moments is None:
        return federation
    assert isinstance(federation.features, Features)
    x = federation.examples.x
    check_unchanged(x)
    mean, std = (tuple(np.asarray(leaf, np.float64).tolist()) for leaf in federation.moments)
    features = replace(federation.features, mean=mean, std=std, read=np.asarray(x))
    stored: Any = _standardised(features) if isinstance(x, np.ndarray) else jnp.asarray(_standardised(features))
    return federation._replace(examples=federation.examples._replace(x=stored), moments=None, features=features)


def as_read(federation: Federation) -> Federation:
    """The federation before ``stored_standardised``, also several stacked ones; any other as it is."""
    features, seeds = federation.features, federation.clients.id.shape[:-1]
    by_seed = [features] * int(np.prod(seeds)) if isinstance(features, Features) else features
    each = list(dict.fromkeys(by_seed))  # in the order of their rows
    if any(part.read is None for part in each):
        return federation
    if not np.array_equal(np.concatenate([_standardised(part) for part in each]), federation.examples.x):
        return federation
    x: Any = jnp.asarray(np.concatenate([part.read for part in each]))
    numbers = [np.reshape([getattr(part, name) for part in by_seed], (*seeds, -1)) for name in ("mean", "std")]
    moments = Moments(*(jnp.asarray(leaf, jnp.float32) for leaf in numbers))
    return federation._replace(examples=federation.examples._replace(x=x), moments=moments)


def _standardised(features: Features) -> np.ndarray:
    """What the features that were read become where they are stored standardised."""
    mean, std = np.asarray(features.mean), np.asarray(features.std)
    with np.errstate(over="ignore"):  # a row that is too far from those of the members is infinite
        scaled = ((features.read.astype(np.float64) - mean) / std).astype(np.float32)
    return np.where(np.isnan(features.read), np.float32(0), scaled)


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
    missing: bool = False  # whether NaN in x is a missing number


class LabelKeywords(TypedDict, total=False):
    """Options of ``assemble`` that readers of labels and numbers have, for type checkers."""

    classes: int | None
    regression: bool | None
    standardise: bool


class TokenKeywords(LabelKeywords, total=False):
    """Options of ``assemble`` that readers of arrays have, which may be tokens."""

    vocabulary: int | None


def assemble(
    pieces: Sequence[Piece],
    *,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    standardise: bool = True,
    class_names: Sequence[Any] | None = None,
) -> Dataset:
    """Joins pieces into one data set, with numbers for labels and owners, and the user's names for both.

    Args:
      classes: number of classes, if the data do not say it and some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.
    """
    # Test rows of owners without training rows are the global test part, and keep their owners, for unseen clients.
    pieces = [piece for piece in pieces if len(piece.y)]
    first = next((piece for piece in pieces if not (piece.test or piece.valid)), None)
    if first is None:
        raise ValueError("expected at least one training row, got none")
    ys = [plain_labels(piece.y, piece.name) for piece in pieces]
    for piece, y in zip(pieces, ys, strict=True):
        check_rows(piece.x, y)
        check_finite(f"features of {piece.name}", piece.x, piece.owner, missing=piece.missing)
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
        standardise=standardise or first.missing,
    )
    return made._replace(
        part=part[order] if np.any(part[~end]) else None,
        class_names=labels.names if class_names is None else tuple(class_names),
        owner_names=names,
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
