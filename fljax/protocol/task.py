"""The task: a model, its loss and its score.

``Task.score`` may be None. Then no metric that uses accuracies exists. Code that compares accuracies calls
``fljax.training.check_score``, and code that counts classes calls ``fljax.training.check_classes``.
"""

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


# What a loss gets for ``Task.logits`` in training.
TrainingKey = Key[Array, ""] | TrainingBatch


class Task(NamedTuple):
    """A model and how it is judged, as pure functions. ``fljax.models`` makes one from a flax module.

    A function that is a ``jax.tree_util.Partial`` holds arrays, such as the frozen layers of ``fljax.models.freeze``.
    In a ``Plan`` these arrays are arguments of the compiled program.

    Attributes:
      init: ``key -> params``.
      logits: ``(params, x, key=None) -> [b, ...]`` on prepared ``x``: the model's output, ``[b, classes]`` for a
        classifier. A key means training mode (dropout). If the task has statistics, a ``TrainingBatch`` replaces the
        key, and the function reports new statistics by ``fljax.protocol.roles.record``.
      loss: ``(logits, y) -> [b]``, per sample.
      features: ``(params, x) -> [b, z]``, the representation in front of the last layer.
      prepare: ``raw x -> x``: cast and standardise a batch of stored examples.
      augment: ``(key, x) -> x`` on a prepared training batch.
      roles: ``tree -> pytree of Role``: the role of each leaf of params, or of a tree with the same paths. "trained":
        moved by gradients. "head": trained, and in the last layer. "statistic": the model computes it from batches, as
        BatchNorm computes its running averages. "frozen": a statistic that nothing moves.
        None: all leaves are trained.
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


class _Held(NamedTuple):
    """A function that holds arrays, without them: its structure, and the places of its arrays among all leaves."""

    structure: Any
    places: tuple[int, ...]


def _flatten(task: Task) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    leaves: dict[int, Any] = {}  # by identity: an array that several functions hold is one leaf
    static: list[Any] = []
    for each in task:
        if isinstance(each, jax.tree_util.Partial):
            own, structure = jax.tree.flatten(each)
            for leaf in own:
                leaves.setdefault(id(leaf), leaf)
            order = list(leaves)
            static.append(_Held(structure, tuple(order.index(id(leaf)) for leaf in own)))
        else:
            static.append(each)
    return tuple(leaves.values()), tuple(static)


def _unflatten(static: tuple[Any, ...], leaves: tuple[Any, ...]) -> Task:
    return Task(
        *(
            jax.tree.unflatten(each.structure, [leaves[place] for place in each.places])
            if isinstance(each, _Held)
            else each
            for each in static
        )
    )


# Leaves of a task are the arrays that its functions hold. All else is static.
jax.tree_util.register_pytree_node(Task, _flatten, _unflatten)
