"""Cycles of directed graphs."""

from __future__ import annotations

import numpy as np

from fljax.games.strategic.equilibria import cycles_of


def of(edges: list[tuple[int, int]], count: int) -> tuple[tuple[int, ...], ...]:
    source, target = np.array(edges, int).reshape(-1, 2).T
    return cycles_of(source, target, count)


def test_each_part_has_a_shortest_cycle() -> None:
    """A triangle with a longer way round, a pair, and a way out that leads to nothing."""
    edges = [(0, 1), (1, 2), (2, 0), (1, 3), (3, 2), (4, 5), (5, 4), (2, 6)]
    assert of(edges, 7) == ((0, 1, 2), (4, 5))


def test_graphs_without_cycles() -> None:
    assert of([], 3) == ()
    assert of([(0, 1), (0, 2), (1, 2)], 3) == ()
