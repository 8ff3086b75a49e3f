"""The task, which is a model, its loss and its score, and the roles of the model's leaves.

``Task.score`` may be None. Then no metric that uses accuracies exists. Code that compares accuracies calls
``fljax.training.check_score``, and code that counts classes calls ``fljax.training.check_classes``.

A leaf is trained by gradients, or it is a statistic that the model computes from batches.
The optimizers of clients and server, proximal terms, control variates, norms and clipping act on trained leaves only. A
statistic (the running averages of BatchNorm) is set in every local step, and averaged with the weights of the updates.

A training step reports the new value of a statistic as its gradient: ``old - new``, see ``record``. So a step of length
1 against the gradient sets the new value. The functions below keep it apart from the gradients of trained leaves.
All of them return their arguments unchanged if the task has no statistics.

Statistics are leaves of params, so every algorithm sends, averages and stores them, and loss functions need no second
output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from fljax.core import trees, users

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

    def losses(self, logits: Float[Array, "b ..."], y: Array) -> Float[Array, " b"]:
        """``loss``, from logits and in numbers of float32 or wider: losses are added up, compared and judged."""
        return _judged("loss", self.loss, logits, y)

    def scores(self, logits: Float[Array, "b ..."], y: Array) -> Array:
        """``score``, as ``losses``; the task must have one."""
        return _judged("score", self.score, logits, y)


def _judged(name: str, judge: Any, logits: Array, y: Array) -> Array:
    found = users.call(f"the {name}", "(outputs, labels)", judge, trees.widened(logits), y)
    return per_sample(judge, found, len(y), name)


def per_sample(judge: Callable[..., Any], values: Any, count: int, name: str = "loss") -> Float[Array, " b"]:
    """``values`` of a loss or score, wide, after a check that they are one number for each of ``count`` samples.

    Raises:
      ValueError: if they are something else; broadcasting would hide another shape.
    """
    wanted = f"one number per sample, of shape [{count}] for {count} samples"
    return trees.wide(users.numbers(f"the {name}", judge, wanted, values, (count,)))


class _Held(NamedTuple):
    """A function that holds arrays, without them: its structure, and the places of its arrays among all leaves."""

    structure: Any
    places: tuple[int, ...]


def _flatten(task: Task) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    leaves: dict[int, Any] = {}  # by identity: an array that several functions hold is one leaf
    static: list[Any] = []
    for function in task:
        if isinstance(function, jax.tree_util.Partial):
            arrays, structure = jax.tree.flatten(function)
            for leaf in arrays:
                leaves.setdefault(id(leaf), leaf)
            order = list(leaves)
            static.append(_Held(structure, tuple(order.index(id(leaf)) for leaf in arrays)))
        else:
            static.append(function)
    return tuple(leaves.values()), tuple(static)


def _unflatten(static: tuple[Any, ...], leaves: tuple[Any, ...]) -> Task:
    return Task(
        *(
            jax.tree.unflatten(function.structure, [leaves[place] for place in function.places])
            if isinstance(function, _Held)
            else function
            for function in static
        )
    )


# Leaves of a task are the arrays that its functions hold. All else is static.
jax.tree_util.register_pytree_node(Task, _flatten, _unflatten)


_UNTRAINED: frozenset[Role | None] = frozenset({"statistic", "frozen"})


def roles_of(task: Task, tree: PyTree) -> list[Role]:
    """The role of each leaf of ``tree``, in order."""
    return [role for role in _roles_and_gaps(task, tree) if role is not None]


def _roles_and_gaps(task: Task, tree: PyTree) -> list[Role | None]:
    """The role of each leaf, and None where ``tree`` has None in place of a leaf."""
    leaves = jax.tree.leaves(tree, is_leaf=_is_none)
    if task.roles is None:
        return [None if leaf is None else "trained" for leaf in leaves]
    named = jax.tree.leaves(task.roles(tree), is_leaf=_is_none)
    if len(named) != len(leaves):
        raise ValueError(f"expected a role for each of {len(leaves)} leaves, got {len(named)} roles")
    return [None if leaf is None else role for leaf, role in zip(leaves, named, strict=True)]


def has_statistics(task: Task, tree: PyTree) -> bool:
    """Whether some leaf of ``tree``, which has the paths of params, is a statistic (moving or frozen)."""
    return task.roles is not None and not _UNTRAINED.isdisjoint(roles_of(task, tree))


def replace_statistics(task: Task, tree: PyTree, source: PyTree) -> PyTree:
    """The trained leaves of ``tree`` with the statistics of ``source``, both with the paths of params."""
    return _choose(task, tree, source)


def zero_statistics(task: Task, tree: PyTree) -> PyTree:
    """``tree`` with zeros in place of statistics, so that norms and inner products are those of trained leaves."""
    return _choose(task, tree, jax.tree.map(jnp.zeros_like, tree))


def trained_leaves(task: Task, tree: PyTree) -> PyTree:
    """``tree`` without its statistics: None stands in their place."""
    return _choose(task, tree, jax.tree.map(lambda _: None, tree))


def trained_mask(task: Task, tree: PyTree) -> PyTree:
    """A tree of bools like ``tree``: whether a leaf is trained."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_none)
    roles = zip(leaves, _roles_and_gaps(task, tree), strict=True)
    mask = [None if leaf is None else role not in _UNTRAINED for leaf, role in roles]
    return jax.tree.unflatten(structure, mask)


