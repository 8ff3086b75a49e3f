"""Behaviours as data: which clients send something else than they should, and in which rounds.

Who does is an array, given or drawn from the seed. It belongs to the clients: the server shows each of them its own row
once, before its first round. So runs with different arrays share a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.scenarios.common import applied, with_server
from fljax.types import Algorithm, Census, PerClient, Poll

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree

    # By client id, or by round and client id; zeros and ones are taken as well.
    Who = Bool[Array, " N"] | Bool[Array, "rounds N"] | Float[Array, " N"] | Float[Array, "rounds N"]
    # ``(key, population) -> [N] or [rounds, N]``
    Behaviour = Callable[[Any, int], Array]


class BehavingServer(NamedTuple):
    """The wrapped algorithm's Server, and who behaves, which no algorithm reads."""

    inner: PyTree
    behaviour: PerClient


class BehavingDown(NamedTuple):
    """What a client is shown before its first round: the wrapped algorithm's Down, and how it is to behave."""

    inner: PyTree
    behaviour: Bool[Array, "*rounds"]


class BehavingClient(NamedTuple):
    """The wrapped algorithm's Client, and how it behaves."""

    inner: PyTree
    behaviour: Bool[Array, "*rounds"]


def given(who: Who) -> Behaviour:
    """Those of an array ``[N]``, or ``[rounds, N]``, which is repeated where a run is longer.

    Raises:
      ValueError: if it has another number of dimensions; later, if it is of another number of clients.
    """
    table = jnp.asarray(who) != 0
    if table.ndim not in (1, 2) or table.shape[0] == 0:
        raise ValueError(f"expected who to be [clients] or [rounds, clients], got shape {table.shape}")

    def found(key: Any, population: int) -> Array:
        if table.shape[-1] != population:
            raise ValueError(f"expected who to have an entry for each of {population} clients, got {table.shape[-1]}")
        return table

    return found


def named(ids: Sequence[int]) -> Behaviour:
    """The clients with these ids.

    Raises:
      ValueError: if they are no different whole numbers from 0; later, if they are not all ids of clients.
    """
    chosen = tuple(ids)
    if len(set(chosen)) != len(chosen) or any(not isinstance(id, int | np.integer) or id < 0 for id in chosen):
        raise ValueError(f"expected different ids of clients from 0 for ids, got {list(chosen)}")

    def found(key: Any, population: int) -> Array:
        if max(chosen, default=-1) >= population:
            raise ValueError(f"expected ids of clients from 0 to {population - 1} for ids, got {list(chosen)}")
        return jnp.zeros(population, bool).at[jnp.asarray(chosen, jnp.int32)].set(True)

    return found


def drawn(fraction: float | Array, number: int) -> Behaviour:
    """``round(fraction N)`` clients, drawn with a key into which ``number`` is folded."""

    def found(key: Any, population: int) -> Array:
        score = jax.random.uniform(jax.random.fold_in(key, number), (population,))
        place = jnp.argsort(jnp.argsort(score))
        return place < jnp.round(jnp.asarray(fraction, score.dtype) * population)

    return found


def behaving(
    inner: Algorithm,
    name: str,
    behaviour: Behaviour,
    *,
    sent: Callable[[Any, Array, PyTree], PyTree],
    answered: Callable[[Array, PyTree], PyTree] | None = None,
    counted: bool = True,
) -> Algorithm:
    """``inner`` in which some clients send something else.

    Args:
      inner: any algorithm.
      name: of the scenario.
      behaviour: who behaves so: ``(key, population) -> [N] or [rounds, N]`` of bools; unseen clients never do.
      sent: ``(key, behaves, up) -> up``: what one client sends, with the key of its training; ``behaves`` is ``[]``.
      answered: ``(behaves, ballot) -> ballot``; None: ballots stay as they are.
      counted: whether metrics count clients that behave so in some round.

    Returns:
      The algorithm. What is sent in a round has the size that it had.
    """
    own = with_server(inner, lambda server: server.inner, lambda server, new: server._replace(inner=new))

    def init_server(key: Any, census: Census) -> BehavingServer:
        table = behaviour(key, census.train.shape[0])
        return BehavingServer(inner.init_server(key, census), PerClient(table.T))  # [N] or [N, rounds]

    def send(server: BehavingServer, seat: Any) -> Any:
        down = own.send(server, seat)
        return BehavingDown(down, server.behaviour) if seat.first else down  # type: ignore[arg-type]  # its own row

    def init_client(key: Any, seat: Any, down: BehavingDown, data: Any) -> BehavingClient:
        return BehavingClient(inner.init_client(key, seat, down.inner, data), down.behaviour)

    def behaves(client: BehavingClient, seat: Any) -> Array:
        row = client.behaviour
        return row if row.ndim == 0 else row[seat.round % row.shape[0]]

    def ask(key: Any, seat: Any, down: Any, client: BehavingClient, data: Any) -> PyTree:
        assert inner.poll is not None
        ballot = inner.poll.ask(key, seat, down, client.inner, data)
        return ballot if answered is None else answered(behaves(client, seat), ballot)

    def train(key: Any, seat: Any, down: Any, client: BehavingClient, data: Any) -> tuple[PyTree, BehavingClient]:
        up, new = inner.train(key, seat, down, client.inner, data)
        return sent(key, behaves(client, seat), up), client._replace(inner=new)

    def personal(key: Any, seat: Any, down: Any, client: BehavingClient, data: Any) -> PyTree:
        return inner.deploy(key, seat, down, client.inner, data)

    def counts(server: BehavingServer, seat: Any) -> Any:
        honest = ~jnp.any(server.behaviour)  # type: ignore[arg-type]  # its own row
        return honest if own.counts is None else honest & own.counts(server, seat)

    return own._replace(
        init_server=init_server,
        send=send,
        init_client=init_client,
        poll=None if inner.poll is None else Poll(ask, inner.poll.every),
        train=train,
        personal=None if inner.personal is None else personal,
        counts=own.counts if counted else counts,
        scenarios=applied(inner, name),
    )
