"""Whether all clients have the same test rows, so that the global model is judged once."""

from __future__ import annotations

import numpy as np

from fljax.protocol import Federation
from fljax.protocol.lists import RowLists


def same_tests(federation: Federation) -> bool:
    """Whether all clients with test rows, seen and unseen, have the same test rows in the same order.

    For stacked federations: whether this holds in each of them. False if no seen client has test rows.
    """
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
