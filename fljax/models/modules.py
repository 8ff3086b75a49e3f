"""What a flax module becomes: pure functions of params, shared by linen and nnx.

In training, BatchNorm leaves out the rows that pad a batch. Layers of linen are intercepted. nnx has no such hook, and
flax keeps every class of a layer; so each class of BatchNorm gets one subclass, and a context variable has the rows.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import errors
from jaxtyping import Array, Bool

from fljax.protocol import TrainingBatch


class Functions(NamedTuple):
    """The functions of a linen or nnx module.

    Attributes:
      init: ``key -> params``, with statistics beside the parameters of their layer.
      logits: ``(params, x, key) -> output``; the key is as for ``Task.logits``.
      features: ``(params, x) -> [b, ...]``; None: the module has no such method.
      statistics: the paths of the statistics in params.
    """

    init: Callable[..., Any]
    logits: Callable[..., Any]
    features: Callable[..., Any] | None
    statistics: frozenset[str]


def has_features(module: Any) -> bool:
    """Whether the module has a method ``features``; an attribute of this name is usually a layer's width."""
    return inspect.isfunction(getattr(type(module), "features", None))


def split_mode(mode: Any) -> tuple[Any, Bool[Array, " b"] | None]:
    """The random key of a training step, and the real rows of its batch (None: all of them)."""
    return (mode.key, mode.real) if isinstance(mode, TrainingBatch) else (mode, None)


def row_mask(real: Bool[Array, " b"], x: Array, mask: Array | None = None) -> Array:
    """The real rows as a mask of the input of BatchNorm: ``[b, 1, ..., 1]``, within a ``mask`` of the module's own.

    A batch without real rows has a mask of all rows, so that no mean is 0 / 0; its gradient is dropped.

    Raises:
      ValueError: if the first axis of the input is not that of the batch.
    """
    if x.shape[0] != real.shape[0]:
        raise ValueError(
            f"expected BatchNorm to get one row for each of {real.shape[0]} examples, got an input of shape {x.shape}"
        )
    rows = jnp.reshape(real | ~jnp.any(real), (-1, *[1] * (x.ndim - 1)))
    return rows if mask is None else jnp.reshape(mask, (1,) * (x.ndim - mask.ndim) + mask.shape) & rows


@contextlib.contextmanager
def random_in_training_only(module: Any) -> Iterator[None]:
    """Turns flax's error about a draw without a key, or a change of state in evaluation, into one sentence."""
    try:
        yield
    except errors.InvalidRngError as error:
        missing = str(error).split(" (http")[0]
        raise ValueError(
            f"expected {type(module).__name__} to draw random numbers in training only, from the stream 'dropout', got "
            f"{missing}; a keyword of __call__ such as train or deterministic tells it whether it trains"
        ) from None
    except errors.ModifyScopeVariableError:
        raise ValueError(
            f"expected {type(module).__name__} to change running averages in training only, got a change in "
            "evaluation; a keyword of __call__ such as train tells it whether it trains, as in "
            "nn.BatchNorm(use_running_average=not train)"
        ) from None


def refuse_state(kinds: set[str], name: str) -> None:
    """Raises a ValueError if a module has state that is neither parameters nor running averages."""
    if kinds:
        raise ValueError(
            f"expected a module whose only state is parameters and running averages, got {sorted(kinds)} in {name}"
        )


def zeros(x: jax.ShapeDtypeStruct) -> Array:
    """An input of zeros."""
    return jnp.zeros(x.shape, x.dtype)
