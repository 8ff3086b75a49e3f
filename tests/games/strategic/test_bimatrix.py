"""Extreme equilibria of two payoff matrices, beside exact arithmetic over all supports."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.games.strategic.equilibria import extreme_equilibria

KINDS = {
    "normal": lambda random, shape: random.normal(size=shape),
    "whole": lambda random, shape: random.integers(0, 4, shape).astype(float),
    "few values": lambda random, shape: random.integers(0, 2, shape) / 8,
    "skewed": lambda random, shape: random.normal(size=shape) ** 5,
    "a copy": lambda random, shape: np.repeat(random.normal(size=(2, shape[1], 1)), shape[2], axis=2),
}


def solved(matrix: list[list[Fraction]]) -> list[Fraction] | None:
    """The solution of n equations, whose right sides are the last column; None if there is not exactly one."""
    rows, count = [list(row) for row in matrix], len(matrix)
    for column in range(count):
        pivot = next((place for place in range(column, count) if rows[place][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for place in range(count):
            if place != column and rows[place][column]:
                factor = rows[place][column] / rows[column][column]
                rows[place] = [a - factor * b for a, b in zip(rows[place], rows[column], strict=True)]
    return [rows[place][-1] / rows[place][place] for place in range(count)]


def mixtures_of(payoffs: np.ndarray) -> dict[tuple[Fraction, ...], set[int]]:
    """Mixtures to which as many responses are equally good as are played, and are the best; with all best responses."""
    table = [[Fraction(float(number)) for number in row] for row in payoffs]
    found: dict[tuple[Fraction, ...], set[int]] = {}
    for size in range(1, min(payoffs.shape) + 1):
        for played in itertools.combinations(range(payoffs.shape[1]), size):
            for best in itertools.combinations(range(payoffs.shape[0]), size):
                rows = [[*(table[j][i] for i in played), Fraction(-1), Fraction(0)] for j in best]
                solution = solved([*rows, [Fraction(1)] * size + [Fraction(0), Fraction(1)]])
                if solution is None or min(solution[:-1]) < 0:
                    continue
                play = [Fraction(0)] * payoffs.shape[1]
                for place, share in zip(played, solution, strict=False):
                    play[place] = share
                values = [sum(a * b for a, b in zip(row, play, strict=True)) for row in table]
                if max(values) == values[best[0]]:
                    found[tuple(play)] = {j for j, value in enumerate(values) if value == max(values)}
    return found


def expected(first: np.ndarray, second: np.ndarray) -> tuple[set[Any], bool]:
    """Pairs of mixtures that play best responses alone, and whether one of these has more of them than it plays."""
    pairs, degenerate = set(), False
    for (x, to_x), (y, to_y) in itertools.product(mixtures_of(second.T).items(), mixtures_of(first).items()):
        of_x, of_y = ({i for i, share in enumerate(play) if share} for play in (x, y))
        if of_x <= to_y and of_y <= to_x:
            pairs.add(tuple(round(float(share), 7) for share in (*x, *y)))
            degenerate |= len(to_x) > len(of_x) or len(to_y) > len(of_y)
    return pairs, degenerate


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(2, 4), st.integers(2, 3)),
    scale=st.sampled_from([1.0, 1e-6, 1e6]),
    shift=st.sampled_from([0.0, 1.0, -1e3]),
)
def test_all_are_found_and_nothing_else(kind, seed, size, scale, shift):
    """Also of payoffs that are scaled by other numbers, and moved: ties stay ties."""
    first, second = KINDS[kind](np.random.default_rng(seed), (2, *size))
    x, y, degenerate = extreme_equilibria(scale * (first + shift), second - shift, precision=1e-14)
    pairs, tied = expected(first, second)
    assert sorted(pairs) == sorted(tuple(row) for row in np.round(np.concatenate([x, y], axis=1), 7).tolist())
    assert degenerate.any() == tied
    assert tied or len(x) % 2 == 1
