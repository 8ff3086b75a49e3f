"""``Task.prepare``: functions from stored examples to model inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def standardise(mean: Any = 0.0, std: Any = 1.0, *, dtype: Any = jnp.float32) -> Callable[[Array], Array]:
    """``x -> (x - mean) / std``; ``uint8`` inputs are first divided by 255.

    Args:
      mean: a number, or an array over the last axes of one example (e.g. ``[channels]``).
      std: like ``mean``, positive.
      dtype: dtype of the result.

    Returns:
      A function for ``Task.prepare``. Two calls with equal arguments return the same function, so compiled programs are
      reused.

    Raises:
      ValueError: if a ``std`` is not positive, or ``dtype`` is float64 while x64 is off.
    """
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if not np.all(std > 0):
        raise ValueError(f"expected std > 0 everywhere, got a smallest value of {np.min(std)}")
    return _standardise(mean.shape, tuple(mean.flat), std.shape, tuple(std.flat), checked_dtype(dtype))


@functools.lru_cache(maxsize=256)
def _standardise(mean_shape: tuple, mean: tuple, std_shape: tuple, std: tuple, dtype: Any) -> Callable:
    means, stds = np.reshape(mean, mean_shape).astype(dtype), np.reshape(std, std_shape).astype(dtype)

    def prepare(x: Array) -> Array:
        pixels = x.dtype == jnp.uint8
        x = x.astype(dtype)
        if pixels:
            x = x / 255

        def broadcast(a: np.ndarray) -> np.ndarray:
            return a.reshape((1,) * (x.ndim - a.ndim) + a.shape)

        return (x - broadcast(means)) / broadcast(stds)

    return prepare


@functools.lru_cache
def pixels_to_floats(dtype: Any) -> Callable[[Array], Array]:
    """The default ``prepare``: maps ``uint8`` to [0, 1], casts floats to ``dtype``, and keeps other integers."""

    def prepare(x: Array) -> Array:
        if x.dtype == jnp.uint8:
            return x.astype(dtype) / 255
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return prepare


def checked_dtype(dtype: Any) -> np.dtype:
    """Returns ``dtype`` as a floating ``numpy.dtype`` that JAX supports in its current configuration.

    Raises:
      ValueError: if ``dtype`` is not floating, or JAX would silently truncate it (float64 while x64 is off).
    """
    try:
        found = jnp.dtype(dtype)
        held = jax.dtypes.canonicalize_dtype(found)
    except Exception:  # NumPy and JAX raise several types
        raise ValueError(f"expected a floating dtype for a model, such as 'float32', got {dtype!r}") from None
    if not jnp.issubdtype(found, jnp.floating) or found.itemsize > 8:  # JAX has no long doubles
        raise ValueError(f"expected a floating dtype for a model, got {found}")
    if held != found:
        raise ValueError(f"expected jax_enable_x64 to be on for a model in {found}, got it off")
    return found
