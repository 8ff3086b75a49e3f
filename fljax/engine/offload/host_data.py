"""Examples on the host, in memory or in a mapped file, and the blocks and single clients of them that are moved."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.data.checks import check_unchanged
from fljax.engine.programs.program import Inputs
from fljax.engine.rounds.states import State
from fljax.protocol import ClientData, Examples, Federation, Moments, Names, Rows, Spans
from fljax.protocol.lists import RowLists


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
