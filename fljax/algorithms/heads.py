"""What FedPer, FedRep and FedBABU share: which leaves are the head, and local training of one part of the model."""

from __future__ import annotations

from typing import Any, Literal

import jax
from jaxtyping import Array, Int, Key, PyTree

from fljax import training
from fljax.core import trees
from fljax.protocol import Subset, Task
from fljax.protocol.roles import roles_of
from fljax.training import Local


def in_body(task: Task) -> list[bool]:
    """Whether each leaf of the model is outside of the last layer (``Task.roles``)."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return [role != "head" for role in roles_of(task, shapes)]


def train_part(
    key: Key[Array, ""],
    params: PyTree,
    subset: Subset,
    part: Literal["head", "trained"],
    *,
    task: Task,
    local: Local,
    round: Int[Array, ""] | int = 0,
) -> PyTree:
    """``params`` after local training of the head or of the other trained leaves; statistics move in either case."""
    found = roles_of(task, params)
    if part not in found:
        return params
    # What is held is no parameter here: neither weight decay nor momentum may move it.
    moving, held = trees.split(params, [role in (part, "statistic", "frozen") for role in found])

    def loss(moving: PyTree, x: Array, y: Array, position: Array, key: Any) -> Array:
        return task.losses(task.logits(trees.merge(moving, held), x, key), y)

    trained = training.train(key, moving, subset, task=task, local=local, round=round, loss=loss).params
    return trees.merge(trained, held)
