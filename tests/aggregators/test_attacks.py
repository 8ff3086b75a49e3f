"""Attacks of clients that know the honest updates: bisections in NumPy, numbers by hand, and edges."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax import aggregators as ag
from tests.aggregators.test_clipping import stacked
from tests.drawn import at_most
from tests.precision import enable_x64

WAYS: dict[str, Any] = {
    "deviation": lambda rows: -rows.std(axis=0, ddof=1),
    "unit": lambda rows: -rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0)),
    "sign": lambda rows: -np.sign(rows.mean(axis=0)),
}


def bisected(rows: Any, name: str) -> Any:
    """The farthest vector whose squared distances to the rows reach as far as those of a row, by bisection."""
    squares = lambda point: REACH[name[:7]](np.square(rows - point).sum(axis=1))  # noqa: E731
    sent = lambda factor: rows.mean(axis=0) + factor * WAYS[name[9:]](rows)  # noqa: E731
    most, low, high = max(map(squares, rows)), 0.0, 1e6
    for _ in range(100):
        low, high = (middle, high) if squares(sent(middle := (low + high) / 2)) <= most else (low, middle)
    return sent(low)


REACH: dict[str, Any] = {"min_max": np.max, "min_sum": np.sum}
PAIRS = [f"{name}, {way}" for name in REACH for way in WAYS]
ATTACKS: dict[str, Any] = {
    "a_little_is_enough": lambda updates, honest, deviations=1.5: ag.a_little_is_enough(
        updates, honest, ~honest, deviations=deviations
    ),
    "inner_product_manipulation": ag.inner_product_manipulation,
    "mimic": lambda updates, honest: ag.mimic(updates, honest, jnp.array([9, 4, 3, 3, 8, 7, 0, 1, 2])[: len(honest)]),
    **{name: functools.partial(getattr(ag, name[:7]), direction=name[9:]) for name in PAIRS},
}
PROGRAMS = {name: jax.jit(attack) for name, attack in ATTACKS.items()}
# Six honest updates and one that is absent.
ROWS = np.array([(0, 0), (1, 0.1), (0.2, 0.9), (1.1, 1.2), (0.5, 0.4), (0.3, 0.7), (10, 10)])
MEAN, FACTORS = ROWS[:6].mean(axis=0), (1.169135, 0.754615, 0.533937, 1.353021, 0.873372, 0.617567)
MOVED = [MEAN + factor * WAYS[name[9:]](ROWS[:6]) for name, factor in zip(PAIRS, FACTORS, strict=True)]
BY_HAND = dict(zip(ATTACKS, [[-0.150229, -0.151962], -0.5 * MEAN, ROWS[2], *MOVED], strict=True))


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    with enable_x64(True):
        np.testing.assert_allclose(ATTACKS[name](ROWS, np.arange(7) < 6), BY_HAND[name], atol=1e-6)


@pytest.mark.parametrize(
    ("clients", "attackers", "zeta"), [(50, 12, 0.336038), (20, 4, 0.157311), (10, 2, 0), (4, 3, 0)]
)
def test_deviations_by_the_numbers_of_clients(clients: int, attackers: int, zeta: float) -> None:
    place, rows = jnp.arange(clients + 3), np.random.default_rng(0).normal(size=(clients + 3, 2))
    honest, bad = (attackers <= place) & (place < clients), place < attackers
    with enable_x64(True):
        found = ag.a_little_is_enough(rows, honest, bad)
    expected = rows[honest].mean(axis=0) - (zeta and zeta * rows[honest].std(axis=0, ddof=1))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.thorough
@given(st.integers(0, 10**6), st.sampled_from(PAIRS), st.sampled_from([1e-9, 1.0, 1e25]))
@at_most(100)
def test_closed_forms_are_bisections_and_absent_rows_are_not_read(seed: int, name: str, size: float) -> None:
    rng = np.random.default_rng(seed)
    honest = rng.permutation(9) < rng.integers(2, 9)
    rows = rng.normal(size=(honest.sum(), 6)) * rng.choice([0.1, 1, 7], size=6) + rng.normal(size=6)
    spread = np.full((9, 6), np.nan)
    spread[honest] = size * rows
    found = PROGRAMS[name](stacked(spread), honest | (rng.uniform(size=9) < 0.5))  # the others are not finite
    found = np.array([*np.ravel(found["w"]), *found["b"]], np.float64) / size
    np.testing.assert_allclose(found, bisected(rows, name), rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS)
def test_edges(name: str) -> None:
    """Nobody is honest, one row is, rows are equal; without a direction; in half precision; without leaves."""
    attack, slopes = PROGRAMS[name], jax.jit(jax.jacrev(ATTACKS[name]))
    rows, factor, all = np.random.default_rng(0).normal(size=(3, 6)), -0.5 if "inner" in name else 1, np.ones(3, bool)
    one, same = np.arange(3) == 1, np.ones((3, 6))
    for x, honest, expected in ((rows, ~all, 0 * rows[0]), (rows, one, rows[1]), (same, all, same[0])):
        np.testing.assert_allclose(attack(np.float32(x), honest), factor * expected, rtol=1e-6)
        assert np.isfinite(slopes(np.float32(x), honest)).all()
    if name.endswith(("unit", "sign")):
        np.testing.assert_array_equal(attack(jnp.asarray([[1.0], [-1.0]]), all[:2]), [0])
    half = attack(jnp.asarray(rows, jnp.bfloat16), all)
    np.testing.assert_allclose(half, attack(np.float32(rows), all).astype(jnp.bfloat16), rtol=0.05, atol=0.05)
    assert ATTACKS[name]((), all) == ()
