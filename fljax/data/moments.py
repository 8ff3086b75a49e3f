"""Means and standard deviations of features, in float64; ``federate`` takes them of training rows after the split.

Rows are standardised where they are read: ``prepare`` in ``fljax.training.batches`` has ``Federation.moments`` of each
seed. ``Federation.features`` has what raw rows become before they are stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from fljax.data.datasets import Dataset
from fljax.data.mapped_files import check_unchanged
from fljax.protocol import Features, Federation, Moments

# Numbers of a table that are read at a time.
_AT_ONCE = 2**24
# A feature whose numbers are so many standard deviations from 0 loses its differences in float32.
_FAR = 2**10
# Kinds and bytes of numbers that float32 may not hold.
_WIDE = (("f", 8), ("f", 16), ("i", 4), ("i", 8), ("u", 4), ("u", 8))


def moments(x: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature over some rows, in float64; 1 in place of a deviation of 0.

    Args:
      x: features ``[n, ...]``, an array of NumPy or a mapped file; not all rows are read at once.
      rows: row numbers, at least one.
    """
    width = int(np.prod(x.shape[1:]))
    count, mean, squares = 0, np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    # Each row is read once. Moments of parts are joined as by Chan, Golub and LeVeque (1979).
    for part in np.array_split(np.sort(rows), max(1, -(-len(rows) * width // _AT_ONCE))):
        check_unchanged(x)
        values = np.asarray(x[part], np.float64)
        own, share = values.mean(axis=0), len(part) / (count + len(part))
        squares += ((values - own) ** 2).sum(axis=0) + (own - mean) ** 2 * count * share
        mean, count = mean + (own - mean) * share, count + len(part)
    std = np.sqrt(squares / count)
    # A feature that is constant up to rounding has no scale.
    still = std <= 1e-9 * np.maximum(np.abs(mean), 1e-30)
    return mean, np.where(still, 1.0, std)


def with_moments(made: Dataset) -> Dataset:
    """The data set with mean and standard deviation of each float feature, by the rows that may be training rows."""
    if made.x.dtype != np.float32:
        return made
    training = np.arange(len(made.y)) < made.train_size
    if made.part is not None:
        training &= np.asarray(made.part) == 0
    mean, std = moments(made.x, np.flatnonzero(training))
    return made._replace(mean=mean.astype(np.float32), std=std.astype(np.float32))


def centred(x: np.ndarray) -> tuple[np.ndarray, tuple[float, ...] | None]:
    """Features in which those far from 0 are shifted by their mean, and the shifts; None: nothing was shifted.

    Seconds since 1970, for example, differ by less than float32 resolves. A shift changes nothing that is standardised
    later.

    Args:
      x: ``[n, d]``, whole numbers or floats in their own precision.
    """
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
    """A federation whose stored features are standardised, in place of those that are read.

    Its ``features`` say what raw features become.
    """
    if federation.moments is None:
        return federation
    assert isinstance(federation.features, Features)
    x = federation.examples.x
    check_unchanged(x)
    mean, std = (np.asarray(leaf, np.float64) for leaf in federation.moments)
    found: Any = ((np.asarray(x, np.float64) - mean) / std).astype(np.float32)
    found = found if isinstance(x, np.ndarray) else jnp.asarray(found)
    features = replace(federation.features, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    return federation._replace(examples=federation.examples._replace(x=found), moments=None, features=features)
