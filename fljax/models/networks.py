"""The models of the papers, as flax modules and as Tasks: ``MODELS[name](input_shape, classes, **options)``.

They normalise by groups. For BatchNorm, make a Task of a module of your own (``task_from_module``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Unpack

import flax.linen as nn
from jaxtyping import Array

from fljax.models import trunk
from fljax.models.resnet import ResNet18
from fljax.models.task import (
    Common,
    Convolution,
    GroupNorm,
    check_blocks,
    check_convolution,
    check_image,
    check_rate,
    check_widths,
    dot_general,
    network,
    network_task,
)
from fljax.models.text import bilstm, text_cnn
from fljax.protocol import Task


class Mlp(nn.Module):
    """Dense layers with ReLU and dropout after the first; without hidden layers, logistic regression."""

    classes: int
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0

    def setup(self) -> None:
        self.dense = [nn.Dense(width, dot_general=dot_general) for width in self.hidden]
        self.drop = nn.Dropout(self.dropout)
        self.head = nn.Dense(self.classes, dot_general=dot_general)

    def features(self, x: Array, train: bool = False) -> Array:
        x = _flatten(x)
        for i, layer in enumerate(self.dense):
            x = nn.relu(layer(x))
            if i == 0:
                x = self.drop(x, deterministic=not train)
        return x

    def __call__(self, x: Array, train: bool = False) -> Array:
        return self.head(self.features(x, train))


class Cnn(nn.Module):
    """Blocks of convolutions, each with a 2 x 2 max-pool at its end; then dense layers; ReLU throughout."""

    classes: int
    blocks: tuple[tuple[int, ...], ...]
    dense_widths: tuple[int, ...]
    kernel: int = 3
    padding: str | tuple[str, ...] = "SAME"  # of all convolutions, or of each
    groups: int | None = None
    dropout: float = 0.0  # after every hidden dense layer
    flat_dropout: float = 0.0  # before the first dense layer

    def setup(self) -> None:
        widths = [width for block in self.blocks for width in block]
        self.conv = [Convolution(width, self.kernel) for width in widths]
        self.norm = [GroupNorm() for _ in widths] if self.groups else []
        self.dense = [nn.Dense(width, dot_general=dot_general) for width in self.dense_widths]
        self.drop = nn.Dropout(self.dropout)
        self.flat_drop = nn.Dropout(self.flat_dropout)
        self.head = nn.Dense(self.classes, dot_general=dot_general)

    def features(self, x: Array, train: bool = False) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        widths = [x.shape[-1], *(width for block in self.blocks for width in block)]
        convs = [conv(channels) for conv, channels in zip(self.conv, widths, strict=False)]
        norms = [norm(width) for norm, width in zip(self.norm, widths[1:], strict=True)] if self.groups else []

        layers = [trunk.Layer(*conv, norm) for conv, norm in zip(convs, norms or [None] * len(convs), strict=True)]
        blocks, at = [], 0
        for block in self.blocks:
            blocks.append(layers[at : at + len(block)])
            at += len(block)
        x = _flatten(trunk.apply(self._trunk(), blocks, x))
        x = self.flat_drop(x, deterministic=not train)
        for layer in self.dense:
            x = self.drop(nn.relu(layer(x)), deterministic=not train)
        return x

    def __call__(self, x: Array, train: bool = False) -> Array:
        return self.head(self.features(x, train))

    def _trunk(self) -> trunk.Trunk:
        names = iter(repeat(self.padding) if isinstance(self.padding, str) else self.padding)
        return trunk.Trunk(tuple(tuple(next(names) for _ in block) for block in self.blocks), self.groups)


@network
def logistic_regression(input_shape: Sequence[int], classes: int, **common: Unpack[Common]) -> Task:
    """Multinomial logistic regression on the flattened input: 61 x 10 parameters for 60 features and 10 classes.

    Args:
      input_shape: shape of one stored example.
      classes: number of classes.
    """
    return network_task(Mlp(classes), input_shape, classes, **common)


@network
def mlp(
    input_shape: Sequence[int],
    classes: int,
    *,
    hidden: Sequence[int] = (64, 30),
    dropout: float = 0.5,
    **common: Unpack[Common],
) -> Task:
    """A multilayer perceptron: 784-64-30-10 for Fashion-MNIST in INCFL and MaxFL.

    Args:
      input_shape: shape of one stored example.
      classes: number of classes.
      hidden: widths of the hidden layers.
      dropout: dropout rate after the first hidden layer. The papers do not state their rate.
    """
    sizes = check_widths("hidden", hidden), check_rate("dropout", dropout)
    return network_task(Mlp(classes, *sizes), input_shape, classes, **common)


@network
def cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    blocks: Sequence[Sequence[int]] = ((16,), (32,)),
    dense: Sequence[int] = (64,),
    kernel: int = 3,
    padding: str = "SAME",
    groups: int | None = None,
    dropout: float = 0.0,
    **common: Unpack[Common],
) -> Task:
    """A convolutional network with configurable sizes.

    Args:
      input_shape: ``(height, width, channels)`` or ``(height, width)`` of one stored example.
      classes: number of classes.
      blocks: channels of the convolutions, block by block; each block ends with a 2 x 2 max-pool.
      dense: widths of the hidden dense layers.
      kernel: height and width of every kernel.
      padding: ``"SAME"`` or ``"VALID"``.
      groups: number of groups of a GroupNorm after every convolution; None: no normalisation.
      dropout: dropout rate after every hidden dense layer.

    Raises:
      ValueError: if the input is not an image or too small for the blocks, or ``groups`` does not divide a width.
    """
    shape, blocks = check_image(input_shape), check_blocks(blocks)
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"expected a known padding, got {padding!r}; valid names are 'SAME', 'VALID'")
    check_convolution(shape, kernel, groups)
    if bad := [width for block in blocks for width in block if groups and width % groups]:
        raise ValueError(f"expected groups to divide every number of channels, got {groups} groups for {bad[0]}")
    smallest = min(shape[:2])
    for block in blocks:
        smallest = (smallest - (len(block) * (kernel - 1) if padding == "VALID" else 0)) // 2
    if smallest < 1:
        raise ValueError(f"expected an image large enough for {len(blocks)} blocks, got {shape[0]} x {shape[1]}")
    module = Cnn(classes, blocks, check_widths("dense", dense), kernel, padding, groups, check_rate("dropout", dropout))
    return network_task(module, shape, classes, **common)


@network
def cnn_a(input_shape: Sequence[int], classes: int, **common: Unpack[Common]) -> Task:
    """LeNet for 28 x 28 x 1 in IAFL (MNIST, Fashion-MNIST): 6 and 16 kernels of 5 x 5, then 256-120-84-classes.

    Args:
      input_shape: ``(28, 28, 1)`` or ``(28, 28)``.
      classes: number of classes.

    Raises:
      ValueError: if the input shape differs; ``cnn`` takes any shape.
    """
    return _lenet("cnn_a", ((28, 28, 1), (28, 28)), input_shape, classes, common)


@network
def cnn_b(input_shape: Sequence[int], classes: int, **common: Unpack[Common]) -> Task:
    """LeNet for 32 x 32 x 3 in IAFL (SVHN, CIFAR): 6 and 16 kernels of 5 x 5, then 400-120-84-classes.

    Args:
      input_shape: ``(32, 32, 3)``.
      classes: number of classes.

    Raises:
      ValueError: if the input shape differs; ``cnn`` takes any shape.
    """
    return _lenet("cnn_b", ((32, 32, 3),), input_shape, classes, common)


@network
def cnn_c(input_shape: Sequence[int], classes: int, **common: Unpack[Common]) -> Task:
    """Four 3 x 3 convolutions with dropout in IP-FL (CIFAR, EMNIST): 32, 64, pool, 64, 64, pool, 128-classes.

    The dropout rate is 0.25 before the hidden dense layer and 0.5 after it.

    Args:
      input_shape: ``(32, 32, 3)``, with 3136 inputs to the dense layer, or ``(28, 28, 1)``, with 2304.
      classes: number of classes.

    Raises:
      ValueError: if the input shape differs; ``cnn`` takes any shape.
    """
    shape = tuple(input_shape)
    if shape not in ((32, 32, 3), (28, 28, 1)):
        raise ValueError(f"expected inputs of shape (32, 32, 3) or (28, 28, 1) for cnn_c, got {shape}")
    pads = ("VALID" if shape[0] == 32 else "SAME", "VALID", "SAME", "SAME")
    module = Cnn(classes, ((32, 64), (64, 64)), (128,), padding=pads, dropout=0.5, flat_dropout=0.25)
    return network_task(module, shape, classes, **common)


@network
def resnet18(input_shape: Sequence[int], classes: int, **common: Unpack[Common]) -> Task:
    """ResNet18 with GroupNorm for CIFAR in IAFL: a 3 x 3 stem, widths 64 to 512, 16 channels per group.

    Args:
      input_shape: ``(height, width, channels)`` or ``(height, width)``; for 32 x 32 the average pool covers 4 x 4.
      classes: number of classes.

    Raises:
      ValueError: if the input is not an image.
    """
    return network_task(ResNet18(classes), check_image(input_shape), classes, **common)


MODELS: dict[str, Callable[..., Task]] = {
    "logistic_regression": logistic_regression,
    "mlp": mlp,
    "cnn": cnn,
    "cnn_a": cnn_a,
    "cnn_b": cnn_b,
    "cnn_c": cnn_c,
    "resnet18": resnet18,
    "bilstm": bilstm,
    "text_cnn": text_cnn,
}


def _lenet(
    name: str, shapes: Sequence[Sequence[int]], input_shape: Sequence[int], classes: int, common: Common
) -> Task:
    if tuple(input_shape) not in shapes:
        raise ValueError(
            f"expected inputs of shape {shapes[0]} for {name}, got {tuple(input_shape)}; cnn takes any shape"
        )
    module = Cnn(classes, ((6,), (16,)), (120, 84), kernel=5, padding="VALID")
    return network_task(module, input_shape, classes, **common)


def _flatten(x: Array) -> Array:
    width = 1
    for n in x.shape[1:]:
        width *= n
    return x.reshape(x.shape[0], width)
