"""ResNet18 with GroupNorm for 32 x 32 images: ``resnet18(input_shape, classes)``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
from jaxtyping import Array, Float

from fljax.core import gpu_rules, platforms
from fljax.models import channels_last, lines, planes
from fljax.models.task import Convolution, GroupNorm
from fljax.models.trunk import Layer

WIDTHS = (64, 128, 256, 512)
CHANNELS_PER_GROUP = 16

# (x, layer, stride) -> y: a convolution with PyTorch's padding (``size // 2`` on every side), bias and GroupNorm.
Normalised = Callable[[Array, Layer, int], Array]


class Block(NamedTuple):
    """The parameters of a residual block; its shortcut is a 1 x 1 convolution if shapes differ, else None."""

    first: Layer
    second: Layer
    shortcut: Layer | None


class Parameters(nn.Module):
    """A ``Layer`` with flax's names: a convolution and its GroupNorm."""

    width: int
    size: int = 3

    @nn.compact
    def __call__(self, channels: int) -> Layer:
        kernel, bias = Convolution(self.width, self.size, name="conv")(channels)
        return Layer(kernel, bias, GroupNorm(name="norm")(self.width))


class Residual(nn.Module):
    """The parameters of a residual block: two 3 x 3 convolutions and a shortcut."""

    width: int
    stride: int = 1

    @nn.compact
    def __call__(self, channels: int) -> Block:
        first = Parameters(self.width, name="first")(channels)
        second = Parameters(self.width, name="second")(self.width)
        if self.stride == 1 and channels == self.width:
            return Block(first, second, None)
        return Block(first, second, Parameters(self.width, 1, name="shortcut")(channels))


class ResNet18(nn.Module):
    """A 3 x 3 stem of 64 channels, four stages of two residual blocks, the mean over all pixels, a dense layer."""

    classes: int

    def setup(self) -> None:
        self.stem = Parameters(WIDTHS[0])
        self.strides = [1 if i + j == 0 or j else 2 for i in range(len(WIDTHS)) for j in range(2)]
        widths = [width for width in WIDTHS for _ in range(2)]
        self.block = [Residual(width, stride) for width, stride in zip(widths, self.strides, strict=True)]
        self.head = nn.Dense(self.classes)

    def features(self, x: Array) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        layer = stem = self.stem(x.shape[-1])
        blocks = []
        for block in self.block:
            blocks.append(block(layer.bias.shape[-1]))
            layer = blocks[-1].second

        strides = tuple(self.strides)
        return platforms.choose(
            x,
            stem,
            blocks,
            cpu=functools.partial(batch_innermost, strides),
            tpu=functools.partial(plain, strides),
            default=functools.partial(plain, strides, convolve=channels_last.convolve_by(gpu_rules.read())),
        )

    def __call__(self, x: Array) -> Array:
        return self.head(self.features(x))


def batch_innermost(strides: Sequence[int], x: Float[Array, "b h w c"], stem: Layer, blocks: list[Block]) -> Array:
    """Features in the form for CPUs (``fljax.models.lines``), ``[b, 512]``."""

    def normalised(x: Array, layer: Layer, stride: int) -> Array:
        x = lines.convolve(x, layer.kernel, (stride, stride), _padding(layer)) + layer.bias[None, :, None, None]
        return planes.group_norm(x, *layer.norm, _groups(layer), axis=1) if layer.norm else x

    return _residual(normalised, strides, x.transpose(1, 3, 2, 0), stem, blocks).mean((0, 2)).transpose()


def plain(
    strides: Sequence[int],
    x: Float[Array, "b h w c"],
    stem: Layer,
    blocks: list[Block],
    convolve: channels_last.Convolve = channels_last.convolve,
) -> Array:
    """Features in the form for accelerators (``fljax.models.channels_last``), ``[b, 512]``."""

    def normalised(x: Array, layer: Layer, stride: int) -> Array:
        x = convolve(x, layer.kernel, (stride, stride), _padding(layer))
        x = channels_last.add_bias(x, layer.bias)
        return channels_last.group_norm(x, *layer.norm, _groups(layer)) if layer.norm else x

    return _residual(normalised, strides, x, stem, blocks).mean((1, 2))


def _residual(normalised: Normalised, strides: Sequence[int], x: Array, stem: Layer, blocks: list[Block]) -> Array:
    x = nn.relu(normalised(x, stem, 1))
    for block, stride in zip(blocks, strides, strict=True):
        y = normalised(nn.relu(normalised(x, block.first, stride)), block.second, 1)
        x = nn.relu(y + (x if block.shortcut is None else normalised(x, block.shortcut, stride)))
    return x


def _padding(layer: Layer) -> list[tuple[int, int]]:
    around = layer.kernel.shape[0] // 2
    return [(around, around)] * 2


def _groups(layer: Layer) -> int:
    return layer.kernel.shape[-1] // CHANNELS_PER_GROUP
