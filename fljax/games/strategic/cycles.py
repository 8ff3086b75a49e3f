"""Cycles of directed graphs."""

from __future__ import annotations

from collections import deque

import numpy as np
from jaxtyping import Int


def cycles_of(
    source: Int[np.ndarray, " edge"], target: Int[np.ndarray, " edge"], count: int
) -> tuple[tuple[int, ...], ...]:
    """A shortest cycle through the first node of each strongly connected part that has an edge inside, as its nodes."""
    # A walk that goes round for ever does so in one of these parts.
    from scipy.sparse import coo_array  # late: it takes a quarter of a second
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(source)), (source, target)), shape=(count, count))
    _, part = connected_components(graph, directed=True, connection="strong")
    inside = part[source] == part[target]
    following: dict[int, list[int]] = {}
    for start, end in sorted(set(zip(source[inside].tolist(), target[inside].tolist(), strict=True))):
        following.setdefault(start, []).append(end)
    cycles: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for start in sorted(following):
        if part[start] not in seen:
            seen.add(part[start])
            cycles.append(_shortest_cycle(start, following))
    return tuple(cycles)


def _shortest_cycle(start: int, following: dict[int, list[int]]) -> tuple[int, ...]:
    """From ``start`` back to it, breadth first; without the return."""
    before: dict[int, int] = {}
    waiting = deque([start])
    while start not in before:
        place = waiting.popleft()
        for after in following[place]:
            if after not in before:
                before[after] = place
                waiting.append(after)
    path = [before[start]]
    while path[-1] != start:
        path.append(before[path[-1]])
    return tuple(reversed(path))
