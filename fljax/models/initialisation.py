"""How the initial parameters of the built-in models are drawn: by flax's rules, or by those of PyTorch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Key, PyTree

from fljax.protocol import Task

Initialisation = Literal["flax", "framework"]

# What flax calls the products of an LSTM: of the input (i) or of the state (h), for each of four gates.
_GATES = frozenset(first + gate for first in "ih" for gate in "ifgo")


def initialised(task: Task, initialisation: Initialisation) -> Task:
    """The task with initial parameters that are drawn in the named way.

    "flax": as the layers of flax draw them. Kernels are normal with the variance ``1 / fan_in``, biases are 0, and
    embeddings of width d are normal with the variance ``1 / d``. Kernels of an LSTM's state are those of "framework".

    "framework": as the layers of PyTorch, the framework of most published code, draw them.

    - Dense layers and convolutions: kernels and biases are ``U(-b, b)`` with ``b = 1 / sqrt(fan_in)``, where fan_in is
      the product of all lengths of the kernel but the last. The norm of a kernel is that of flax's divided by 1.73.
    - LSTM layers: kernels are ``U(-b, b)`` with ``b = 1 / sqrt(hidden)``. PyTorch adds two biases, each ``U(-b, b)``; a
      bias here is their sum.
    - Embeddings: ``N(0, 1)``.
    - Scales and biases of a normalisation: 1 and 0, as in flax.

    Args:
      task: a built-in model; layers are known by flax's names for their parameters.
      initialisation: "flax" or "framework".

    Returns:
      The task. Equal arguments give the same one, so compiled programs are reused.

    Raises:
      ValueError: if ``initialisation`` is not a valid name.

    Source: PyTorch's documentation of ``torch.nn.Linear``, ``Conv2d``, ``LSTM`` and ``Embedding``.
    """
    if initialisation == "flax":
        return task
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
    found = dict(flat)
    for number, (path, leaf) in enumerate(sorted(flat.items())):
        own = jax.random.fold_in(key, number)
        *layer, name = path
        kernel = flat.get((*layer, "kernel"))
        if name == "embedding":
            drawn = jax.random.normal(own, leaf.shape, jnp.float32)
        elif name in ("kernel", "bias") and kernel is not None:
            gate = layer[-1] in _GATES
            bound = 1 / math.sqrt(kernel.shape[-1] if gate else math.prod(kernel.shape[:-1]))
            times = 2 if gate and name == "bias" else 1
            drawn = jax.random.uniform(own, (times, *leaf.shape), jnp.float32, -bound, bound).sum(axis=0)
        else:
            continue
        # As by flax, all dtypes get the same numbers.
        found[path] = drawn.astype(leaf.dtype)
    return unflatten_dict(found)
