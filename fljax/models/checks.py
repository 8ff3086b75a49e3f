"""Checks of the sizes and rates of models, before anything is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import PyTree

# JAX indexes arrays with 32-bit integers.
LARGEST_ARRAY = 2**31 - 1


def check_widths(name: str, widths: Sequence[Any]) -> tuple[int, ...]:
    """Returns the widths of layers as a tuple of whole numbers above 0.

    Raises:
      ValueError: if a width is not such a number, or exceeds ``LARGEST_ARRAY``.
    """
    for width in widths:
        if isinstance(width, bool) or not hasattr(width, "__index__") or not 0 < width.__index__() <= LARGEST_ARRAY:
            raise ValueError(f"expected {name} of whole numbers from 1 to {LARGEST_ARRAY}, got {width!r}")
    return tuple(width.__index__() for width in widths)


def check_blocks(blocks: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
    """Returns blocks of layers; each block is a tuple of widths.

    Raises:
      ValueError: if there is no block, a block is empty, or a width is not a whole number above 0.
    """
    if not blocks or not all(blocks):
        raise ValueError(f"expected blocks of at least one layer each, got {[list(block) for block in blocks]}")
    return tuple(check_widths("blocks", block) for block in blocks)


def check_image(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of an image, ``(height, width, channels)`` or ``(height, width)``.

    Raises:
      ValueError: if it has another number of axes, or looks as if the channels came first.
    """
    found = tuple(shape)
    if len(found) not in (2, 3):
        raise ValueError(f"expected an input shape (height, width, channels), got {found}")
    if len(found) == 3 and found[0] in (1, 3, 4) and found[1] == found[2] > 4:
        raise ValueError(
            f"expected an input shape (height, width, channels), got {found}, whose channels are first; "
            "numpy.moveaxis(x, 1, -1) moves those of images x to the end"
        )
    return found


def check_convolution(shape: Sequence[int], kernel: int, groups: int | None) -> None:
    """Checks the kernel size for images of this shape, and the number of groups of the normalisation.

    Raises:
      ValueError: if one of them is not a whole number above 0, or the kernel is above ``2 min(height, width) - 1``.
    """
    check_widths("kernel and groups", (kernel, 1 if groups is None else groups))
    widest = 2 * min(shape[:2]) - 1
    if kernel > widest:
        raise ValueError(f"expected a kernel of at most {widest} for images of {shape[0]} x {shape[1]}, got {kernel}")


def check_rate(name: str, rate: float) -> float:
    """Returns a dropout rate.

    Raises:
      ValueError: if the rate is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"expected {name} to be at least 0 and below 1, got {rate!r}")
    return rate


def check_parameters(params: PyTree) -> None:
    """Raises a ValueError if a parameter array has more entries than JAX can index; only shapes are read."""
    for leaf in jax.tree.leaves(params):
        entries = 1
        for length in leaf.shape:
            entries *= length
        if entries > LARGEST_ARRAY:
            shape = list(leaf.shape)
            raise ValueError(f"expected parameters of at most {LARGEST_ARRAY} entries each, got an array of {shape}")
