"""What all built-in networks have in common: options, checks of sizes, layers of ``planes``, and initial parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jaxtyping import Array, Float, Key, PyTree

from fljax.core import platforms
from fljax.core.keywords import shows
from fljax.models.starting import checked_dtype, named_augmentation
from fljax.models.task import LARGEST_ARRAY, task_from_module
from fljax.protocol import Task


class Convolution(nn.Module):
    """Kernel ``[size, size, channels, width]`` and bias ``[width]``, named and initialised as in ``nn.Conv``."""

    width: int
    size: int

    @nn.compact
    def __call__(self, channels: int) -> tuple[Array, Array]:
        shape = (self.size, self.size, channels, self.width)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        return kernel, self.param("bias", nn.initializers.zeros_init(), (self.width,))


class GroupNorm(nn.Module):
    """Scale and bias ``[width]``, named and initialised as in ``nn.GroupNorm``."""

    @nn.compact
    def __call__(self, width: int) -> tuple[Array, Array]:
        scale = self.param("scale", nn.initializers.ones_init(), (width,))
        return scale, self.param("bias", nn.initializers.zeros_init(), (width,))


def check_widths(name: str, widths: Sequence[Any]) -> tuple[int, ...]:
    """Returns the widths of layers as a tuple of whole numbers above 0."""
    for width in widths:
        if isinstance(width, bool) or not hasattr(width, "__index__") or not 0 < width.__index__() <= LARGEST_ARRAY:
            raise ValueError(f"expected {name} of whole numbers from 1 to {LARGEST_ARRAY}, got {width!r}")
    return tuple(width.__index__() for width in widths)


def check_blocks(blocks: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
    """Returns blocks of layers; each block is a tuple of widths."""
    if not blocks or not all(blocks):
        raise ValueError(f"expected blocks of at least one layer each, got {[list(block) for block in blocks]}")
    return tuple(check_widths("blocks", block) for block in blocks)


def check_image(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of an image, ``(height, width, channels)`` or ``(height, width)``."""
    sizes = tuple(shape)
    if len(sizes) not in (2, 3):
        raise ValueError(f"expected an input shape (height, width, channels), got {sizes}")
    if len(sizes) == 3 and sizes[0] in (1, 3, 4) and sizes[1] == sizes[2] > 4:
        raise ValueError(
            f"expected an input shape (height, width, channels), got {sizes}, whose channels are first; "
            "numpy.moveaxis(x, 1, -1) moves those of images x to the end"
        )
    return sizes


def check_convolution(shape: Sequence[int], kernel: int, groups: int | None) -> None:
    """Checks the kernel size for images of this shape, and the number of groups of the normalisation."""
    check_widths("kernel and groups", (kernel, 1 if groups is None else groups))
    widest = 2 * min(shape[:2]) - 1
    if kernel > widest:
        raise ValueError(f"expected a kernel of at most {widest} for images of {shape[0]} x {shape[1]}, got {kernel}")


def check_rate(name: str, rate: float) -> float:
    """Returns a dropout rate."""
    if not 0 <= rate < 1:
        raise ValueError(f"expected {name} to be at least 0 and below 1, got {rate!r}")
    return rate


Initialisation = Literal["flax", "framework"]

# What flax calls the products of an LSTM: of the input (i) or of the state (h), for each of four gates.
_GATES = frozenset(first + gate for first in "ih" for gate in "ifgo")


def initialised(task: Task, initialisation: Initialisation) -> Task:
    """The task with initial parameters by the rules of flax, or of PyTorch, the framework of most published code."""
    # Source: PyTorch's documentation of ``torch.nn.Linear``, ``Conv2d``, ``LSTM`` and ``Embedding``.
    if initialisation == "flax":
        return task  # in which kernels of an LSTM's state are drawn as by PyTorch
    if initialisation != "framework":
        raise ValueError(
            f"expected a known initialisation, got {initialisation!r}; valid names are 'flax', 'framework'"
        )
    return task._replace(init=_framework(task.init))


@functools.lru_cache(maxsize=256)
def _framework(init: Callable[..., Any]) -> Callable[..., Any]:
    def framework(key: Key[Array, ""]) -> PyTree:
        return redraw(key, init(key))

    return framework


