"""Dataset: examples with their labels, before they are given to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Dataset(NamedTuple):
    """Examples and what is known of them. Arrays are NumPy's: nothing is on a device yet.

    Attributes:
      x: uint8 images ``[n, height, width, channels]``, float32 features ``[n, d]``, or int32 tokens ``[n, length]``.
      y: labels 0..classes-1.
      classes: number of labels.
      train_size: the first ``train_size`` rows are upstream's training part and the rest its test part; n
        where upstream has no test part.
      mean: mean of the training part's features, for standardising; of images after division by 255.
      std: their standard deviation.
      owner: whom each row belongs to by nature, -1 for nobody; None where the data know no owners.
      vocabulary: of tokens: how many there are, padding included; None where features are no tokens.
    """

    x: np.ndarray
    y: Int[np.ndarray, " n"]
    classes: int
    train_size: int
    mean: float | Float[np.ndarray, " d"] = 0.0
    std: float | Float[np.ndarray, " d"] = 1.0
    owner: Int[np.ndarray, " n"] | None = None
    vocabulary: int | None = None


def dataset(
    x: Any,
    y: Any,
    *,
    owner: Any = None,
    classes: int | None = None,
    train_size: int | None = None,
    vocabulary: int | None = None,
) -> Dataset:
    """Makes a Dataset from arrays: checks them and casts them to the types that fljax stores.

    uint8 stays uint8 (``mean`` and ``std`` are then measured); every other feature becomes float32 and is
    taken to be on a good scale already (mean 0, std 1). With a ``vocabulary`` the features are tokens and become int32.

    Args:
      x: features, ``[n, ...]``.
      y: whole-number labels ``[n]`` from 0.
      owner: whom each row belongs to, ``[n]`` whole numbers.
      classes: number of labels; the largest label plus one if not given.
      train_size: length of upstream's training part; all n rows if not given.
      vocabulary: number of different tokens; ``x`` is then ``[n, length]`` whole numbers in 0..vocabulary-1, where 0
        fills up texts at their end.

    Raises:
      ValueError: lengths differ, there are no rows, or labels or tokens are out of range.
    """
    x, y = np.asarray(x), np.asarray(y)
    if y.ndim != 1 or y.size == 0 or x.ndim < 1 or len(x) != len(y):
        raise ValueError(
            f"expected features [n, ...] and labels [n] of at least 1 row, got shapes {x.shape} and {y.shape}"
        )
    y = _whole("labels", y)
    classes = int(y.max()) + 1 if classes is None else classes
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"expected labels in 0..{classes - 1}, got labels in {y.min()}..{y.max()}")
    size = len(y) if train_size is None else train_size
    if not 1 <= size <= len(y):
        raise ValueError(f"expected train_size in 1..{len(y)}, got {train_size}")
    if owner is not None:
        owner = _whole("owners", np.asarray(owner))
        if owner.shape != y.shape:
            raise ValueError(f"expected one owner for each of the {len(y)} rows, got shape {owner.shape}")
    if vocabulary is not None:
        tokens = _whole("tokens", x)
        if tokens.ndim != 2 or tokens.size == 0 or tokens.min() < 0 or tokens.max() >= vocabulary:
            raise ValueError(f"expected tokens [n, length] in 0..{vocabulary - 1}, got others in an array {x.shape}")
        return Dataset(tokens, y, classes, size, owner=owner, vocabulary=vocabulary)
    if x.dtype != np.uint8:
        return Dataset(x.astype(np.float32), y, classes, size, owner=owner)
    mean, std = _moments(x[:size])
    return Dataset(x, y, classes, size, mean, std, owner)


def _whole(name: str, values: np.ndarray) -> np.ndarray:
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"expected {name} to be whole numbers, got an array of {values.dtype}")
    return values.astype(np.int32)


def _moments(images: np.ndarray) -> tuple[float, float]:
    # From the histogram of the 256 values: exact, and without a copy of the images in floating point.
    # In parts, since bincount makes 8 bytes of each pixel.
    step = max(2**24 // max(images[0].size, 1), 1)
    parts = (images[start : start + step].reshape(-1) for start in range(0, len(images), step))
    counts = sum(np.bincount(part, minlength=256) for part in parts) / images.size
    values = np.arange(256) / 255
    mean = float(counts @ values)
    std = float(np.sqrt(counts @ (values - mean) ** 2))
    return mean, std if std > 0 else 1.0
