"""Simulated payoffs beside theory: who joins a federation of Donahue and Kleinberg, in expectation over its draws."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import games, theory
from fljax.contributions import simultaneous_bounds
from fljax.protocol import ClientData, Examples, Federation, Rows
from tests.games.mean_estimation import PLAN

SIZES, NOISE, SPREAD = np.array([5, 5, 25]), 10.0, 1.0
SEEDS, ROUNDS = 300, 60


def drawn(seeds: int) -> Federation:
    """Of each seed, three true means ``N(0, 1)`` and the means of 5, 5 and 25 samples with the variance 10.

    A client trains on its sample mean, which it has as often as it has samples, and is judged by its true mean.
    """
    random, clients = np.random.default_rng(0), len(SIZES)
    true = random.normal(0, np.sqrt(SPREAD), (seeds, clients))
    local = true + random.normal(size=true.shape) * np.sqrt(NOISE / SIZES)
    y = np.concatenate([local, true], axis=1).astype(np.float32).ravel()
    first = 2 * clients * np.arange(seeds)[:, None] + np.arange(clients)[None]

    def rows(begin: np.ndarray, size: Any) -> Rows:
        index = np.repeat(begin[:, :, None], SIZES.max(), axis=2).astype(np.int32)
        return Rows(jnp.asarray(index), jnp.asarray(np.broadcast_to(size, begin.shape).astype(np.int32)))

    ids = jnp.asarray(np.broadcast_to(np.arange(clients, dtype=np.int32), (seeds, clients)))
    parts = rows(first, SIZES), rows(first, 0), rows(first + clients, 1)
    return Federation(Examples(jnp.zeros((len(y), 1), jnp.float32), jnp.asarray(y)), ClientData(ids, *parts))


def _errors(joins: np.ndarray) -> np.ndarray:
    return theory.coalition_errors(SIZES, joins, within_variance=SPREAD, noise_variance=NOISE)


@pytest.mark.thorough
def test_who_joins_agrees_with_theory() -> None:
    """Oracle D: expected squared errors of coalitions, within simultaneous bounds of all payoffs."""
    plan = PLAN._replace(arguments={**PLAN.arguments, "weights": "size"})
    table = games.payoffs(plan, drawn(SEEDS), rounds=ROUNDS, shape="join", seeds=SEEDS)
    joins = table.choices == 0
    expected = np.where(joins, _errors(joins), NOISE / SIZES)
    bounds = simultaneous_bounds(-2 * table.payoffs.reshape(SEEDS, -1), 0.95)
    assert (bounds.low < expected.ravel()).all()
    assert (expected.ravel() < bounds.high).all()
    grand = joins.all(axis=1)
    np.testing.assert_allclose(expected[grand], [[1.551020, 1.551020, 0.408163]], atol=5e-7)
    # The bounds are narrow enough to tell what a small client has alone from what it has with its like.
    pair = (joins == (True, True, False)).all(axis=1)
    half = (bounds.high - bounds.mean).reshape(expected.shape)[pair, 0]
    assert half < 0.5