def add_scaled(task: Task, models: PyTree, step: PyTree, rate: Any) -> PyTree:
    """``models + rate * step`` for trained leaves and ``models + step`` for statistics, in the dtypes of ``models``."""
    moved = trees.add_scaled(models, step, rate)
    return replace_statistics(task, moved, trees.add_scaled(models, step)) if has_statistics(task, models) else moved


def _choose(task: Task, tree: PyTree, source: PyTree) -> PyTree:
    if not has_statistics(task, tree):
        return tree
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_none)
    others = jax.tree.leaves(source, is_leaf=_is_none)
    chosen = [
        other if role in _UNTRAINED else leaf
        for leaf, other, role in zip(leaves, others, _roles_and_gaps(task, tree), strict=True)
    ]
    return jax.tree.unflatten(structure, chosen)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def record(logits: Array, old: PyTree, new: PyTree) -> Array:
    """``logits`` unchanged; the gradient of any function of them by ``old`` is ``old - new``.

    ``Task.logits`` of a task with statistics calls it in training mode. Local training then sets ``new``. A loss may
    call ``Task.logits`` once: each call adds its own ``old - new``, so views of a batch are concatenated first.
    Forward-mode derivatives of such a loss do not exist.

    Args:
      logits: the model's output ``[b, ...]``, computed from ``hold(old)``.
      old: the statistics in params.
      new: the statistics after this batch, like ``old``.
    """
    return _record(logits, old, jax.tree.map(lambda a, b: (a - b).astype(a.dtype), hold(old), new))


@jax.custom_vjp
def _record(logits: Array, old: PyTree, change: PyTree) -> Array:
    return logits


_record.defvjp(
    lambda logits, old, change: (logits, change),
    lambda change, cotangent: (cotangent, change, jax.tree.map(jnp.zeros_like, change)),
)


def hold_statistics(task: Task, params: PyTree) -> PyTree:
    """``params``, through whose statistics no gradient of a loss flows (``hold``)."""
    return replace_statistics(task, params, hold(params)) if has_statistics(task, params) else params


def hold(tree: PyTree) -> PyTree:
    """``tree`` itself, with gradient zero.

    Unlike ``stop_gradient``, it holds for the gradient of a loss only: a derivative of that gradient, such as one
    through rounds, sees the identity.
    """
    return _hold(tree)  # a plain function, as pickle cannot load those of JAX that functions of a task refer to


@jax.custom_vjp
def _hold(tree: PyTree) -> PyTree:
    return tree


_hold.defvjp(lambda tree: (tree, None), lambda _, cotangent: (jax.tree.map(jnp.zeros_like, cotangent),))
