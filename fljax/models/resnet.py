"""ResNet18 with GroupNorm for 32 x 32 images: ``resnet18(input_shape, classes)``."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array

from fljax.models import lines, planes
from fljax.models.layers import Convolution, GroupNorm

WIDTHS = (64, 128, 256, 512)
CHANNELS_PER_GROUP = 16


class Normalised(nn.Module):
    """A convolution with bias and PyTorch's padding (``size // 2`` on every side), and a GroupNorm."""

    width: int
    size: int = 3
    stride: int = 1

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel, bias = Convolution(self.width, self.size, name="conv")(x.shape[1])
        around = self.size // 2
        x = lines.convolve(x, kernel, (self.stride, self.stride), [(around, around)] * 2)
        scale, shift = GroupNorm(name="norm")(self.width)
        return planes.group_norm(x + bias[None, :, None, None], scale, shift, self.width // CHANNELS_PER_GROUP, axis=1)


class Residual(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a 1 x 1 convolution if shapes differ."""

    width: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.relu(Normalised(self.width, 3, self.stride, name="first")(x))
        y = Normalised(self.width, name="second")(y)
        if self.stride != 1 or x.shape[1] != self.width:
            x = Normalised(self.width, 1, self.stride, name="shortcut")(x)
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """A 3 x 3 stem of 64 channels, four stages of two residual blocks, the mean over all pixels, a dense layer."""

    classes: int

    def setup(self) -> None:
        self.stem = Normalised(WIDTHS[0])
        strides = [(width, 1 if i + j == 0 or j else 2) for i, width in enumerate(WIDTHS) for j in range(2)]
        self.block = [Residual(width, stride) for width, stride in strides]
        self.head = nn.Dense(self.classes)

    def features(self, x: Array) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        x = nn.relu(self.stem(x.transpose(1, 3, 2, 0)))
        for block in self.block:
            x = block(x)
        return x.mean((0, 2)).transpose()

    def __call__(self, x: Array) -> Array:
        return self.head(self.features(x))
