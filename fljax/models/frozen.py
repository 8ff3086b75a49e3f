"""Tasks with frozen leaves: fine-tuning of a part of a model, such as adapters on a fixed backbone.

Frozen leaves are arrays in a ``jax.tree_util.Partial`` of a Task, so in a ``Plan`` they are arguments of the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from fljax.core import trees
from fljax.models.starting import give
from fljax.protocol import Task, roles


def freeze(task: Task, params: PyTree, chosen: Callable[[str], bool], *, draw: bool = True) -> Task:
    """The task with some leaves fixed at their values in ``params``; the others are its params.

    Frozen leaves are held once, for all clients and seeds: they are not trained, stacked by client, or sent. In a
    ``Plan`` they are arguments of the compiled program, so backbones of equal shapes share a program. An ``Algorithm``
    that is built outside a ``Plan`` holds them as constants of its programs.

    Args:
      task: a task without frozen leaves.
      params: values of all leaves, such as pretrained ones, like ``task.init(key)``.
      chosen: maps a leaf's path, such as ``"backbone/Dense_0/kernel"``, to whether the leaf is frozen. Running averages
        of ``statistics="frozen"`` are frozen, too.
      draw: whether the trained leaves start from ``task.init``, different for each seed; False: from ``params``.

    Returns:
      A task whose params are like ``params``, with None in place of frozen leaves.

    Raises:
      ValueError: if the shapes of ``params`` are not those of the task, if no leaf or every leaf is chosen, if a chosen
        leaf is a running average that training moves, or if the task has frozen leaves already.
    """
    if isinstance(task.logits, jax.tree_util.Partial):
        raise ValueError("expected a task without frozen leaves, got one that freeze made; choose all leaves at once")
    params = jax.tree.map(jnp.asarray, params)
    _check_shapes(task, params)
    paths = trees.paths_of(params)
    found = roles.roles_of(task, params)
    mask = tuple(role == "frozen" or bool(chosen(path)) for path, role in zip(paths, found, strict=True))
    if moving := [path for path, role, yes in zip(paths, found, mask, strict=True) if yes and role == "statistic"]:
        raise ValueError(
            f"expected frozen running averages to stay as they are in training, got {moving[0]!r}; make the task with "
            "task_from_module(..., statistics='frozen')"
        )
    if not any(mask) or all(mask):
        raise ValueError(
            f"expected some leaves to be frozen, and not all, got {sum(mask)} of {len(mask)}; valid names are "
            f"{', '.join(paths)}"
        )
    fixed, given = trees.split(params, mask)
    return task._replace(
        init=_Drawn(task.init, mask) if draw else jax.tree_util.Partial(give, given),
        logits=jax.tree_util.Partial(_Merged(task.logits), fixed),
        features=None if task.features is None else jax.tree_util.Partial(_Merged(task.features), fixed),
    )


@dataclasses.dataclass(frozen=True)
class _Merged:
    """A function of all leaves, called with frozen and trained leaves apart. Equal functions share programs."""

    function: Callable[..., Array]

    def __call__(self, frozen: PyTree, params: PyTree, *arguments: Any, **keywords: Any) -> Array:
        return self.function(trees.merge(frozen, params), *arguments, **keywords)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """``init`` without the frozen leaves."""

    init: Callable[[Key[Array, ""]], PyTree]
    frozen: tuple[bool, ...]

    def __call__(self, key: Key[Array, ""]) -> PyTree:
        return trees.split(self.init(key), self.frozen)[1]


def _check_shapes(task: Task, params: PyTree) -> None:
    expected = jax.eval_shape(task.init, jax.random.key(0))
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each) for each in (expected, params)]
    if jax.tree.structure(expected) != jax.tree.structure(params) or shapes[0] != shapes[1]:
        raise ValueError(f"expected params like those of the task, {shapes[0]}, got {shapes[1]}")
