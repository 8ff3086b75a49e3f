"""Attacks of clients that know the honest updates: the papers' bisections in NumPy, numbers by hand, and edges."""

from __future__ import annotations

from collections.abc import Callable
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

# Six honest updates and one that is absent.
ROWS = np.array([(0, 0), (1, 0.1), (0.2, 0.9), (1.1, 1.2), (0.5, 0.4), (0.3, 0.7), (10, 10)])
HONEST = np.arange(7) < 6
MEAN, DEVIATION = ROWS[:6].mean(axis=0), ROWS[:6].std(axis=0, ddof=1)
DIRECTIONS = ("deviation", "unit", "sign")
Rows = np.ndarray


def way(rows: Rows, direction: str) -> Rows:
    """The direction of an attack from the mean of honest rows."""
    mean = rows.mean(axis=0)
    if direction == "unit":
        return -mean / np.linalg.norm(mean)
    return -np.sign(mean) if direction == "sign" else -rows.std(axis=0, ddof=1)


def bisected(rows: Rows, direction: str, reach: Callable[[Rows], float]) -> Rows:
    """The farthest vector whose squared distances to the rows reach as far as those of a row, by bisection."""
    squares = lambda point: np.square(rows - point).sum(axis=1)  # noqa: E731
    most = max(reach(squares(row)) for row in rows)
    sent = lambda factor: rows.mean(axis=0) + factor * way(rows, direction)  # noqa: E731
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if reach(squares(sent(middle))) <= most else (low, middle)
    return sent(low)


ORACLES: dict[str, Callable[[Rows, str], Rows]] = {
    "min_max": lambda rows, direction: bisected(rows, direction, np.max),
    "min_sum": lambda rows, direction: bisected(rows, direction, np.sum),
}


@pytest.mark.parametrize(
    ("clients", "attackers", "zeta"), [(50, 12, 0.336038), (20, 4, 0.157311), (10, 2, 0), (4, 3, 0)]
)
def test_deviations_by_the_numbers_of_clients(clients: int, attackers: int, zeta: float) -> None:
    """Absent rows are no clients."""
    with enable_x64(True):
        rows = jnp.asarray(np.random.default_rng(0).normal(size=(clients + 3, 2)))
        bad, honest = np.arange(clients + 3) < attackers, np.arange(clients + 3) < clients
        honest &= ~bad
        found = ag.a_little_is_enough(rows, jnp.asarray(honest), jnp.asarray(bad))
        expected = rows[honest].mean(axis=0) - zeta * (rows[honest].std(axis=0, ddof=1) if zeta else 0)
        np.testing.assert_allclose(found, expected, atol=1e-6)


FACTORS = {  # of the specification, and NumPy's
    ("min_max", "deviation"): 1.169135,
    ("min_max", "unit"): 0.754615,
    ("min_max", "sign"): 0.533937,
    ("min_sum", "deviation"): 1.353021,
    ("min_sum", "unit"): 0.873372,
    ("min_sum", "sign"): 0.617567,
}


@pytest.mark.parametrize(("name", "direction"), FACTORS)
def test_factors_by_hand(name: str, direction: str) -> None:
    with enable_x64(True):
        found = getattr(ag, name)(jnp.asarray(ROWS), jnp.asarray(HONEST), direction=direction)
    np.testing.assert_allclose(found, MEAN + FACTORS[name, direction] * way(ROWS[:6], direction), atol=1e-6)
    np.testing.assert_allclose(found, ORACLES[name](ROWS[:6], direction), atol=1e-12)


def test_other_attacks_by_hand() -> None:
    with enable_x64(True):
        rows, honest, nobody = jnp.asarray(ROWS), jnp.asarray(HONEST), jnp.zeros(7, bool)
        found = ag.a_little_is_enough(rows, honest, nobody, deviations=1.5)
        np.testing.assert_allclose(found, [-0.150229, -0.151962], atol=1e-6)
        np.testing.assert_allclose(ag.min_max(rows, honest), [-0.003128, 0.002875], atol=1e-6)
        np.testing.assert_allclose(ag.inner_product_manipulation(rows, honest), -0.5 * MEAN, rtol=1e-12)
        np.testing.assert_array_equal(ag.mimic(rows, honest, jnp.asarray([9, 4, 3, 3, 8, 7, 0])), ROWS[2])


ATTACKS: dict[str, Callable[[Any, Any], Any]] = {
    "a_little_is_enough": lambda x, honest: ag.a_little_is_enough(x, honest, ~honest, deviations=1.5),
    "inner_product_manipulation": lambda x, honest: ag.inner_product_manipulation(x, honest, scale=2.0),
    "mimic": lambda x, honest: ag.mimic(x, honest, jnp.arange(len(honest))),
    **{
        f"{name}, {direction}": lambda x, honest, name=name, direction=direction: getattr(ag, name)(
            x, honest, direction=direction
        )
        for name, direction in FACTORS
    },
}


PROGRAMS = {name: jax.jit(attack) for name, attack in ATTACKS.items()}


@pytest.mark.thorough
@given(st.integers(0, 10**6), st.sampled_from(list(FACTORS)), st.sampled_from([1e-9, 1.0, 1e25]))
@at_most(100)
def test_closed_forms_are_bisections_and_absent_rows_are_not_read(seed: int, kind: Any, size: float) -> None:
    rng = np.random.default_rng(seed)
    honest = rng.permutation(9) < rng.integers(2, 9)
    rows = rng.normal(size=(honest.sum(), 6)) * rng.choice([0.1, 1, 7], size=6) + rng.normal(size=6)
    spread = np.full((9, 6), np.nan)
    spread[honest] = size * rows
    honest |= rng.uniform(size=9) < 0.5  # but not finite
    found = PROGRAMS[", ".join(kind)](stacked(spread), honest)
    found = np.concatenate([np.ravel(found["w"]), found["b"]], dtype=np.float64) / size
    np.testing.assert_allclose(found, ORACLES[kind[0]](rows, kind[1]), rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS)
def test_edges(name: str) -> None:
    """Nobody honest, one honest row, equal rows, rows whose mean is 0, half precision and nothing."""
    attack, slopes = PROGRAMS[name], jax.jit(jax.jacrev(ATTACKS[name]))
    factor = -2.0 if name.startswith("inner") else 1.0
    rows, equal = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32), np.ones((3, 6), np.float32)
    for x, honest, expected in (
        (rows, [False] * 3, np.zeros(6)),
        (rows, [False, True, False], factor * rows[1]),
        (equal, [True] * 3, factor * equal[0]),
        (np.zeros((3, 6)), [True] * 3, np.zeros(6)),
    ):
        arguments = np.float32(x), np.array(honest)
        np.testing.assert_allclose(attack(*arguments), expected, rtol=1e-6)
        assert np.isfinite(slopes(*arguments)).all()
    if name.endswith(("unit", "sign")):  # no direction
        np.testing.assert_array_equal(attack(jnp.asarray([[1.0], [-1.0]]), np.ones(2, bool)), [0])
    half = attack(jnp.asarray(rows, jnp.bfloat16), np.ones(3, bool))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(half), attack(jnp.asarray(rows), np.ones(3, bool)), rtol=0.05, atol=0.05)
    assert ATTACKS[name]((), np.ones(3, bool)) == ()