def redraw(key: Key[Array, ""], params: PyTree) -> PyTree:
    """Parameters as PyTorch draws them (``initialised``), in the structure and dtypes of ``params``."""
    flat: dict[tuple[str, ...], Array] = cast(Any, flatten_dict(params))
    redrawn = dict(flat)
    for number, (path, leaf) in enumerate(sorted(flat.items())):
        leaf_key = jax.random.fold_in(key, number)
        *layer, name = path
        kernel = flat.get((*layer, "kernel"))
        if name == "embedding":
            drawn = jax.random.normal(leaf_key, leaf.shape, jnp.float32)
        elif name in ("kernel", "bias") and kernel is not None:
            gate = layer[-1] in _GATES
            bound = 1 / math.sqrt(kernel.shape[-1] if gate else math.prod(kernel.shape[:-1]))
            times = 2 if gate and name == "bias" else 1  # PyTorch adds two biases of an LSTM, which is their sum here
            drawn = jax.random.uniform(leaf_key, (times, *leaf.shape), jnp.float32, -bound, bound).sum(axis=0)
        else:
            continue
        # As by flax, all dtypes get the same numbers.
        redrawn[path] = drawn.astype(leaf.dtype)
    return unflatten_dict(redrawn)


class Common(TypedDict, total=False):
    """The options of every network, for type checkers; ``network_task`` has their defaults and their meaning."""

    prepare: Callable[[Array], Array] | None
    augment: Literal["crop_flip"] | Callable[..., Array] | None
    dtype: Any
    compute_dtype: Any
    initialisation: Initialisation


def network_task(
    module: nn.Module,
    input_shape: Sequence[int],
    classes: int,
    *,
    prepare: Callable[[Array], Array] | None = None,
    augment: Literal["crop_flip"] | Callable[..., Array] | None = None,
    dtype: Any = jnp.float32,
    compute_dtype: Any = None,
    initialisation: Initialisation = "flax",
    stored: Any = None,
) -> Task:
    """The Task of a flax module whose last layer is called ``head``; builders show the lines of ``Common`` below.

    Args:
      prepare: maps stored examples to model inputs; None: ``uint8`` pixels are divided by 255.
      augment: ``"crop_flip"`` or ``(key, x) -> x`` on prepared training batches; None: no augmentation.
      dtype: dtype of parameters and activations.
      compute_dtype: dtype of activations and products (e.g. ``"bfloat16"``); None: ``dtype``. See ``task_from_module``.
      initialisation: ``"flax"``, or ``"framework"``: kernels, biases ~ U(-b, b), ``b = fan_in ** -0.5``, as PyTorch.
      stored: dtype of stored examples, int32 for texts; None: ``dtype``.
    """
    if isinstance(input_shape, str) or not isinstance(input_shape, Iterable):
        raise ValueError(f"expected input_shape to be the shape of one example, such as (28, 28), got {input_shape!r}")
    task = task_from_module(
        module,
        jax.ShapeDtypeStruct((1, *input_shape), checked_dtype(dtype) if stored is None else stored),
        classes=classes,
        prepare=prepare,
        augment=named_augmentation(augment, input_shape, prepare),
        head=_in_head,
        dtype=dtype,
        compute_dtype=compute_dtype,
    )
    return initialised(task, initialisation)


def _in_head(path: str) -> bool:
    return path.startswith("head/")


# Shows the options of ``Common`` in the signature and docstring of a builder, in place of its ``**common``.
network = shows(network_task, after="classes")


def dot_general(
    lhs: Float[Array, "*b k"],
    rhs: Float[Array, "k m"],
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    **rest: Any,
) -> Float[Array, "*b m"]:
    """``lax.dot_general``, whose weight gradient on a CPU first transposes the batch in memory, for dense layers."""
    # XLA's fast product on CPUs takes no transposed left side: with one, the gradient, 784 x 30 times 30 x 64, took 2.5
    # times as long as the forward product of as many operations. ``nn.Dense(64, dot_general=dot_general)`` uses this.
    rest = {name: value for name, value in rest.items() if value is not None}
    plain = (((lhs.ndim - 1,), (0,)), ((), ()))
    dense = jax.tree.map(int, dimension_numbers) == plain and lhs.ndim == rhs.ndim == 2
    if rest or not dense or preferred_element_type is not None:
        return lax.dot_general(
            lhs, rhs, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type, **rest
        )
    return _product(precision)(lhs, rhs)


def _unchanged(x: Array) -> Array:
    return x


def _product(precision: Any) -> Any:
    @jax.custom_jvp
    def product(x: Array, w: Array) -> Array:
        return lax.dot(x, w, precision=precision)

    @product.defjvp
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        (x, w), (dx, dw) = primals, tangents
        # The derivative uses the transposed batch. Its transpose, the weight gradient ``x^T dy``, then has an
        # ordinary left side. On a CPU the barrier keeps XLA from undoing the transposition.
        turned = platforms.choose(x.T, cpu=lax.optimization_barrier, default=_unchanged)
        change = lax.dot_general(turned, dw, (((0,), (0,)), ((), ())), precision=precision)
        return product(x, w), product(dx, w) + change

    return product
