"""Convolution, GroupNorm and pooling on ``[batch, height, width, channels]``: XLA's own operations, for accelerators.

The compilers of GPUs and TPUs choose the layout in memory themselves, so nothing is arranged by hand here. Under
``vmap`` over clients, a convolution becomes a grouped one. On CPUs that is slow; ``planes`` and ``lines`` are the forms
for them. ``convolve_patches`` and ``convolve_tiles`` are other forms, which ``fljax.core.gpu_rules`` may choose for
GPUs. ``benchmarks/results`` holds what the compilers say about each form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fljax.core.gpu_rules import GpuRules
from fljax.models import planes, tiles

NUMBERS = ("NHWC", "HWIO", "NHWC")
Pool = Callable[[Array], Array]
# (x, kernel, strides, padding) -> y
Convolve = Callable[[Array, Array, Sequence[int], "str | planes.Pairs"], Array]


def convolve(
    x: Float[Array, "b h w c"],
    kernel: Float[Array, "kh kw c o"],
    strides: Sequence[int] = (1, 1),
    padding: str | planes.Pairs = "VALID",
) -> Float[Array, "b h2 w2 o"]:
    """``lax.conv_general_dilated``."""
    return lax.conv_general_dilated(x, kernel, tuple(strides), padding, dimension_numbers=NUMBERS)


def convolve_patches(
    x: Float[Array, "b h w c"],
    kernel: Float[Array, "kh kw c o"],
    strides: Sequence[int] = (1, 1),
    padding: str | planes.Pairs = "VALID",
) -> Float[Array, "b h2 w2 o"]:
    """The same values as a product of patches ``[b h2 w2, kh kw c]`` and the kernel.

    Under ``vmap`` over clients this is a batched product, in the forward pass and in both gradients. The patches take
    ``kh kw`` times the memory of ``x``.
    """
    height, width, channels, outputs = kernel.shape
    pairs = (
        lax.padtype_to_pads(x.shape[1:3], (height, width), strides, padding) if isinstance(padding, str) else padding
    )
    x = tiles.padded(x, pairs)
    rows, columns = ((size - of) // by + 1 for size, of, by in zip(x.shape[1:3], (height, width), strides, strict=True))

    def shifted(i: int, j: int) -> Array:
        down, right = i + (rows - 1) * strides[0] + 1, j + (columns - 1) * strides[1] + 1
        return x[:, i : down : strides[0], j : right : strides[1], :]

    patches = jnp.concatenate([shifted(i, j) for i in range(height) for j in range(width)], axis=-1)
    flat = patches.reshape(-1, height * width * channels) @ kernel.reshape(-1, outputs)
    return flat.reshape(x.shape[0], rows, columns, outputs)


def convolve_tiles(
    x: Float[Array, "b h w c"],
    kernel: Float[Array, "kh kw c o"],
    strides: Sequence[int] = (1, 1),
    padding: str | planes.Pairs = "VALID",
) -> Float[Array, "b h2 w2 o"]:
    """The same values by ``tiles.convolve``, with the side that it estimates to be the fastest.

    With strides it is ``convolve_patches``.
    """
    if 0 in (*x.shape, *kernel.shape):  # nothing to multiply
        return convolve(x, kernel, strides, padding)
    if tuple(strides) != (1, 1):
        return convolve_patches(x, kernel, strides, padding)
    rows, columns = planes.output_size(x.shape[1:3], kernel.shape, (1, 1), padding, (1, 1))
    return tiles.convolve(x, kernel, padding, tiles.tile_side(kernel.shape, rows, columns))


def add_bias(x: Float[Array, "b h w c"], bias: Float[Array, " c"]) -> Float[Array, "b h w c"]:
    """``x + bias`` for each channel."""
    return x + bias[None, None, None, :]


def window_maximum(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """The maximum of each 2 x 2 window, for TPUs: their compiler has kernels for it and for its gradient.

    A remainder at the edge is dropped. Of equal maxima, the first receives the gradient.
    """
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def square_maximum(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """The same values and gradients as those of ``window_maximum``, for GPUs.

    Values and gradients are elementwise operations, which fuse with their neighbours. The gradient of
    ``lax.reduce_window`` scatters.
    """
    b, h, w, c = x.shape
    x = x[:, : h // 2 * 2, : w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, c)
    return planes.largest(x.transpose(2, 4, 0, 1, 3, 5).reshape(4, b, h // 2, w // 2, c))


def group_norm(
    x: Float[Array, "b h w c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    groups: int,
    epsilon: float = 1e-6,
) -> Float[Array, "b h w c"]:
    """flax's ``nn.GroupNorm``: mean 0 and variance 1 within each image and group of channels, then scaled and shifted.

    Statistics are computed in float32 at least.
    """
    b, h, w, c = x.shape
    wide = x.astype(jnp.float32 if x.dtype.itemsize < 4 else x.dtype).reshape(b, h, w, groups, c // groups)
    mean = wide.mean((1, 2, 4), keepdims=True)
    variance = jnp.maximum((wide * wide).mean((1, 2, 4), keepdims=True) - mean * mean, 0)

    def per_channel(values: Array) -> Array:
        return values.astype(wide.dtype).reshape(1, 1, 1, groups, c // groups)

    factor = per_channel(scale) * lax.rsqrt(variance + epsilon)
    shift = per_channel(bias) - mean * factor
    return (wide * factor + shift).astype(x.dtype).reshape(x.shape)


CONVOLUTIONS: dict[str, Convolve] = {"grouped": convolve, "patches": convolve_patches, "tiles": convolve_tiles}
POOLS: dict[str, Pool] = {"elementwise": square_maximum, "windows": window_maximum}


def convolve_by(rules: GpuRules) -> Convolve:
    """The convolution whose form ``rules`` choose for each number of output channels."""

    def chosen(
        x: Array, kernel: Array, strides: Sequence[int] = (1, 1), padding: str | planes.Pairs = "VALID"
    ) -> Array:
        return CONVOLUTIONS[rules.convolution(kernel.shape[-1])](x, kernel, strides, padding)

    return chosen
