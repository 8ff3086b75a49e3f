"""Functions from stored examples to model inputs, ``Task.prepare``, and of training batches, ``Task.augment``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, Real

from fljax.core.names import unknown


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

    plain = not np.any(means) and bool(np.all(stds == 1))

    def prepare(x: Array) -> Array:
        if plain:
            _check_pixels(x)
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
        _check_pixels(x)
        if x.dtype == jnp.uint8:
            return x.astype(dtype) / 255
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return prepare


def _check_pixels(x: Array) -> None:
    """Raises a ValueError for whole numbers with three axes or more, but uint8: raw pixels are too large."""
    if x.ndim > 2 and jnp.issubdtype(x.dtype, jnp.integer) and x.dtype != jnp.uint8:
        raise ValueError(
            f"expected images of uint8 or floats, got {x.dtype} of shape {list(x.shape)}; divide by the largest value "
            "there may be, such as x / 65535 for 16 bits, or give the task a prepare of its own, such as lambda x: x"
        )


def checked_dtype(dtype: Any) -> np.dtype:
    """Returns ``dtype`` as a floating ``numpy.dtype`` that JAX supports in its current configuration."""
    try:
        wanted = jnp.dtype(dtype)
        supported = jax.dtypes.canonicalize_dtype(wanted)
    except Exception:  # NumPy and JAX raise several types
        raise ValueError(f"expected a floating dtype for a model, such as 'float32', got {dtype!r}") from None
    if not jnp.issubdtype(wanted, jnp.floating) or wanted.itemsize > 8:  # JAX has no long doubles
        raise ValueError(f"expected a floating dtype for a model, got {wanted}")
    if supported != wanted:
        raise ValueError(f"expected jax_enable_x64 to be on for a model in {wanted}, got it off")
    return wanted


# Width of the frame around an image before the crop, in pixels.
FRAME = 4


def crop_flip(
    key: Key[Array, ""], x: Real[Array, "b h w *channels"], black: Real[Array, "*#channels"] | float = 0.0
) -> Real[Array, "b h w *channels"]:
    """A random crop of each image in a frame of 4 black pixels, flipped by chance: IAFL's augmentation for CIFAR.

    The window is at one of 9 x 9 positions, and mirrored with probability 1/2. ``black`` is in prepared units. Noise of
    features is added before, so the frame has none.

    Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """
    b, h, w = x.shape[:3]
    place, mirror = jax.random.split(key)
    offset = jax.random.randint(place, (b, 2), -FRAME, FRAME + 1)
    flipped = jax.random.bernoulli(mirror, 0.5, (b, 1))
    row = offset[:, :1] + jnp.arange(h)[None]
    column = offset[:, 1:] + jnp.where(flipped, jnp.arange(w)[None, ::-1], jnp.arange(w)[None])
    # Each pixel is read once: on a CPU this took a quarter of the time of one dynamic_slice per image.
    image = jnp.arange(b)[:, None, None]
    read = x[image, jnp.clip(row, 0, h - 1)[:, :, None], jnp.clip(column, 0, w - 1)[:, None, :]]
    inside = ((row >= 0) & (row < h))[:, :, None] & ((column >= 0) & (column < w))[:, None, :]
    rest = x.shape[3:]
    frame = jnp.broadcast_to(jnp.asarray(black, x.dtype), rest).reshape(1, 1, 1, *rest)
    return jnp.where(inside.reshape(b, h, w, *(1 for _ in rest)), read, frame)


AUGMENTATIONS: dict[str, Callable[..., Array]] = {"crop_flip": crop_flip}


def named_augmentation(
    augment: str | Callable[..., Array] | None, input_shape: Sequence[int], prepare: Callable[[Array], Array] | None
) -> Callable[..., Array] | None:
    """``Task.augment`` by name; functions and None are returned unchanged. Equal arguments return the same function."""
    # The frame of "crop_flip" is ``prepare`` of a raw zero (of the first pixel), as if the raw image had a black frame.
    if augment is None or callable(augment):
        return augment
    if augment not in AUGMENTATIONS:
        raise ValueError(unknown("augmentation", str(augment), AUGMENTATIONS))
    shape = tuple(input_shape)
    if len(shape) not in (2, 3):
        raise ValueError(f"expected images for the augmentation {augment}, got inputs of shape {shape}")
    return _with_black(AUGMENTATIONS[augment], shape, prepare)


@functools.lru_cache(maxsize=256)
def _with_black(function: Callable[..., Array], shape: tuple[int, ...], prepare: Any) -> Callable[..., Array]:
    def augment(key: Key[Array, ""], x: Array) -> Array:
        black = 0.0 if prepare is None else prepare(jnp.zeros((1, *shape), jnp.uint8))[0, 0, 0]
        return function(key, x, black)

    return augment
