"""The task: a model, its loss and its score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Key, PyTree

Role = Literal["trained", "head", "statistic", "frozen"]


class TrainingBatch(NamedTuple):
    """The third argument of ``Task.logits`` in training, for a task with statistics.

    Attributes:
      key: the random key of the step.
      real: ``[b]``, which rows of the batch are examples. Statistics of a batch leave out the other rows.
    """

    key: Key[Array, ""]
    real: Bool[Array, " b"]


class Task(NamedTuple):
    """A model and how it is judged, as pure functions. ``fljax.models`` makes one from a flax module.

    A function that is a ``jax.tree_util.Partial`` holds arrays, such as the frozen layers of ``fljax.models.freeze``.
    In a ``Plan`` these arrays are arguments of the compiled program.

    Attributes:
      init: ``key -> params``.
      logits: ``(params, x, key=None) -> [b, ...]`` on prepared ``x``: the model's output, ``[b, classes]`` for a
        classifier. A key means training mode (dropout). If the task has statistics, a ``TrainingBatch`` replaces the
        key, and the function reports new statistics by ``fljax.roles.record``.
      loss: ``(logits, y) -> [b]``, per sample.
      features: ``(params, x) -> [b, z]``, the representation in front of the last layer.
      prepare: ``raw x -> x``: cast and standardise a batch of stored examples.
      augment: ``(key, x) -> x`` on a prepared training batch.
      roles: ``tree -> pytree of Role``: the role of each leaf of params, or of a tree with the same paths. "trained":
        moved by gradients. "head": trained, and in the last layer. "statistic": the model computes it from batches, as
        BatchNorm computes its running averages. "frozen": a statistic that nothing moves. None: all leaves are trained.
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
    roles: Callable[[PyTree], PyTree] | None = None
    classes: int | None = None
    width: int | None = None
    score: Callable[[Float[Array, "b ..."], Array], Array] | None = None


_Static = tuple[Any, ...]


def _flatten(task: Task) -> tuple[tuple[jax.tree_util.Partial, ...], _Static]:
    holding = tuple(each for each in task if isinstance(each, jax.tree_util.Partial))
    return holding, tuple(_HOLDING if isinstance(each, jax.tree_util.Partial) else each for each in task)


def _unflatten(static: _Static, holding: tuple[jax.tree_util.Partial, ...]) -> Task:
    functions = iter(holding)
    return Task(*(next(functions) if each is _HOLDING else each for each in static))


class _HOLDING:
    """The mark of a function that holds arrays."""


# Leaves of a task are the arrays that its functions hold. All else is static.
jax.tree_util.register_pytree_node(Task, _flatten, _unflatten)
