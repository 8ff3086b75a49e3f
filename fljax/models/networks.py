"""The models of the papers, as flax modules and as Tasks: ``MODELS[name](input_shape, classes, **options)``.

None of them has BatchNorm: running statistics are state that clients do not share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fljax.models.convolution import convolution, max_pool
from fljax.models.task import task_from_module
from fljax.types import Task

if TYPE_CHECKING:
    from jaxtyping import Array


class Mlp(nn.Module):
    """Dense layers with ReLU, dropout after the first one; without hidden layers: logistic regression."""

    classes: int
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0

    def setup(self) -> None:
        self.dense = [nn.Dense(width) for width in self.hidden]
        self.drop = nn.Dropout(self.dropout)
        self.head = nn.Dense(self.classes)

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
    """Blocks of convolutions, each block closed by a 2 x 2 max-pool; then dense layers; ReLU throughout."""

    classes: int
    blocks: tuple[tuple[int, ...], ...]
    dense_widths: tuple[int, ...]
    kernel: int = 3
    padding: str = "SAME"
    groups: int | None = None
    dropout: float = 0.0

    def setup(self) -> None:
        widths = [width for block in self.blocks for width in block]
        size = (self.kernel, self.kernel)
        self.conv = [nn.Conv(width, size, padding=self.padding, conv_general_dilated=convolution) for width in widths]
        self.norm = [nn.GroupNorm(self.groups) for _ in widths] if self.groups else []
        self.dense = [nn.Dense(width) for width in self.dense_widths]
        self.drop = nn.Dropout(self.dropout)
        self.head = nn.Dense(self.classes)

    def features(self, x: Array, train: bool = False) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        i = 0
        for block in self.blocks:
            for _ in block:
                x = self.conv[i](x)
                x = nn.relu(self.norm[i](x) if self.groups else x)
                i += 1
            x = max_pool(x)
        x = _flatten(x)
        for layer in self.dense:
            x = self.drop(nn.relu(layer(x)), deterministic=not train)
        return x

    def __call__(self, x: Array, train: bool = False) -> Array:
        return self.head(self.features(x, train))


def logistic_regression(
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
) -> Task:
    """Multinomial logistic regression on the flattened input: 60 features and 10 classes have 61 x 10 parameters.

    Args:
      input_shape: of one stored example.
      classes: number of classes.
      prepare: stored examples to what the model reads; None: ``uint8`` pixels are divided by 255.
      augment: ``(key, x) -> x`` on a prepared training batch.
      dtype: of parameters and activations.
    """
    return _task(Mlp(classes), input_shape, classes, prepare, augment, dtype)


def mlp(
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
    hidden: Sequence[int] = (64, 30),
    dropout: float = 0.5,
) -> Task:
    """A multilayer perceptron: 784-64-30-10 for Fashion-MNIST in INCFL and MaxFL.

    Args:
      input_shape: of one stored example.
      classes: number of classes.
      prepare: stored examples to what the model reads; None: ``uint8`` pixels are divided by 255.
      augment: ``(key, x) -> x`` on a prepared training batch.
      dtype: of parameters and activations.
      hidden: widths of the hidden layers.
      dropout: rate after the first hidden layer. The papers do not state theirs.
    """
    return _task(Mlp(classes, tuple(hidden), dropout), input_shape, classes, prepare, augment, dtype)


def cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
    blocks: Sequence[Sequence[int]] = ((16,), (32,)),
    dense: Sequence[int] = (64,),
    kernel: int = 3,
    padding: str = "SAME",
    groups: int | None = None,
    dropout: float = 0.0,
) -> Task:
    """A convolutional network of one's own size.

    Args:
      input_shape: ``(height, width, channels)`` or ``(height, width)`` of one stored example.
      classes: number of classes.
      prepare: stored examples to what the model reads; None: ``uint8`` pixels are divided by 255.
      augment: ``(key, x) -> x`` on a prepared training batch.
      dtype: of parameters and activations.
      blocks: channels of the convolutions, block by block; a 2 x 2 max-pool closes each block.
      dense: widths of the hidden dense layers.
      kernel: height and width of every kernel.
      padding: ``"SAME"`` or ``"VALID"``.
      groups: number of groups of a GroupNorm after every convolution; None: no normalisation.
      dropout: rate after every hidden dense layer.

    Raises:
      ValueError: if the input is not an image, or too small for the blocks, or ``groups`` does not divide a
        width.
    """
    shape, blocks = tuple(input_shape), tuple(tuple(block) for block in blocks)
    if len(shape) not in (2, 3):
        raise ValueError(f"expected an input shape (height, width, channels), got {shape}")
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"expected a known padding, got {padding!r}; valid names are 'SAME', 'VALID'")
    bad = [width for block in blocks for width in block if groups and width % groups]
    if bad:
        raise ValueError(f"expected groups to divide every number of channels, got {groups} groups for {bad[0]}")
    smallest = min(shape[:2])
    for block in blocks:
        smallest = (smallest - (len(block) * (kernel - 1) if padding == "VALID" else 0)) // 2
    if smallest < 1:
        raise ValueError(f"expected an image large enough for {len(blocks)} blocks, got {shape[0]} x {shape[1]}")
    module = Cnn(classes, blocks, tuple(dense), kernel, padding, groups, dropout)
    return _task(module, shape, classes, prepare, augment, dtype)


def cnn_a(
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
) -> Task:
    """LeNet for 28 x 28 x 1 in IAFL (MNIST, Fashion-MNIST): 6 and 16 kernels of 5 x 5, then 256-120-84-classes.

    Args:
      input_shape: ``(28, 28, 1)`` or ``(28, 28)``.
      classes: number of classes.
      prepare: stored examples to what the model reads; None: ``uint8`` pixels are divided by 255.
      augment: ``(key, x) -> x`` on a prepared training batch.
      dtype: of parameters and activations.

    Raises:
      ValueError: for another input shape; ``cnn`` takes any.
    """
    return _lenet("cnn_a", ((28, 28, 1), (28, 28)), input_shape, classes, prepare, augment, dtype)


def cnn_b(
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
) -> Task:
    """LeNet for 32 x 32 x 3 in IAFL (SVHN, CIFAR): 6 and 16 kernels of 5 x 5, then 400-120-84-classes.

    Args:
      input_shape: ``(32, 32, 3)``.
      classes: number of classes.
      prepare: stored examples to what the model reads; None: ``uint8`` pixels are divided by 255.
      augment: ``(key, x) -> x`` on a prepared training batch.
      dtype: of parameters and activations.

    Raises:
      ValueError: for another input shape; ``cnn`` takes any.
    """
    return _lenet("cnn_b", ((32, 32, 3),), input_shape, classes, prepare, augment, dtype)


MODELS: dict[str, Callable[..., Task]] = {
    "logistic_regression": logistic_regression,
    "mlp": mlp,
    "cnn": cnn,
    "cnn_a": cnn_a,
    "cnn_b": cnn_b,
}


def _lenet(name: str, shapes: Any, input_shape: Any, classes: int, prepare: Any, augment: Any, dtype: Any) -> Task:
    if tuple(input_shape) not in shapes:
        raise ValueError(
            f"expected inputs of shape {shapes[0]} for {name}, got {tuple(input_shape)}; cnn takes any shape"
        )
    module = Cnn(classes, ((6,), (16,)), (120, 84), kernel=5, padding="VALID")
    return _task(module, input_shape, classes, prepare, augment, dtype)


def _task(module: nn.Module, input_shape: Sequence[int], classes: int, prepare: Any, augment: Any, dtype: Any) -> Task:
    example = jax.ShapeDtypeStruct((1, *input_shape), jnp.dtype(dtype))
    return task_from_module(
        module,
        example,
        classes=classes,
        prepare=prepare,
        augment=augment,
        head=_in_head,
        dtype=dtype,
    )


def _in_head(path: str) -> bool:
    return path.startswith("head/")


def _flatten(x: Array) -> Array:
    width = 1
    for n in x.shape[1:]:
        width *= n
    return x.reshape(x.shape[0], width)
