"""What FedPer, FedRep and FedBABU share: which leaves are the head, and local training of one part of the model."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from fljax.algorithms.single_model import Learning, learning_by
from fljax.core import trees
from fljax.protocol import LocalData, Seat, Task, TrainingKey
from fljax.protocol.roles import roles_of
from fljax.training import Local, Trained


def in_body(task: Task) -> list[bool]:
    """Whether each leaf of the model is outside of the last layer (``Task.roles``)."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return [role != "head" for role in roles_of(task, shapes)]


def learning_of(part: Literal["head", "trained"], task: Task, local: Local) -> Learning:
    """Local training of the head or of the other trained leaves; statistics move in either case."""
    learning = learning_by(task, local)

    def split(model: PyTree) -> tuple[PyTree, PyTree | None]:
        """The leaves that move and those that do not; None: there is nothing to train."""
        found = roles_of(task, model)
        if part not in found:
            return model, None
        return trees.split(model, [role in (part, "statistic", "frozen") for role in found])

    def first(model: PyTree) -> PyTree:
        moving, held = split(model)
        return () if held is None else learning.first(moving)

    def train(key: Key[Array, ""], seat: Seat, model: PyTree, data: LocalData, state: PyTree = None) -> Trained:
        moving, held = split(model)
        if held is None:
            return Trained(model, jnp.zeros((), jnp.int32))

        # What is held is no parameter here: neither weight decay nor momentum may move it.
        def loss(moving: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
            return task.losses(task.logits(trees.merge(moving, held), x, key), y)

        trained = learning.train(key, seat, moving, data, state, loss=loss)
        return trained._replace(params=trees.merge(trained.params, held))

    return Learning(first, train)
