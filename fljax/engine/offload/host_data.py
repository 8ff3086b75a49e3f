"""Examples on the host, in memory or in a mapped file, and blocks of clients that are moved to the devices.

A block says which rows of its clients are moved, how many clients, and how many blocks are there at a time.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core import trees
from fljax.core.platforms import traced_for
from fljax.data.arrays import check_unchanged
from fljax.engine.devices.client_mapping import arguments_read
from fljax.engine.devices.layout import Layout, default_platform
from fljax.engine.programs.program import Inputs, Spec
from fljax.engine.rounds import evaluate
from fljax.engine.rounds.round import train_one
from fljax.engine.rounds.states import State, as_vectors, initial_clients, poll
from fljax.protocol import Algorithm, ClientData, Examples, Federation, Moments, Names, Rows, Spans
from fljax.protocol.data import RowLists


class Population(NamedTuple):
    """Seen or unseen clients on the host: ids ``[federations, clients]``, noise and moments likewise, lists by part."""

    id: np.ndarray
    noise: np.ndarray | None
    lists: dict[str, RowLists]
    moments: Moments | None

    @classmethod
    def of(cls, clients: ClientData, lists: np.ndarray | None) -> Population:
        axes = clients.id.ndim

        def by_federation(leaf: Any) -> np.ndarray:
            return np.asarray(leaf).reshape(-1, clients.id.shape[-1], *leaf.shape[axes:])

        parts = {part: RowLists.of(rows, lists) for part, rows in clients.parts.items()}
        noise, moments = (jax.tree.map(by_federation, leaf) for leaf in (clients.noise, clients.moments))
        return cls(by_federation(clients.id), noise, parts, moments)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.id.shape[-1]

    def most(self, parts: Collection[str], clients: int) -> int:
        """The largest number of rows that so many clients have in these parts; at least 1."""
        return max(1, sum(self.lists[part].most(clients) for part in parts))


class HostData(NamedTuple):
    """A federation whose examples are on the host, or several stacked ones (one per seed)."""

    x: np.ndarray
    y: np.ndarray
    seen: Population
    unseen: Population | None
    moments: Moments | None = None  # [seeds, ...], or [1, ...] of one federation; arrays of NumPy

    @classmethod
    def of(cls, federation: Federation) -> HostData:
        """The federation's examples and lists; a memory-mapped file stays one."""
        lists = None if federation.lists is None else np.asarray(federation.lists)
        seen = Population.of(federation.clients, lists)
        unseen = None if federation.unseen is None else Population.of(federation.unseen, lists)
        moments = federation.moments
        if moments is not None:
            alone = federation.clients.id.ndim == 1
            moments = jax.tree.map(lambda leaf: np.asarray(leaf)[None] if alone else np.asarray(leaf), moments)
        return cls(np.asarray(federation.examples.x), np.asarray(federation.examples.y), seen, unseen, moments)

    @property
    def row_bytes(self) -> int:
        """Bytes of one example and its label."""
        return sum(array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in (self.x, self.y))

    def block(
        self, population: Population, place: int, clients: np.ndarray, parts: Collection[str], capacity: int
    ) -> Federation:
        """Some clients as a federation of their own, whose examples are their rows in some parts; arrays of NumPy."""
        # ``place`` is that of the federation among stacked ones.
        # Rows of other parts must not be read. ``clients`` may repeat; ``capacity`` is at least ``most(parts, B)``.
        chosen, spans, total = [np.zeros(0, np.int32)], {}, 0
        for part, lists in population.lists.items():
            start, size = lists.start[place, clients], lists.size[place, clients]
            starts = np.zeros(len(clients), np.int32)
            if part in parts:
                places, which = np.unique(start, return_inverse=True)
                longest = np.zeros(len(places), np.int64)
                np.maximum.at(longest, which, size)
                chosen += [lists.table[at : at + long] for at, long in zip(places, longest.tolist(), strict=True)]
                starts = (total + np.cumsum(longest) - longest)[which].astype(np.int32)
                total += int(longest.sum())
            spans[part] = Rows(Spans(starts, lists.capacity), size.astype(np.int32))
        rows, inverse = np.unique(np.concatenate(chosen), return_inverse=True)  # in the order of the file
        index = np.zeros(capacity, np.int32)
        index[: len(inverse)] = inverse
        noise, own = (
            jax.tree.map(lambda leaf: leaf[place, clients], each) for each in (population.noise, population.moments)
        )
        examples = self._examples(rows, min(capacity, len(self.x)))
        data = ClientData(population.id[place, clients].astype(np.int32), **spans, noise=noise, moments=own)
        moments = None if self.moments is None else Moments(*(leaf[place] for leaf in self.moments))
        return Federation(examples, data, None, {}, Names(), index, moments)  # pyright: ignore[reportArgumentType]

    def resident(self, federation: Federation) -> Federation:
        """The part of the federation that stays on the devices: sizes of clients, and rows of the server."""
        names = list(federation.held)
        lists = [np.asarray(federation.held[name].index) for name in names]
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *(numbers.reshape(-1) for numbers in lists)]))
        held = {
            name: Rows(jnp.asarray(np.searchsorted(rows, numbers_of_part), jnp.int32), federation.held[name].size)
            for name, numbers_of_part in zip(names, lists, strict=True)
        }
        stored = self._examples(rows.astype(np.int64), max(len(rows), 1))
        examples = Examples(jnp.asarray(stored.x), jnp.asarray(stored.y))

        def empty(rows: Rows) -> Rows:
            size = jnp.asarray(rows.size)
            return Rows(Spans(jnp.zeros(size.shape, jnp.int32), rows.index.shape[-1]), size)

        unseen = None if federation.unseen is None else federation.unseen.map_rows(empty)
        lists_of = jnp.zeros(1, jnp.int32)
        clients = federation.clients.map_rows(empty)
        return Federation(examples, clients, unseen, held, Names(), lists_of, federation.moments)

    def _examples(self, rows: np.ndarray, capacity: int) -> Examples:
        def read(array: np.ndarray) -> np.ndarray:
            check_unchanged(array)
            rows_read = np.empty((capacity, *array.shape[1:]), array.dtype)
            rows_read[: len(rows)] = array[rows]  # np.take would copy an array of another order whole
            rows_read[len(rows) :] = 0
            return rows_read

        # Noise and flipped labels are drawn by the number of a row, which blocks must not change.
        number: Any = np.zeros(capacity, np.int32)
        number[: len(rows)] = rows
        x: Any = read(self.x)
        y: Any = read(self.y)
        return Examples(x, y, number)


