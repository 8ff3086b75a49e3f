"""Roles of a model's leaves: trained by gradients, or statistics that the model computes from batches.

The optimizers of clients and server, proximal terms, control variates, norms and clipping act on trained leaves only. A
statistic (the running averages of BatchNorm) is set in every local step, and averaged with the weights of the updates.

A training step reports the new value of a statistic as its gradient: ``old - new``, see ``record``. So a step of length
1 against the gradient sets the new value. The functions below keep it apart from the gradients of trained leaves.
All of them return their arguments unchanged if the task has no statistics.

Statistics are leaves of params, so every algorithm sends, averages and stores them, and loss functions need no second
output.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax.core import trees
from fljax.protocol.task import Role, Task

_UNTRAINED: frozenset[Role | None] = frozenset({"statistic", "frozen"})


def roles_of(task: Task, tree: PyTree) -> list[Role]:
    """The role of each leaf of ``tree``, in order.

    Raises:
      ValueError: if the task names a role for other leaves than those of ``tree``.
    """
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
    found = zip(leaves, _roles_and_gaps(task, tree), strict=True)
    mask = [None if leaf is None else role not in _UNTRAINED for leaf, role in found]
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
        other if role in _UNTRAINED else own
        for own, other, role in zip(leaves, others, _roles_and_gaps(task, tree), strict=True)
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


def _record_forward(logits: Array, old: PyTree, change: PyTree) -> tuple[Array, PyTree]:
    return logits, change


def _record_backward(change: PyTree, cotangent: Array) -> tuple[Array, PyTree, PyTree]:
    return cotangent, change, jax.tree.map(jnp.zeros_like, change)


_record.defvjp(_record_forward, _record_backward)


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


def _hold_forward(tree: PyTree) -> tuple[PyTree, None]:
    return tree, None


def _hold_backward(_: None, cotangent: PyTree) -> tuple[PyTree]:
    return (jax.tree.map(jnp.zeros_like, cotangent),)


_hold.defvjp(_hold_forward, _hold_backward)
