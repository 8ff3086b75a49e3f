"""What FedPer, FedRep and FedBABU share: which leaves are the head, and local training of one part of the model."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from fljax import training
from fljax.core import trees
from fljax.protocol import Subset, Task
from fljax.protocol.roles import roles_of
from fljax.training import Local, Trained

Part = Literal["head", "trained"]


def in_body(task: Task) -> list[bool]:
    """Whether each leaf of the model is outside of the last layer (``Task.roles``)."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return [role != "head" for role in roles_of(task, shapes)]


def train_part(
    key: Key[Array, ""],
    params: PyTree,
    subset: Subset,
    part: Part,
    *,
    task: Task,
    local: Local,
    round: Int[Array, ""] | int = 0,
    state: PyTree = None,
) -> Trained:
    """``training.train`` of the head or of the other trained leaves; statistics move in either case."""
    moving, held = _split(task, params, part)
    if held is None:
        return Trained(params, jnp.zeros((), jnp.int32), () if state is None else state)

    # What is held is no parameter here: neither weight decay nor momentum may move it.
    def loss(moving: PyTree, x: Array, y: Array, position: Array, key: Any) -> Array:
        return task.losses(task.logits(trees.merge(moving, held), x, key), y)

    trained = training.train(key, moving, subset, task=task, local=local, round=round, loss=loss, state=state)
    return trained._replace(params=trees.merge(trained.params, held))


def first_state_of_part(task: Task, local: Local, params: PyTree, part: Part) -> PyTree:
    """``training.first_state`` of the head or of the other trained leaves."""
    moving, held = _split(task, params, part)
    return () if held is None else training.first_state(task, local, moving)


def _split(task: Task, params: PyTree, part: Part) -> tuple[PyTree, PyTree | None]:
    """The leaves that move and those that do not; None: there is nothing to train."""
    found = roles_of(task, params)
    if part not in found:
        return params, None
    return trees.split(params, [role in (part, "statistic", "frozen") for role in found])