def server_rows(federation: Federation, rows: Rows) -> tuple[Examples, Rows]:
    """Some of the server's rows with their examples; examples on the host are moved to the device."""
    x, y = federation.examples.x, federation.examples.y
    if not isinstance(x, np.ndarray):
        return federation.examples, rows
    check_unchanged(x, y)
    index = np.asarray(rows.index)
    some = Examples(jnp.asarray(x[index]), jnp.asarray(np.asarray(y)[index]))
    return some, rows._replace(index=jnp.arange(len(index), dtype=jnp.int32))


def only_client(inputs: Inputs, state: State, seed: int, client: int, unseen: bool) -> tuple[Inputs, State]:
    """Inputs of one plan and states reduced to one client, which becomes client 0; the axis of seeds stays."""
    # ``seed`` is a position among the seeds, ``client`` the id of a seen client, or the place of an unseen one.
    federation = inputs.federation
    if isinstance(federation.examples.x, np.ndarray):
        alone = _moved(federation, seed, client, unseen)
    else:
        axis = federation.clients.id.ndim - 1

        def take(leaf: Any) -> jax.Array:
            return jax.lax.slice_in_dim(jnp.asarray(leaf), client, client + 1, axis=axis)

        population: Any = federation.unseen if unseen else federation.clients
        alone = _alone(federation, jax.tree.map(take, population), unseen)
    if unseen:
        return inputs._replace(federation=alone), state._replace(clients=())
    client_state = jax.tree.map(lambda leaf: leaf[:, client : client + 1], state.clients)
    return inputs._replace(federation=alone), state._replace(clients=client_state)


def _moved(federation: Federation, seed: int, client: int, unseen: bool) -> Federation:
    data = HostData.of(federation)
    population = data.unseen if unseen else data.seen
    assert population is not None
    place = np.array([client])
    parts = population.lists.keys()
    block = data.block(population, seed % len(population.id), place, parts, population.most(parts, 1))
    return _alone(block, block.clients, unseen)


def _alone(federation: Federation, clients: ClientData, unseen: bool) -> Federation:
    return federation._replace(clients=clients, unseen=clients if unseen else None, held={})


Splits = tuple[str, ...]


