"""Deviations that are functions of what a client knows, which the numbers of a ``Strategy`` cannot say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fljax.core.names import name_of
from fljax.protocol import LocalData, Seat


class Knowledge(NamedTuple):
    """What a client knows when it sends a message.

    Attributes:
      seat: the ``round``, and its ``id``.
      key: a random key of its own in this round.
      down: what it received, in polls and in training.
      client: what it keeps from earlier rounds, as the algorithm's Client.
      data: its own rows; ``data.train.rows.size`` is their number.
    """

    seat: Seat
    key: Key[Array, ""]
    down: PyTree
    client: PyTree
    data: LocalData


# ``(message, knowledge) -> message`` of one client, traced: its honest Ballot or Up, and one of the same form.
Deviation = Callable[[Any, Knowledge], Any]


def made(
    functions: tuple[Deviation, ...],
    chosen: Float[Array, " N"] | Float[np.ndarray, " N"] | None,
    knowledge: Knowledge,
    message: PyTree,
) -> PyTree:
    """The message that the chosen function makes, 0: the honest one; a ValueError if it has another form."""
    if chosen is None or not functions or not knowledge.seat.known:
        return message
    honest = jax.tree.map(jnp.asarray, message)

    def of(function: Deviation) -> PyTree:
        told = function(message, knowledge)
        if not have_same_shapes(told, honest):
            shapes = (jax.tree.map(jnp.shape, tree) for tree in (honest, told))
            expected = f"expected {name_of(function)} to give a message of the form of an honest one"
            raise ValueError("{}, {}, got {}".format(expected, *shapes))
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), told, honest)

    number = jnp.asarray(chosen)[knowledge.seat.id].astype(jnp.int32)
    return jax.lax.switch(number, [lambda: honest, *(lambda function=function: of(function) for function in functions)])


def have_same_shapes(one: PyTree, other: PyTree) -> bool:
    """Whether two trees have the same structure, and leaves of the same shapes."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(jnp.shape(first) == jnp.shape(second) for first, second in pairs)
