"""The task: a model, its loss and its score."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree


class Task(NamedTuple):
    """A model and how it is judged, as pure functions. ``fljax.models`` makes one from a flax module.

    Attributes:
      init: ``key -> params``.
      logits: ``(params, x, key=None) -> [b, ...]`` on prepared ``x``: the model's output, ``[b, classes]`` for a
        classifier. A key means training mode (dropout).
      loss: ``(logits, y) -> [b]``, per sample.
      features: ``(params, x) -> [b, z]``, the representation in front of the last layer.
      prepare: ``raw x -> x``: cast and standardise a batch of stored examples.
      augment: ``(key, x) -> x`` on a prepared training batch.
      is_head: ``params -> pytree of bool`` with the structure of params, True for the last layer.
      classes: the number of classes. Labels are then whole numbers ``[n]`` from 0 to ``classes - 1``. None: unknown, or
        the task has no classes. Algorithms with values per class need it.
      width: the length of a representation (z); None: unknown.
      score: ``(logits, y) -> [b]``, the score of each sample, from 0 to 1; its mean is the accuracy. None: the task has
        no accuracy, and metrics of accuracies do not exist.
    """

    init: Callable[[Key[Array, ""]], PyTree]
    logits: Callable[..., Float[Array, "b ..."]]
    loss: Callable[[Float[Array, "b ..."], Array], Float[Array, " b"]]
    features: Callable[[PyTree, Array], Float[Array, "b z"]] | None = None
    prepare: Callable[[Array], Array] | None = None
    augment: Callable[[Key[Array, ""], Array], Array] | None = None
    is_head: Callable[[PyTree], PyTree] | None = None
    classes: int | None = None
    width: int | None = None
    score: Callable[[Float[Array, "b ..."], Array], Array] | None = None


# Static: the fields are functions and Python numbers, nothing is traced.
jax.tree_util.register_static(Task)