class SplitsRead(NamedTuple):
    """The parts that are read before round 0, in a poll, in training and in evaluations."""

    begin: Splits
    poll: Splits
    train: Splits
    judge_seen: Splits
    judge_unseen: Splits


def splits_read_by(spec: Spec, inputs: Inputs, state: State) -> SplitsRead:
    """The parts that each function reads, by abstract evaluation. ``state`` is of one run, as shapes."""
    layout, zero = Layout(1, 1, 1), jnp.zeros((), jnp.int32)
    federation = inputs.federation

    def find(function: Callable[[Algorithm, Federation, State], Any], clients: ClientData | None) -> Splits:
        """What a function reads of one client in ``federation.clients``, which is in ``federation.unseen``, too."""
        if clients is None:
            return ()
        struct = jax.ShapeDtypeStruct
        index = [struct((1, rows.index.shape[-1]), np.int32) for rows in clients.parts.values()]
        x, y = (struct(tuple(array.shape), array.dtype) for array in federation.examples[:2])

        def program(index: list[Any], x: Any, y: Any, traced: Any, by_seed: Any, state: Any) -> Any:
            parts: dict[str, Any] = {
                part: Rows(small, zero[None]) for part, small in zip(clients.parts, index, strict=True)
            }
            noise = None if clients.noise is None else jnp.zeros(1)
            moments = federation.moments
            if moments is not None:
                moments = Moments(*(jnp.ones(x.shape[1:], leaf.dtype) for leaf in moments))
            data = ClientData(zero[None], **parts, noise=noise)
            small = federation._replace(
                examples=federation.examples._replace(x=x, y=y), clients=data, unseen=data, held={}, lists=None
            )._replace(moments=moments)
            return function(spec.algorithm(traced, by_seed), as_vectors(small), state)

        traced = [_first(leaf) if place in spec.varied else _shape(leaf) for place, leaf in enumerate(inputs.traced)]
        by_seed = jax.tree.map(_first, inputs.by_seed)
        with traced_for(default_platform()):
            closed = jax.make_jaxpr(program)(index, x, y, traced, by_seed, state)
        read = arguments_read(closed.jaxpr)[: len(index)]
        return tuple(part for part, is_read in zip(clients.parts, read, strict=True) if is_read)

    def one(tree: Any) -> Any:
        return trees.take(tree, zero)

    def train(algorithm: Algorithm, data: Federation, state: State) -> Any:
        return train_one(algorithm, data, zero, zero, state.server, one(data.clients), zero, one(state.clients))

    def ask(algorithm: Algorithm, data: Federation, state: State) -> Any:
        if algorithm.poll is None:
            return ()
        single = jax.tree.map(lambda leaf: leaf[:1], state.clients)
        return poll(algorithm, data, zero, zero, state.server, single, layout)

    def judge_seen(algorithm: Algorithm, data: Federation, state: State) -> Any:
        single = state._replace(clients=jax.tree.map(lambda leaf: leaf[:1], state.clients))
        scope = evaluate.Scope.of(algorithm, spec.valid, spec.common, spec.extra)
        judge = evaluate.Judge(algorithm, data, single, zero)
        return evaluate.judge_seen(judge, layout, scope) if scope.seen else ()

    def judge_unseen(algorithm: Algorithm, data: Federation, state: State) -> Any:
        scope = evaluate.Scope.of(algorithm, spec.valid, spec.common, spec.extra)
        judge = evaluate.Judge(algorithm, data, state, zero, known=False)
        return evaluate.judge_unseen(judge, layout, scope) if scope.unseen else ()

    def begin(algorithm: Algorithm, data: Federation, state: State) -> Any:
        return initial_clients(algorithm, data, zero, state.server, data.clients)

    seen, unseen = federation.clients, federation.unseen
    return SplitsRead(
        find(begin, seen), find(ask, seen), find(train, seen), find(judge_seen, seen), find(judge_unseen, unseen)
    )


def _shape(leaf: Any) -> Any:
    return jax.eval_shape(lambda leaf: leaf, leaf)


def _first(leaf: Any) -> Any:
    return jax.eval_shape(lambda leaf: jnp.asarray(leaf)[0], leaf)


# Bytes of a block of clients, their rows and states, unless the clients that are computed at a time have more. Two
# blocks are on the devices at a time.
BLOCK = 2**26


class BlockSize(NamedTuple):
    """The blocks of clients that one kind of program gets."""

    parts: Splits  # of their data that are moved
    clients: int
    capacity: int  # rows that a block has room for; 0 if the examples are on the devices
    kept: bool = True  # whether their states are needed
    unseen: bool = False


