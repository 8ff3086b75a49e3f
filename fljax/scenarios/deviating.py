"""Clients that count the rounds in which they train, and that send what a function of a user makes of their messages.

What a client pays follows from the count. A function is for lies that depend on what a client knows, which the numbers
of ``fljax.scenarios.strategic`` cannot say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax.core.names import name_of
from fljax.protocol import Algorithm, LocalData, Seat


class Knowledge(NamedTuple):
    """What a client knows when it sends a message.

    Attributes:
      round: 0-based.
      id: of the client.
      key: a random key of its own in this round.
      down: what it received, in polls and in training.
      client: what it keeps from earlier rounds, as the algorithm's Client.
      data: its own rows, ``fljax.protocol.LocalData``; ``data.train.rows.size`` is their number.
    """

    round: Int[Array, ""]
    id: Int[Array, ""]
    key: Key[Array, ""]
    down: PyTree
    client: PyTree
    data: LocalData


# ``(message, knowledge) -> message`` of one client, traced: its honest Ballot or Up, and one of the same form.
Deviation = Callable[[Any, Knowledge], Any]


class DeviatingClient(NamedTuple):
    """The wrapped algorithm's Client, and the number of rounds in which it trained."""

    inner: PyTree
    rounds: Int[Array, ""]


def deviating(
    inner: Algorithm, functions: tuple[Deviation, ...] = (), chosen: Float[Array, " N"] | None = None
) -> Algorithm:
    """Clients count the rounds in which they train; client i sends what ``functions[chosen_i - 1]`` makes; 0: honest.

    Raises:
      ValueError: if a function gives a message of another form than that of an honest client.
    """

    def sent(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData, message: PyTree) -> PyTree:
        if chosen is None or not functions or not seat.known:
            return message
        known = Knowledge(seat.round, seat.id, key, down, client, data)
        form = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, message))

        def form_of(function: Deviation) -> Callable[[], PyTree]:
            def lie() -> PyTree:
                made = jax.tree.map(jnp.asarray, function(message, known))
                if (found := jax.eval_shape(lambda: made)) != form:
                    raise ValueError(
                        f"expected {name_of(function)} to give a message of the form of an honest one, {form}, got "
                        f"{found}"
                    )
                return made

            return lie

        choices = [lambda: jax.tree.map(jnp.asarray, message), *map(form_of, functions)]
        return jax.lax.switch(chosen[seat.id].astype(jnp.int32), choices)

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> DeviatingClient:
        return DeviatingClient(inner.init_client(key, seat, down, data), jnp.zeros((), jnp.int32))

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: DeviatingClient, data: LocalData) -> PyTree:
        assert inner.poll is not None
        ballot = inner.poll.ask(key, seat, down, client.inner, data)
        return sent(key, seat, down, client.inner, data, ballot)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: DeviatingClient, data: LocalData
    ) -> tuple[PyTree, DeviatingClient]:
        up, new = inner.train(key, seat, down, client.inner, data)
        return sent(key, seat, down, client.inner, data, up), DeviatingClient(new, client.rounds + 1)

    def personal(key: Key[Array, ""], seat: Seat, down: PyTree, client: DeviatingClient, data: LocalData) -> PyTree:
        return inner.deploy(key, seat, down, client.inner, data)

    return inner._replace(
        init_client=init_client,
        poll=None if inner.poll is None else inner.poll._replace(ask=ask),
        train=train,
        personal=None if inner.personal is None else personal,
    )
