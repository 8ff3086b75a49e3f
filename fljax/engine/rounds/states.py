"""The state of a run between rounds and before round 0, views of a federation that programs use, and random keys.

Randomness is keyed by identity: (seed, purpose, round, client id, slot), never by position or by order of splitting.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer, Key, PyTree, UInt

from fljax.core import processes
from fljax.core.trees import numbers_of
from fljax.core.values import as_whole
from fljax.engine.devices import eager
from fljax.engine.devices.client_mapping import Picked, Spread, map_lanes
from fljax.engine.devices.layout import Layout, of_this_process
from fljax.protocol import (
    AbsentRows,
    Algorithm,
    Census,
    ClientData,
    Examples,
    Features,
    Federation,
    LaterData,
    LocalData,
    Names,
    Rows,
    Seat,
    Spans,
    Subset,
    Vectors,
    rows_of,
    seen_from,
    with_rows,
)
from fljax.protocol.data import RowLists
from fljax.protocol.data import Seeds as Seeds
from fljax.protocol.data import seeds_of as seeds_of
from fljax.training.evaluation import SIDE_BY_SIDE


class Purpose(enum.IntEnum):
    """The purpose of a key. Values are part of every run's identity: append, never renumber."""

    INIT_SERVER = 0
    INIT_CLIENT = 1
    POLL = 2
    SELECT = 3
    TRAIN = 4
    AGGREGATE = 5
    DEPLOY = 6
    UNSEEN_INIT_CLIENT = 7
    UNSEEN_DEPLOY = 8
    STANDALONE = 9
    UNSEEN_STANDALONE = 10
    INIT_STANDALONE = 11
    UNSEEN_INIT_STANDALONE = 12
    EVALUATE = 13


# Numbers below which keys differ: ``round_key`` takes rounds in 27 bits, ``client_key`` ids in 24 and slots in 8.
ROUNDS, CLIENTS, SLOTS = 2**27, 2**24, 2**8


def check_below(limit: int, name: str, number: Any) -> None:
    """Raises a ValueError if a number is not below its limit, beyond which keys repeat; traced numbers are unknown."""
    known = as_whole(number)
    if known is not None and known >= limit:
        raise ValueError(f"expected {name} below {limit}, for which random keys differ, got {known}")


def round_key(
    seed: Integer[Array, ""], purpose: Purpose | Integer[Array, ""], round: Integer[Array, ""] | int = 0
) -> Key[Array, ""]:
    """The server's key of a purpose in a round below 2**27; ``client_key`` derives the clients' keys."""
    # One ``fold_in`` takes both numbers, since each hash adds compile time.
    check_below(ROUNDS, "a round", round)
    both = jnp.asarray(round, jnp.uint32) * 32 + jnp.asarray(purpose, jnp.uint32)
    return jax.random.fold_in(jax.random.key(seed), both)


def client_key(key: Key[Array, ""], id: Integer[Array, ""], slot: Integer[Array, ""] | int = 0) -> Key[Array, ""]:
    """The key of one client and slot, from the round's key. Ids are below 2**24, slots below 2**8."""
    check_below(CLIENTS, "the id of a client", id)
    check_below(SLOTS, "a slot", slot)
    both = jnp.asarray(slot, jnp.uint32) * 2**24 + jnp.asarray(id, jnp.uint32)
    return jax.random.fold_in(key, both)


def by_id(federation: Federation) -> Federation:
    """The federation, or stacked ones, with seen clients sorted by id: their original order does not matter."""
    # Names and raw features are left out: federations that differ in these alone run the same programs.
    federation = federation._replace(names=Names(), features=Features())
    try:
        if np.all(np.diff(np.asarray(federation.clients.id), axis=-1) > 0):
            return federation
    except jax.errors.TracerArrayConversionError:  # ids are unknown while tracing
        pass
    order = jnp.argsort(federation.clients.id, axis=-1)

    def sort(leaf: Array) -> Array:
        index = order.reshape(order.shape + (1,) * (jnp.ndim(leaf) - order.ndim))
        return jnp.take_along_axis(jnp.asarray(leaf), index, axis=order.ndim - 1)

    return federation._replace(clients=jax.tree.map(sort, federation.clients))


def as_vectors(federation: Federation) -> Federation:
    """The federation with each example as a vector; called once in a program, outside its loops."""
    # A TPU lays images out with the examples innermost, and would collect each row pixel by pixel.
    x: Any = Vectors.of(federation.examples.x)  # stands for an array wherever it is read by index
    return federation._replace(examples=federation.examples._replace(x=x))


def with_least(federation: Federation) -> Federation:
    """The federation with the least number of training rows (``Spans.least``), if it is near the largest one."""
    # Elsewhere it would be of no use, and federations with other numbers would need programs of their own.
    train = federation.clients.train
    if not isinstance(train.index, Spans):
        return federation
    most = min(train.index.capacity, train.index.most_least)
    least = int(np.min(np.asarray(train.size), initial=most))
    least = least if 2 * least > train.index.capacity else 0
    marked = train._replace(index=Spans(train.index.start, train.index.capacity, least))
    return federation._replace(clients=federation.clients._replace(train=marked))


