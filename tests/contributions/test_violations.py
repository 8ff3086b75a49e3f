"""Superadditivity, monotonicity and convexity: printed numbers, the definitions, and seeds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.contributions import convexity, error_bars, monotonicity, superadditivity
from fljax.contributions.solutions import members_of
from tests.contributions import games

PROPERTIES = (superadditivity, monotonicity, convexity)


def test_printed_numbers_of_three_clients():
    first, second, third = (check(games.THREE) for check in PROPERTIES)
    assert (first.count, first.share, first.unknown) == (6, 1.0, 0)
    np.testing.assert_allclose(first.largest, 0.22)
    assert first.where[0].tolist() == [0b101, 0b010]
    np.testing.assert_allclose(first.gap[0], -0.22)
    assert (second.count, second.largest, len(second.gap)) == (0, 0.0, 0)
    assert (third.count, third.share) == (5, 5 / 6)
    assert [check(games.GLOVE).count for check in PROPERTIES] == [0, 0, 1]


@pytest.mark.parametrize(("clients", "pairs"), [(10, 28_501), pytest.param(12, 261_625, marks=pytest.mark.thorough)])
def test_numbers_of_inequalities(clients, pairs):
    falling = -(members_of(clients).sum(axis=1) ** 2.0)
    counts = [check(falling).count for check in PROPERTIES]
    assert counts == [pairs, clients * 2 ** (clients - 1), math.comb(clients, 2) * 2 ** (clients - 2)]


def expected(values, check):
    """All gaps by what they are about, from the definitions."""
    clients = int(math.log2(len(values)))
    sets = [frozenset(c) for size in range(clients + 1) for c in itertools.combinations(range(clients), size)]
    code = lambda members: sum(2**i for i in members)  # noqa: E731
    v = lambda *parts: values[code(frozenset().union(*parts))]  # noqa: E731
    found = {}
    if check is superadditivity:
        for a, b in itertools.product(sets, sets):
            if a and b and not a & b and min(a) < min(b):
                found[code(a), code(b)] = v(a, b) - v(a) - v(b) + values[0]
    for i in range(clients):
        for a in sets:
            if check is monotonicity and i not in a:
                found[code(a), i] = v(a, {i}) - v(a)
            for j in range(i + 1, clients):
                if check is convexity and not a & {i, j}:
                    found[code(a), i, j] = v(a, {i, j}) - v(a, {i}) - v(a, {j}) + v(a)
    return found


@pytest.mark.parametrize("check", PROPERTIES)
@given(clients=st.integers(1, 5), seed=st.integers(0, 100))
def test_the_definitions(check, clients: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-3, 6, 2**clients) / 2
    gaps = expected(values, check)
    violated = {key: gap for key, gap in gaps.items() if gap < -1e-9}
    found = check(values, listed=1000)
    assert (found.count, found.share) == (len(violated), len(violated) / len(gaps) if gaps else 0)
    assert found.largest == -min([0.0, *violated.values()])
    assert {tuple(about): gap for about, gap in zip(found.where.tolist(), found.gap, strict=True)} == violated
    assert (np.diff(found.gap) >= 0).all()
    few = check(values, listed=2)
    assert (few.count, few.largest, len(few.gap)) == (found.count, found.largest, min(2, found.count))
    assert few.where.tolist() == found.where[:2].tolist()


def test_rounding_is_no_violation():
    additive = members_of(5) @ np.array([0.1, 0.2, 0.3, 0.7, 1.1])
    assert [check(additive).count for check in PROPERTIES] == [0, 0, 0]
    assert superadditivity(games.THREE, tolerance=0.15).count == 3


def test_over_seeds_an_interval_decides():
    random = np.random.default_rng(0)
    sure = games.THREE[None] + random.normal(scale=1e-4, size=(5, 8))
    found = superadditivity(sure)
    assert found.count == 6
    np.testing.assert_allclose(found.largest, 0.22, atol=1e-3)
    unsure = games.THREE[None] + random.normal(scale=0.5, size=(5, 8))
    gap = unsure[:, 0b111] - unsure[:, 0b101] - unsure[:, 0b010] + unsure[:, 0]
    counted = superadditivity(unsure)
    assert counted.count < 6
    assert ([0b101, 0b010] in counted.where.tolist()) == (error_bars(gap).high < 0)
    assert superadditivity(unsure, level=0.01).count > counted.count
    assert superadditivity(games.THREE[None]).count == 6  # one seed has no interval


def test_a_diverged_coalition_is_counted_apart():
    values = games.THREE.copy()
    values[0b011] = np.nan
    found = monotonicity(values)
    assert (found.count, found.unknown) == (0, 3)
    assert superadditivity(values).unknown == 2
    assert [check([0.5, 0.25]).count for check in PROPERTIES] == [0, 1, 0]
