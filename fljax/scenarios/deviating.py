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
    form = jax.eval_shape(lambda: honest)

    def of(function: Deviation) -> PyTree:
        told = jax.tree.map(jnp.asarray, function(message, knowledge))
        if (found := jax.eval_shape(lambda: told)) != form:
            expected = f"expected {name_of(function)} to give a message of the form of an honest one"
            raise ValueError(f"{expected}, {form}, got {found}")
        return told

    number = jnp.asarray(chosen)[knowledge.seat.id].astype(jnp.int32)
    return jax.lax.switch(number, [lambda: honest, *(lambda function=function: of(function) for function in functions)])
