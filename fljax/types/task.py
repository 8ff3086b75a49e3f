"""What is trained, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree


class Task(NamedTuple):
    """A model and how it is judged, as pure functions. ``fljax.models`` makes one from a flax module.

    Attributes:
      init: ``key -> params``.
      logits: ``(params, x, key=None) -> [b, ...]`` on prepared ``x``: what the model says, ``[b, classes]`` where it
        classifies. A key means training mode (dropout).
      loss: ``(logits, y) -> [b]``, per sample.
      features: ``(params, x) -> [b, z]``, the representation in front of the last layer.
      prepare: ``raw x -> x``: cast and standardise a batch of stored examples.
      augment: ``(key, x) -> x`` on a prepared training batch.
      is_head: ``params -> pytree of bool`` with the structure of params, True for the last layer.
      classes: how many classes there are. Labels are then whole numbers ``[n]`` below it. None: not known, or the task
        has no classes. Algorithms that keep something for each class ask for it.
      width: how long a representation is (z); None: not known.
      score: ``(logits, y) -> [b]``, how right each sample is, from 0 to 1. Its mean is the accuracy. None: the task has
        no accuracy, and no metric that is made of accuracies exists.
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


# Functions and numbers of classes: nothing that could be traced.
jax.tree_util.register_static(Task)