class BlockSizes(NamedTuple):
    """The blocks before round 0, of a poll, a round, evaluations and predictions; ``judge_once`` is one client."""

    begin: BlockSize
    poll: BlockSize
    train: BlockSize
    judge_seen: BlockSize
    judge_unseen: BlockSize
    judge_once: BlockSize
    predict_seen: BlockSize
    predict_unseen: BlockSize

    @classmethod
    def of(
        cls,
        reads: SplitsRead,
        layout: Layout,
        data: HostData | None,
        state: State,
        cohort: int,
        clients: int,
        unseen: int,
    ) -> BlockSizes:
        """For a run with ``clients`` seen clients, ``unseen`` unseen ones and a ``cohort`` of so many rows."""
        seen, others = (None, None) if data is None else (data.seen, data.unseen)
        row = 0 if data is None else data.row_bytes
        state_bytes = trees.bytes_of(state.clients) // max(clients, 1) if layout.client_states == "host" else 0

        def move(
            parts: Splits, people: Population | None, count: int, lanes: int, state_bytes: int, unseen: bool = False
        ) -> BlockSize:
            return block_size(parts, people, count, lanes * layout.devices, row, state_bytes)._replace(unseen=unseen)

        def with_tests(parts: Splits) -> Splits:  # evaluations lack them where all clients have the same
            return parts if "test" in parts else (*parts, "test")

        lanes = layout.evaluation
        return cls(
            move(reads.begin, seen, clients, lanes, 0),
            move(reads.poll, seen, clients, lanes, state_bytes),
            move(reads.train, seen, cohort, layout.clients, state_bytes),
            move(reads.judge_seen, seen, clients, lanes, state_bytes),
            move(reads.judge_unseen, others, unseen, lanes, 0, True),
            BlockSize(("test",), 1, _capacity(seen, ("test",), 1), bool(state_bytes)),
            move(with_tests(reads.judge_seen), seen, clients, lanes, state_bytes),
            move(with_tests(reads.judge_unseen), others, unseen, lanes, 0, True),
        )


def block_size(
    parts: Splits, people: Population | None, count: int, at_once: int, row: int, state_bytes: int
) -> BlockSize:
    """Blocks of at most ``BLOCK`` and half of the clients: one half moves while the other is computed."""
    # ``people`` None: their examples are on the devices. ``row`` and ``state_bytes`` are bytes; 0 if nothing is moved.
    at_once = max(1, min(count, at_once))
    times = 1
    while 4 * times * at_once <= count + at_once:
        clients = 2 * times * at_once
        if _capacity(people, parts, clients) * row + clients * state_bytes > BLOCK:
            break
        times *= 2
    return BlockSize(parts, times * at_once, _capacity(people, parts, times * at_once), bool(state_bytes))


def _capacity(people: Population | None, parts: Splits, clients: int) -> int:
    return 0 if people is None else people.most(parts, clients)


# Blocks that may be on the devices: one that is computed, and one that is moved meanwhile.
AHEAD = 2


class Pipeline:
    """Keeps at most two blocks unfinished: the host reads and moves the next one while the devices compute."""

    def __init__(self) -> None:
        self._begun: deque[tuple[Any, Callable[[], None] | None]] = deque()

    def make_room(self) -> None:
        """Waits until another block may begin."""
        while len(self._begun) >= AHEAD:
            self._end()

    def begun(self, results: Any, then: Callable[[], None] | None = None) -> None:
        """Notes a block by its results; ``then`` is called once they are there."""
        self._begun.append((results, then))

    def finish(self) -> None:
        """Waits for all blocks."""
        while self._begun:
            self._end()

    def _end(self) -> None:
        results, then = self._begun.popleft()
        jax.block_until_ready(results)
        if then is not None:
            then()


def in_blocks(
    count: int, length: int, function: Callable[[np.ndarray], Any], keep: Callable[[np.ndarray, Any], None]
) -> None:
    """Calls ``function(places)`` for blocks of clients, then ``keep(places, results)``, without padding in places."""
    pipeline = Pipeline()
    for first in range(0, count, length):
        place = np.minimum(np.arange(first, first + length, dtype=np.int32), count - 1)
        pipeline.make_room()
        results = function(place)
        pipeline.begun(results, functools.partial(keep, place[: count - first], results))
    pipeline.finish()
