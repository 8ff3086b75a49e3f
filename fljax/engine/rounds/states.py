"""The state of a run between rounds, and the state before round 0.

Clients' states are stacked by client. ``scaffold``, ``ditto``, ``pfedme``, ``fedala``, ``fedsoft``, ``fedproto``,
``fedfomo``, ``lg_fedavg`` and ``fedbn`` (the clients' own layers) and ``standalone`` keep a model per client. ``iafl``,
``cgsv``, ``cgsv_iafl``, ``rank`` and ``fedfomo`` keep one per client at the server.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, Integer, PyTree, UInt

from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.federations import census, local_data
from fljax.engine.rounds.keys import Purpose, client_key, round_key
from fljax.engine.rounds.polling import poll
from fljax.protocol import Algorithm, ClientData, Federation, Seat


class State(NamedTuple):
    """Everything that the next round needs. A run that continues from a saved state equals an uninterrupted run.

    Attributes:
      seed: seed of the run.
      round: number of rounds done.
      server: the algorithm's Server.
      clients: the algorithm's Client, stacked by client id ``[N, ...]``.
      ballots: the last ballots by client id, or ``()``.
      diverged: the round in which a NaN or infinity appeared and the state was frozen; -1 if there was none.
    """

    seed: UInt[Array, ""]
    round: Int[Array, ""]
    server: PyTree
    clients: PyTree
    ballots: PyTree
    diverged: Int[Array, ""]


def first_down(algorithm: Algorithm, server: PyTree, seat: Seat) -> PyTree:
    """The Down of a client before its first round, for ``init_client``."""
    return algorithm.down(server, seat._replace(first=True))


def initial_server(algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""]) -> PyTree:
    """The Server before round 0."""
    return algorithm.init_server(round_key(seed, Purpose.INIT_SERVER), census(federation))


def initial_clients(
    algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""], server: PyTree, clients: ClientData
) -> PyTree:
    """The Clients of ``clients`` before their first round, stacked."""
    key, zero = round_key(seed, Purpose.INIT_CLIENT), jnp.zeros((), jnp.int32)

    def one(client: ClientData) -> PyTree:
        seat = Seat(zero, client.id, zero)
        down = first_down(algorithm, server, seat)
        return algorithm.init_client(client_key(key, client.id), seat, down, local_data(federation, client))

    return eager.map_all(one, clients)


def no_ballots(
    algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""], server: PyTree, clients: PyTree
) -> PyTree:
    """The ballots before the first poll, zeros; ``()`` if nobody is polled."""
    if algorithm.poll is None:
        return ()
    zero, layout = jnp.zeros((), jnp.int32), Layout(1, 1, 1)
    return eager.zeros_of(lambda: poll(algorithm, federation, seed, zero, server, clients, layout))


def initial_state(algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""]) -> State:
    """The state before round 0; ``federation`` is stored by id."""
    server = initial_server(algorithm, federation, seed)
    clients = initial_clients(algorithm, federation, seed, server, federation.clients)
    ballots = no_ballots(algorithm, federation, seed, server, clients)
    return State(jnp.asarray(seed), jnp.zeros((), jnp.int32), server, clients, ballots, jnp.full((), -1, jnp.int32))
