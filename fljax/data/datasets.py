"""Dataset: examples with their labels, before they are assigned to clients.

A data set of texts carries its ``vocabulary``, which models get if they ask for it; ``prepare`` then keeps tokens whole
numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from fljax.data.arrays import (
    check_classes,
    check_finite,
    fits,
    number_owners,
    stored_features,
    stored_labels,
    whole_numbers,
)
from fljax.data.mapped_files import check_unchanged
from fljax.protocol import Features


class Dataset(NamedTuple):
    """Examples with labels and metadata. Arrays are NumPy arrays on the host.

    Attributes:
      x: uint8 images ``[n, height, width, channels]``, float32 features ``[n, d]``, or int32 tokens ``[n, length]``.
      y: labels ``[n]`` in 0..classes-1, or other targets of a task, ``[n, ...]`` of any dtype.
      classes: number of classes; None if labels are not classes.
      train_size: the first ``train_size`` rows are upstream's training part, and the other rows its test part; n if
        upstream has no test part.
      mean: mean of the training part's features, before the split into clients; for images after division by 255.
      std: standard deviation of the same features.
      owner: natural owner of each row, -1 for none; None if the data set has no owners. Rows of upstream's test part
        may have owners who have no training rows; ``federate`` can make unseen clients of them.
      vocabulary: number of different tokens, including padding; None if features are not tokens.
      part: which rows of an owner are for training (0), validation (1) and test (2), as the data's author chose; None:
        nobody chose, and ``federate`` splits by its fractions. Validation rows without an owner, or of an owner
        without training rows, are the server's.
      class_names: the label of each class in the user's data; None if labels are numbers of classes, or not classes.
      owner_names: what the user calls each owner; None if owners have no names.
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

    uint8 features stay uint8, and ``mean`` and ``std`` are computed from them. Other whole numbers become int32, and
    floats become float32; these features are assumed to be on a suitable scale (mean 0, std 1).

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
    x, y = np.asarray(x), np.asarray(y)
    check_rows(x, y)
    if owner is not None:
        owner = np.asarray(owner)
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
    y = stored_labels(y)
    classes = check_classes(y, classes)
    size = len(y) if train_size is None else train_size
    if not 1 <= size <= len(y):
        raise ValueError(f"expected train_size in 1..{len(y)}, got {train_size}")
    if vocabulary is not None:
        tokens = whole_numbers("tokens", x)
        if tokens.ndim != 2 or tokens.size == 0 or tokens.min() < 0 or tokens.max() >= vocabulary:
            raise ValueError(f"expected tokens [n, length] in 0..{vocabulary - 1}, got others in an array {x.shape}")
        return Dataset(tokens, y, classes, size, owner=owner, vocabulary=vocabulary)
    if x.dtype != np.uint8:
        return Dataset(stored_features(x), y, classes, size, owner=owner)
    mean, std = _moments(x[:size])
    return Dataset(x, y, classes, size, mean, std, owner)


def training_owners(dataset: Dataset) -> np.ndarray:
    """The owners with training rows, outside upstream's test part, in ascending order; none if rows have no owners."""
    if dataset.owner is None:
        return np.zeros(0, np.int32)
    owner = np.asarray(dataset.owner)[: dataset.train_size]
    if dataset.part is not None:
        owner = owner[np.asarray(dataset.part)[: dataset.train_size] == 0]
    return np.unique(owner[owner >= 0])


def count_owners(dataset: Dataset) -> int:
    """The number of owners with training rows, outside upstream's test part; 0 if rows have no owners."""
    return len(training_owners(dataset))


def check_rows(x: Any, y: Any) -> None:
    """Raises a ValueError unless features and labels have the same number of rows, at least one."""
    if np.ndim(y) < 1 or np.ndim(x) < 1 or np.size(y) == 0 or np.size(x) == 0 or len(x) != len(y):
        raise ValueError(
            "expected features [n, ...] and labels [n] or [n, ...] of at least 1 row, got shapes "
            f"{np.shape(x)} and {np.shape(y)}"
        )


def _moments(images: np.ndarray) -> tuple[float, float]:
    # The histogram of the 256 values gives exact moments without a copy of the images in floating point.
    # It is computed in parts, since bincount uses 8 bytes for each pixel.
    step = max(2**24 // max(images[0].size, 1), 1)
    counts = np.zeros(256, np.int64)
    for start in range(0, len(images), step):
        check_unchanged(images)
        counts += np.bincount(images[start : start + step].reshape(-1), minlength=256)
    shares, values = counts / images.size, np.arange(256) / 255
    mean = float(shares @ values)
    std = float(np.sqrt(shares @ (values - mean) ** 2))
    return mean, std if std > 0 else 1.0
