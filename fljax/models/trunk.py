"""The convolutional part of a network, in the form that is fast on the platform it is compiled for.

The platform is that of the compilation (``fljax.core.platforms.choose``), not that of the process: a program traced on
a CPU and compiled for a TPU gets the TPU's form. All forms have the same values and gradients, up to rounding. A run's
programs are traced for the platform of its layout alone; elsewhere all forms are traced, and the compiler sees one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flax.linen import relu
from jaxtyping import Array, Float

from fljax.core import gpu_rules, platforms
from fljax.models import channels_last, planes


class Layer(NamedTuple):
    """The parameters of one convolution."""

    kernel: Array
    bias: Array
    norm: tuple[Array, Array] | None = None  # scale ``[o]`` and shift ``[o]`` of a GroupNorm after it; None: none


class Trunk(NamedTuple):
    """Blocks of convolutions with ReLU, each block with a 2 x 2 max-pool at its end."""

    paddings: tuple[tuple[str, ...], ...]  # ``"SAME"`` or ``"VALID"``, block by block
    groups: int | None = None  # of every GroupNorm; None: no normalisation


def apply(trunk: Trunk, blocks: Sequence[Sequence[Layer]], x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 o"]:
    """The output of the last block for images ``x``."""

    def on_cpu(blocks: Sequence[Sequence[Layer]], x: Array) -> Array:
        return batch_innermost(trunk, blocks, x)

    def on_tpu(blocks: Sequence[Sequence[Layer]], x: Array) -> Array:
        return plain(trunk, blocks, x, channels_last.window_maximum)

    def on_others(blocks: Sequence[Sequence[Layer]], x: Array) -> Array:
        rules = gpu_rules.read()
        return plain(trunk, blocks, x, channels_last.POOLS[rules.pooling], channels_last.convolve_by(rules))

    return platforms.choose(blocks, x, cpu=on_cpu, tpu=on_tpu, default=on_others)


def plain(
    trunk: Trunk,
    blocks: Sequence[Sequence[Layer]],
    x: Float[Array, "b h w c"],
    pool: channels_last.Pool,
    convolve: channels_last.Convolve = channels_last.convolve,
) -> Float[Array, "b h2 w2 o"]:
    """The form for accelerators: convolutions on images with channels last."""
    for layers, paddings in zip(blocks, trunk.paddings, strict=True):
        for i, (layer, padding) in enumerate(zip(layers, paddings, strict=True)):
            x, last = convolve(x, layer.kernel, (1, 1), padding), i == len(layers) - 1
            if layer.norm is None:
                # The maximum comes first, as the bias and ReLU do not change which pixel is the largest.
                x = channels_last.add_bias(pool(x) if last else x, layer.bias)
            else:
                x = channels_last.group_norm(channels_last.add_bias(x, layer.bias), *layer.norm, trunk.groups or 1)
                x = pool(x) if last else x
            x = relu(x)
    return x


def batch_innermost(
    trunk: Trunk, blocks: Sequence[Sequence[Layer]], x: Float[Array, "b h w c"]
) -> Float[Array, "b h2 w2 o"]:
    """The form for CPUs: a few images at a time, batch innermost (``fljax.models.planes``)."""
    # The layout for the first convolution is made once, outside the loop over blocks of images.
    first, padding = blocks[0][0].kernel, trunk.paddings[0][0]
    parted = len(blocks[0]) == 1 and not trunk.groups and planes.worth_squares(first.shape)

    def enter(x: Array) -> Array:
        return planes.part(x, first.shape, padding) if parted else x

    def through(x: Array) -> Array:
        for b, (layers, paddings) in enumerate(zip(blocks, trunk.paddings, strict=True)):
            for i, (layer, padding) in enumerate(zip(layers, paddings, strict=True)):
                kernel, last = layer.kernel, i == len(layers) - 1
                bias = layer.bias[:, None, None, None]
                if last and not trunk.groups:
                    known = parted and b == 0
                    x = planes.convolve_parted(x, kernel) if known else planes.convolve_squares(x, kernel, padding)
                    x = planes.largest(x) + bias
                else:
                    x = planes.convolve(x, kernel, padding=padding) + bias
                    if layer.norm is not None:
                        x = planes.group_norm(x, *layer.norm, trunk.groups or 1)
                    if last:
                        x = planes.largest(planes.squares(x))
                x = relu(x)
        return x

    return planes.in_blocks(through, x, _patch_size(trunk, blocks, x.shape[1:3]), enter)


def _patch_size(trunk: Trunk, blocks: Sequence[Sequence[Layer]], size: Sequence[int]) -> int:
    """Number of entries in one image's largest matrix of patches."""
    (h, w), largest = size, 0
    for layers, paddings in zip(blocks, trunk.paddings, strict=True):
        for i, (layer, padding) in enumerate(zip(layers, paddings, strict=True)):
            shape = layer.kernel.shape
            if padding == "VALID":
                h, w = h - shape[0] + 1, w - shape[1] + 1
            squared = i == len(layers) - 1 and not trunk.groups and planes.worth_squares(shape)
            largest = max(largest, planes.patch_size(shape, h * w, squared=squared))
        h, w = h // 2, w // 2
    return largest