def without_rows(federation: Federation) -> Federation:
    """The federation without the rows of clients and server: sizes, moments and shapes alone."""

    def absent(array: Any) -> Any:
        return AbsentRows((0, *array.shape[1:]), np.dtype(array.dtype))

    def blank(rows: Rows) -> Rows:
        index: Any = rows.index
        if isinstance(index, Spans):
            return rows._replace(index=dataclasses.replace(index, start=jnp.zeros_like(jnp.asarray(index.start))))
        return rows._replace(index=jnp.zeros(index.shape, jnp.int32))

    examples = federation.examples
    return federation._replace(
        examples=Examples(absent(examples.x), absent(examples.y)),
        clients=federation.clients.map_rows(blank),
        unseen=None if federation.unseen is None else federation.unseen.map_rows(blank),
        held={name: blank(rows) for name, rows in federation.held.items()},
        lists=None if federation.lists is None else jnp.zeros(1, jnp.int32),
    )


def without_shared(federation: Federation) -> Federation:
    """The parts of a stacked federation with an axis of seeds; ``with_shared`` puts examples and lists back."""
    return federation._replace(examples=None, lists=None)  # type: ignore[arg-type]


def with_shared(client_parts: Federation, federation: Federation) -> Federation:
    """One seed's parts with the examples and lists of a stacked federation."""
    return client_parts._replace(examples=federation.examples, lists=federation.lists)


def local_data(federation: Federation, client: ClientData, *, deployed: bool = False) -> LocalData:
    """One client's data; only training features have noise. ``deployed``: deployment rows are the validation rows."""

    moments = federation.moments if client.moments is None else client.moments

    def subset(rows: Rows, noise: Any = None) -> Subset:
        index = rows.index
        if isinstance(index, Spans):
            assert federation.lists is not None
            index = index.of(federation.lists, rows.size)
        return Subset(federation.examples, Rows(index, rows.size), noise, moments=moments)

    valid = client.deployment if deployed and client.deployment is not None else client.valid
    data = LocalData(subset(client.train, client.noise), subset(valid), subset(client.test))
    if client.later is None:
        return data
    validation = None if client.deployment is None else subset(client.deployment)
    return data._replace(later=LaterData(subset(client.later, client.noise), validation))


def held_data(federation: Federation, layout: Layout) -> dict[str, Subset]:
    """The server's own examples by name; devices share the models that are judged on them."""
    spread = None if layout.devices == 1 else Spread(1 if layout.platform == "cpu" else SIDE_BY_SIDE, layout.devices)
    held = federation.held.items()
    return {
        name: Subset(federation.examples, Rows(*rows), spread=spread, moments=federation.moments) for name, rows in held
    }


def same_tests(federation: Federation) -> bool:
    """Whether all clients with test rows, seen and unseen, have the same in the same order, in each federation."""
    populations = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    tests = [RowLists.of(clients.test, federation.lists) for clients in populations]
    return all(_same(tests, place) for place in range(len(tests[0].size)))


# Lists of rows that are compared at a time on the host.
_COMPARED = 1024


def _same(tests: list[RowLists], place: int) -> bool:
    """Whether all clients of one federation with test rows have the same; ``place`` is that of the federation."""
    seen = tests[0]
    first = np.flatnonzero(seen.size[place])
    if not first.size:
        return False
    count, begin = int(seen.size[place, first[0]]), int(seen.start[place, first[0]])
    expected = seen.table[begin : begin + count]  # without padding
    for table, starts, sizes, _ in tests:
        has_tests = sizes[place] > 0
        if np.any(sizes[place][has_tests] != count):
            return False
        start = np.unique(starts[place][has_tests])  # a list that clients share is stored once
        if np.any(table[start] != expected[0]):
            return False
        for some in np.split(start, range(_COMPARED, len(start), _COMPARED)):
            if np.any(table[some[:, None] + np.arange(count)[None, :]] != expected[None, :]):
                return False
    return True


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


def initial_server(algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""]) -> PyTree:
    """The Server before round 0, of a federation stored by id."""
    census = Census(federation.clients.train.size, federation.clients.valid.size)
    return algorithm.init_server(round_key(seed, Purpose.INIT_SERVER), census)


def initial_clients(
    algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""], server: PyTree, clients: ClientData
) -> PyTree:
    """The Clients of ``clients`` before their first round, stacked."""
    key, zero = round_key(seed, Purpose.INIT_CLIENT), jnp.zeros((), jnp.int32)

    def one(client: ClientData) -> PyTree:
        seat = Seat(zero, client.id, zero)
        down = algorithm.down(server, seat._replace(first=True))
        return algorithm.init_client(client_key(key, client.id), seat, down, local_data(federation, client))

    return eager.map_all(one, clients)


def initial_state(algorithm: Algorithm, federation: Federation, seed: Integer[Array, ""]) -> State:
    """The state before round 0; ``federation`` is stored by id."""
    server = initial_server(algorithm, federation, seed)
    clients = initial_clients(algorithm, federation, seed, server, federation.clients)
    ballots, zero = (), jnp.zeros((), jnp.int32)
    if algorithm.poll is not None:  # zeros before the first poll
        answers = eager.shapes_of(lambda: poll(algorithm, federation, seed, zero, server, clients, Layout(1, 1, 1)))
        ballots = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), answers)
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
