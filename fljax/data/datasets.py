"""Dataset: examples with labels, before they are assigned to clients; and moments of its features, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from fljax.core.names import check_same_labels, names_of_columns
from fljax.data.arrays import (
    as_array,
    check_classes,
    check_finite,
    check_known,
    check_unchanged,
    fits,
    number_owners,
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
        the moments of the training rows of the clients that train.
      features: the names of features, and what was subtracted from them before they became float32.
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

    Raises:
      ValueError: if lengths differ, there are no rows, labels or tokens are out of range, or floats are not finite.
    """
    check_same_labels(0, {"x": x, "y": y, "owner": owner})
    features = Features(names_of_columns(x))
    x, y = as_array("features", x), as_array("labels", y)
    check_rows(x, y)
    if owner is not None:
        owner = as_array("owners", owner)
        if owner.shape != y.shape[:1]:
            raise ValueError(f"expected one owner for each of the {len(y)} rows, got shape {owner.shape}")
        owner = (
            whole_numbers("owners", owner)
            if not np.issubdtype(owner.dtype, np.integer) or fits(owner)
            else number_owners(owner)
        )
    check_finite("features", x, owner)
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
        return Dataset(stored_features(x), y, classes, size, owner=owner, features=features)
    return Dataset(x, y, classes, size, 0.5, 0.5, owner, features=features)


def training_owners(dataset: Dataset) -> np.ndarray:
    """The owners with training rows, outside upstream's test part, in ascending order; none if rows have no owners."""
    if dataset.owner is None:
        return np.zeros(0, np.int32)
    owner = np.asarray(dataset.owner)[: dataset.train_size]
    if dataset.part is not None:
        owner = owner[np.asarray(dataset.part)[: dataset.train_size] == 0]
    return np.unique(owner[owner >= 0])


def check_rows(x: Any, y: Any) -> None:
    """Raises a ValueError unless features and labels have the same number of rows, at least one."""
    if np.ndim(y) < 1 or np.ndim(x) < 1 or np.size(y) == 0 or np.size(x) == 0 or len(x) != len(y):
        raise ValueError(
            "expected features [n, ...] and labels [n] or [n, ...] of at least 1 row, got shapes "
            f"{np.shape(x)} and {np.shape(y)}"
        )


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

    count: Any
    mean: np.ndarray
    squares: np.ndarray


def sums_of(x: Any, rows: np.ndarray) -> Sums:
    """The sums of some rows (or none) of an array or a mapped file; not all rows are read at once."""
    width = int(np.prod(x.shape[1:]))
    count, mean, squares = 0, np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    # Each row is read once. Moments of parts are joined as by Chan, Golub and LeVeque (1979).
    for part in np.array_split(np.sort(rows), -(-len(rows) * width // _AT_ONCE)) if len(rows) else ():
        check_unchanged(x)
        values = np.asarray(x[part], np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # rows that no run reads may hold anything
            centre, share = values.mean(axis=0), len(part) / (count + len(part))
            squares += ((values - centre) ** 2).sum(axis=0) + (centre - mean) ** 2 * count * share
            mean, count = mean + (centre - mean) * share, count + len(part)
    return Sums(count, mean, squares)


def scale_of(sums: Sums) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature over at least one row; 1 in place of a deviation of 0."""
    std = np.sqrt(sums.squares / sums.count)
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
    if (kind, size) not in _WIDE or (kind == "f" and not np.isfinite(x).all()):
        return x, None
    mean, std = moments(x, np.arange(len(x)))
    with np.errstate(over="ignore"):
        largest = np.maximum(np.abs(x.min(axis=0).astype(np.float64)), np.abs(x.max(axis=0).astype(np.float64)))
    still, inexact = x.min(axis=0) == x.max(axis=0), x[0].astype(np.float32).astype(x.dtype) != x[0]
    far = np.where(still, inexact, largest > _FAR * std)
    if not far.any():
        return x, None
    shift = np.where(far, mean, 0.0)
    return x.astype(np.float64) - shift, tuple(shift.tolist())


def training_moments(x: Any, trains: list[np.ndarray]) -> Moments:
    """The moments of the training rows of some clients, as arrays of float32."""
    rows = np.unique(np.concatenate(trains)) if trains else np.zeros(0, np.int64)
    if not len(rows):
        raise ValueError("expected at least one training row of a client that trains to standardise features, got none")
    mean, std = moments(np.asarray(x), rows)
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
    return ((features.read.astype(np.float64) - mean) / std).astype(np.float32)
