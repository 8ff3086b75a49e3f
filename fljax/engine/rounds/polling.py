"""The ballots of clients that are polled."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from fljax.engine.devices.lanes import map_lanes
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.federations import local_data
from fljax.engine.rounds.keys import Purpose, client_key, round_key
from fljax.engine.rounds.servers import every_seat, own_server
from fljax.protocol import Algorithm, ClientData, Federation, Seat


def poll(
    algorithm: Algorithm,
    federation: Federation,
    seed: Array,
    round: Array,
    server: PyTree,
    clients: PyTree,
    layout: Layout,
    id: Int[Array, " clients"] | None = None,
) -> PyTree:
    """Ballots of the clients in ``federation``, whose ids are ``id``; None: of all clients of the run, by id."""
    key = round_key(seed, Purpose.POLL, round)
    assert algorithm.poll is not None
    ask, shown = algorithm.poll.ask, algorithm.poll.shown

    seats = every_seat(round, federation.clients.id)
    rows, server_of = own_server(algorithm, server, layout.devices, seats, whole=id is None)

    def one(row: tuple[ClientData, PyTree, Any]) -> PyTree:
        client, kept, own = row
        seat = Seat(round, client.id, jnp.zeros((), jnp.int32))
        down = algorithm.down(server_of(own), seat) if shown else ()
        return ask(client_key(key, client.id), seat, down, kept, local_data(federation, client))

    return map_lanes(one, (federation.clients, clients, rows if shown else ()), layout.evaluation, layout.devices)
