"""What the clients of a round need of the Server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from fljax.engine.devices.lanes import Picked
from fljax.protocol import Algorithm, Seat, rows_of, seen_from, with_rows


def every_seat(round: Int[Array, ""], id: Int[Array, " clients"]) -> Seat:
    """The seats of clients outside a cohort, stacked: id ``[clients]``, slot 0."""
    return Seat(round, id, jnp.zeros_like(id))


def own_server(
    algorithm: Algorithm, server: PyTree, devices: int, seats: Seat, *, whole: bool = False
) -> tuple[Any, Callable[[Any], PyTree]]:
    """What each client needs of parts with one row per client, and the Server made of one client's share.

    Several devices get the rows of the clients that they compute; one device reads them in its table.

    Args:
      algorithm: names the peers of a client.
      server: the whole Server.
      devices: their number.
      seats: of the clients, stacked: one round, id and slot ``[clients]``.
      whole: whether these are all clients, by id.
    """
    if devices == 1:
        return (), lambda row: server
    peers = jnp.zeros((*seats.id.shape, 0), jnp.int32)
    if (names := algorithm.peers) is not None:

        def of_one(id: Array, slot: Array) -> Array:
            seat = Seat(seats.round, id, slot)
            return names(seen_from(server, seat), seat)

        peers = jax.vmap(of_one)(seats.id, seats.slot)
    rows = rows_of(server, None if whole else seats.id, peers, Picked)
    return rows, lambda row: with_rows(server, row)
