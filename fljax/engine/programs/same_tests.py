"""Whether all clients have the same test rows, so that the global model is judged once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fljax.protocol import Federation, Spans


def same_tests(federation: Federation) -> bool:
    """Whether all clients with test rows, seen and unseen, have the same test rows in the same order.

    For stacked federations: whether this holds in each of them. False if no seen client has test rows.
    """
    populations = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    lists = None if federation.lists is None else np.asarray(federation.lists)
    tables = [_TestRows.of(clients.test.index, clients.test.size, lists) for clients in populations]
    return all(_same([table.of_seed(i) for table in tables]) for i in range(len(tables[0].size)))


class _TestRows(NamedTuple):
    """Test rows on the host: ``place`` says where the list of a client begins in ``table``."""

    table: np.ndarray  # flat
    place: np.ndarray  # [federations, clients] or, of one seed, [clients]
    size: np.ndarray

    @classmethod
    def of(cls, index: Any, size: Any, lists: np.ndarray | None) -> _TestRows:
        size = np.asarray(size)
        size = size.reshape(-1, size.shape[-1])
        if isinstance(index, Spans):
            assert lists is not None
            return cls(lists, np.asarray(index.start).reshape(size.shape), size)
        table = np.asarray(index)
        return cls(table.reshape(-1), np.arange(size.size).reshape(size.shape) * table.shape[-1], size)

    def of_seed(self, seed: int) -> _TestRows:
        return _TestRows(self.table, self.place[seed], self.size[seed])


# Lists of rows that are compared at a time on the host.
_COMPARED = 1024


def _same(tables: list[_TestRows]) -> bool:
    first = np.flatnonzero(tables[0].size)
    if not first.size:
        return False
    count, start = int(tables[0].size[first[0]]), int(tables[0].place[first[0]])
    real = tables[0].table[start : start + count]  # without padding
    for table, place, size in tables:
        there = size > 0
        if np.any(size[there] != count):
            return False
        place = np.unique(place[there])  # a list that clients share is stored once
        if np.any(table[place] != real[0]):
            return False
        for some in np.split(place, range(_COMPARED, len(place), _COMPARED)):
            if np.any(table[some[:, None] + np.arange(count)[None, :]] != real[None, :]):
                return False
    return True
