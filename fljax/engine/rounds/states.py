"""The state of a run between rounds, the state before round 0, and what clients see of the Server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer, PyTree, UInt

from fljax.core import processes
from fljax.core.trees import numbers_of
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import Picked, map_lanes
from fljax.engine.devices.layout import Layout, of_this_process
from fljax.engine.rounds.federations import census, local_data
from fljax.engine.rounds.keys import Purpose, client_key, round_key
from fljax.protocol import Algorithm, ClientData, Federation, Seat, rows_of, seen_from, with_rows


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


def every_seat(round: Int[Array, ""], id: Int[Array, " clients"]) -> Seat:
    """The seats of clients outside a cohort, stacked: id ``[clients]``, slot 0."""
    return Seat(round, id, jnp.zeros_like(id))


def own_server(
    algorithm: Algorithm, server: PyTree, devices: int, seats: Seat, *, whole: bool = False
) -> tuple[Any, Callable[[Any], PyTree]]:
    """Parts with one row per client, as each client needs them, and what makes the Server of one client's share."""
    # Several devices get the rows of the clients that they compute; one device reads them in its table.
    # ``whole``: whether the stacked ``seats`` are those of all clients, by id.
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
        client, client_state, server_row = row
        seat = Seat(round, client.id, jnp.zeros((), jnp.int32))
        down = algorithm.down(server_of(server_row), seat) if shown else ()
        return ask(client_key(key, client.id), seat, down, client_state, local_data(federation, client))

    return map_lanes(one, (federation.clients, clients, rows if shown else ()), layout.evaluation, layout.devices)


def arrays_of(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a tree by path, as arrays on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): numbers_of(leaf) for path, leaf in leaves}


def with_arrays(like: State, arrays: Mapping[str, np.ndarray], on_host: bool = False) -> State:
    """A state like ``like`` from its arrays by path, on one device."""
    # Arrays of NumPy in ``like`` stay ones; with ``on_host`` all states of clients are.
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    client_leaves = {id(leaf) for leaf in jax.tree.leaves(like.clients)} if on_host else set[int]()
    leaves = []
    for path, leaf in paths:
        name, host = jax.tree_util.keystr(path), isinstance(leaf, np.ndarray) or id(leaf) in client_leaves
        leaves.append(_leaf(name, arrays[name], leaf, host))
    return jax.tree.unflatten(structure, leaves)


def unbound(state: State) -> State:
    """A state of several processes as arrays of this one, which any further computation may use."""
    return with_arrays(state, arrays_of(of_this_process(state))) if processes.are_several() else state


def _leaf(name: str, array: np.ndarray, expected: Any, on_host: bool) -> Any:
    """A leaf of a state from its array; ``expected`` has its shape and dtype."""
    if jnp.issubdtype(expected.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=str(jax.random.key_impl(expected)))
    if array.dtype.kind == "V":  # NumPy's files do not know bfloat16 by name
        array = array.view(expected.dtype)
    if array.dtype.kind == np.dtype(expected.dtype).kind and {array.itemsize, expected.dtype.itemsize} == {4, 8}:
        array = array.astype(expected.dtype)  # of another jax_enable_x64
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise ValueError(
            f"expected {name} to be {expected.dtype}{list(expected.shape)}, got {array.dtype}{list(array.shape)}"
        )
    return np.array(array) if on_host else jnp.array(array)
