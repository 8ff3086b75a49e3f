"""Clients that split into several identities: their rows are dealt to themselves and to places behind all clients."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fljax.core.signatures import is_whole
from fljax.data.checks import check_count
from fljax.protocol import Federation, Rows, Spans


def split_identities(federation: Federation, client: int | None, identities: int = 2) -> Federation:
    """The federation with ``identities - 1`` further clients, which have rows of one client or none.

    Identity j of K, of which the client itself is the first, has the rows ``ceil(n j / K)`` to ``ceil(n (j + 1) / K) -
    1`` of the client's list of n, for training and for validation. Test rows stay with the client. Federations that
    differ in ``client`` have equal shapes, so their runs share a program.

    Args:
      federation: of N clients, one or one per seed (``fljax.data.stack``).
      client: the id of the client that splits; None: nobody does, and the places are empty.
      identities: K, at least 2.

    Returns:
      The federation of N + K - 1 clients in the order of ids, without names of clients.

    Raises:
      ValueError: if ``client`` is no id of a client, or ``identities`` is below 2.
    """
    ids = np.asarray(federation.clients.id)
    population, further = ids.shape[-1], check_count("identities", identities, 2) - 1
    if client is not None and (not is_whole(client) or not 0 <= client < population):
        raise ValueError(f"expected client to be the id of one of the clients 0 to {population - 1}, got {client!r}")
    owner = np.concatenate([np.arange(population), np.full(further, client or 0)])
    number = np.concatenate([np.zeros(population, int), 1 + np.arange(further)])  # of the identity
    source = np.argsort(ids, axis=-1)[..., owner]

    def of_owners(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return np.take_along_axis(array, source.reshape(source.shape + (1,) * (array.ndim - ids.ndim)), ids.ndim - 1)

    def dealt(part: str, rows: Rows) -> Rows:
        size, index = of_owners(rows.size), rows.index
        if part == "test" or client is None:
            begin, end = np.zeros_like(size), np.where(number > 0, 0, size)
        else:
            pieces = np.where(owner == client, identities, 1)
            begin, end = (-(-size * place // pieces) for place in (number, number + 1))
        if isinstance(index, Spans):
            shifted: Any = dataclasses.replace(index, start=jnp.asarray(of_owners(index.start) + begin, jnp.int32))
        else:
            shifted = jnp.asarray(_from(of_owners(index), begin))
        return Rows(shifted, jnp.asarray(end - begin, jnp.int32))

    clients = federation.clients
    parts = {part: dealt(part, rows) for part, rows in clients.parts.items()}
    noise = None if clients.noise is None else jnp.asarray(of_owners(clients.noise))
    numbered = jnp.asarray(np.broadcast_to(np.arange(len(owner)), source.shape), jnp.int32)
    names = dataclasses.replace(federation.names, clients=None)
    return federation._replace(clients=clients._replace(id=numbered, noise=noise, **parts), names=names)


def _from(table: Int[np.ndarray, "*N n_max"], begin: Int[np.ndarray, "*N"]) -> Int[np.ndarray, "*N n_max"]:
    """Every row of the table from the entry ``begin`` on; entries behind its end are the last one."""
    places = np.minimum(np.arange(table.shape[-1]) + begin[..., None], table.shape[-1] - 1)
    return np.take_along_axis(table, places, -1)
