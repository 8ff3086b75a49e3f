"""Convolution of large images line by line, on ``[height, channels, width, batch]``; no step changes this layout.

A matrix of patches can be far larger than a cache: 75 MB in a ResNet, which held a layer to 34 of the 58 GFLOP/s of one
core (Xeon at 2.5 GHz). Here one line at a time is multiplied by the whole kernel: ``[kh o, kw c] x [kw c, w b]`` gives
the line's share of ``kh`` output lines, which a scan sums. Patches have ``kw`` pixels, of one line at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fljax.models import planes


def convolve(
    x: Float[Array, "h c w b"],
    kernel: Float[Array, "kh kw c o"],
    strides: Sequence[int] = (1, 1),
    padding: str | planes.Pairs = "VALID",
    dilation: Sequence[int] = (1, 1),
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
) -> Float[Array, "h2 o w2 b"]:
    """``lax.conv_general_dilated``, lines outermost, batch innermost; by ``planes.convolve`` unless ``worth_lines``."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    h, _, w, b = x.shape
    if not worth_lines((h, w), b, kernel.shape, strides, padding, dilation, x.dtype):
        y = planes.convolve(x.transpose(1, 0, 2, 3), kernel, strides, padding, dilation, **options)
        return y.transpose(1, 0, 2, 3)
    return _by_lines(x, kernel, planes.pads((h, w), kernel.shape, strides, padding, dilation), options)


def worth_lines(
    size: Sequence[int],
    batch: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: str | planes.Pairs,
    dilation: Sequence[int],
    dtype: jax.typing.DTypeLike,
) -> bool:
    """Whether line by line is faster: patches of all lines fit in no cache, and a line has 256 numbers per channel."""
    # A gradient of ResNet18 then took 0.81 of the time of ``planes.convolve`` and half its memory (one core of a Xeon
    # at 2.5 GHz). In half precision, sums over lines would lose digits.
    kh, kw, c, _ = kernel
    columns = planes.output_size(size, kernel, strides, padding, dilation)[1] * batch
    (top, bottom), sides = planes.pads(size, kernel, strides, padding, dilation)
    return (
        tuple(strides) == tuple(dilation) == (1, 1)
        and jnp.dtype(dtype).itemsize >= 4
        and kh > 1
        and 0 <= min(top, bottom) <= max(top, bottom) < kh <= size[0]
        and min(sides) >= 0
        and columns >= 256
        and kh * kw * c * size[0] * columns > 4 * planes.CACHED
    )


def _by_lines(x: Array, kernel: Array, pads: planes.Pairs, options: dict[str, Any]) -> Array:
    (kh, kw, c, o), (h, _, w, b) = kernel.shape, x.shape
    (top, bottom), (left, right) = pads
    columns = w + left + right - kw + 1
    matrix = lax.optimization_barrier(kernel.transpose(0, 3, 1, 2).reshape(kh * o, kw * c))
    turned = lax.optimization_barrier(matrix.T)

    @jax.checkpoint  # the backward pass recomputes patches instead of storing them
    def step(partial: tuple[Array, ...], line: Array) -> tuple[tuple[Array, ...], Array]:
        line = jnp.pad(line, ((0, 0), (left * b, right * b)))
        patches = jnp.concatenate([line[:, j * b : (j + columns) * b] for j in range(kw)])
        shares = _product(matrix, turned, patches, **options).reshape(kh, o, columns * b)
        # An input line completes one output line with the kernel's last row, and begins another with the first row.
        sums = [before + share for before, share in zip(partial, shares[:0:-1], strict=True)]
        return (*sums[1:], shares[0]), sums[0]

    kind = jax.eval_shape(lambda: _product(matrix, turned, jnp.zeros((kw * c, 1), x.dtype), **options)).dtype
    partial = (jnp.zeros((o, columns * b), kind),) * (kh - 1)
    partial, y = lax.scan(step, partial, x.reshape(h, c, w * b))
    # Drop output lines that begin above the padding; append those that end in the bottom padding from ``partial``.
    y = jnp.concatenate([y[kh - 1 - top :], *(line[None] for line in partial[:bottom])])
    return y.reshape(-1, o, columns, b)


def _product(
    matrix: Float[Array, "o k"],
    turned: Float[Array, "k o"],
    patches: Float[Array, "k n"],
    *,
    precision: lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
) -> Float[Array, "o n"]:
    """``matrix x patches``; the gradient for ``patches`` reads ``turned``, the same matrix transposed in memory."""
    # XLA's fast product on CPUs does not accept a transposed left side (see ``models.task``).

    def multiply(left: Array, right: Array, contracted: int = 1) -> Array:
        numbers = (((contracted,), (0,)), ((), ()))
        return lax.dot_general(left, right, numbers, precision=precision, preferred_element_type=preferred_element_type)

    @jax.custom_jvp
    def apply(matrix: Array, turned: Array, patches: Array) -> Array:
        return multiply(matrix, patches)

    @apply.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
        (matrix, turned, patches), (change, _, moved) = primals, tangents
        return apply(matrix, turned, patches), multiply(change, patches) + multiply(turned, moved, 0)

    return apply(matrix, turned, patches)
