"""What all networks of images and features have in common: their options, and how a flax module becomes a Task."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, ParamSpec, TypedDict

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from fljax.models.augment import named_augmentation
from fljax.models.initialisation import Initialisation, initialised
from fljax.models.prepare import checked_dtype
from fljax.models.task import task_from_module
from fljax.protocol import Task

P = ParamSpec("P")


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
) -> Task:
    """The Task of a flax module whose last layer is called ``head``.

    Args:
      module: called with prepared examples ``[b, ...]``; returns logits.
      input_shape: shape of one stored example.
      classes: number of classes.
      prepare: maps stored examples to model inputs; None: ``uint8`` pixels are divided by 255.
      augment: ``"crop_flip"`` or ``(key, x) -> x`` on prepared training batches; None: no augmentation.
      dtype: dtype of parameters and activations.
      compute_dtype: dtype of activations and products (e.g. ``"bfloat16"``); None: ``dtype``. See ``task_from_module``.
      initialisation: ``"flax"``, or ``"framework"``: kernels, biases ~ U(-b, b), ``b = fan_in ** -0.5``, as PyTorch.

    Raises:
      ValueError: if ``input_shape`` is no sequence, or ``initialisation`` is not a valid name
        (``fljax.models.initialisation`` has both rules).
    """
    if isinstance(input_shape, str) or not isinstance(input_shape, Iterable):
        raise ValueError(f"expected input_shape to be the shape of one example, such as (28, 28), got {input_shape!r}")
    task = task_from_module(
        module,
        jax.ShapeDtypeStruct((1, *input_shape), checked_dtype(dtype)),
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


def network(builder: Callable[P, Task]) -> Callable[P, Task]:
    """Shows the options of ``Common`` in a builder's signature and docstring, in place of its ``**common``.

    Type checkers read them from ``**common: Unpack[Common]``; ``inspect``, configs and ``help`` read these.
    The function itself is returned. The docstring is to explain ``classes`` in a line of ``Args``.
    """
    hints = typing.get_type_hints(network_task)
    shared = [
        each.replace(annotation=hints[name])
        for name, each in inspect.signature(network_task).parameters.items()
        if name in Common.__annotations__
    ]
    signature = inspect.signature(builder)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    named = [each for each in own if each.kind is each.KEYWORD_ONLY]
    parameters = [*(each for each in own if each not in named), *shared, *named]
    shown: Any = builder
    shown.__signature__ = signature.replace(parameters=parameters)
    types = {each.name: each.annotation for each in parameters}
    shown.__annotations__ = types | {"return": signature.return_annotation}
    if builder.__doc__:  # there are none under ``python -OO``
        shown.__doc__ = _explained(inspect.getdoc(builder) or "", [each.name for each in shared])
    return builder


def _explained(text: str, names: Sequence[str]) -> str:
    """The docstring with the lines of ``network_task`` for these parameters, after the line of ``classes``."""
    known = {line.split(":")[0].strip(): line for line in (inspect.getdoc(network_task) or "").splitlines()}
    lines = text.splitlines()
    after = 1 + next(place for place, line in enumerate(lines) if line.strip().startswith("classes:"))
    return "\n".join([*lines[:after], *(known[name] for name in names), *lines[after:]])
