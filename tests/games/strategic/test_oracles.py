"""Simulated payoffs beside theory, in expectation over draws of data, within simultaneous bounds of all payoffs."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import games, theory
from fljax.aggregators import iafl_rates
from fljax.algorithms import iafl
from fljax.contributions import simultaneous_bounds
from fljax.engine import Plan
from fljax.protocol import ClientData, Examples, Federation, Rows
from fljax.scenarios import ByReport, Strategy
from fljax.theory.game import Game
from fljax.training import Local
from tests.games.mean_estimation import PLAN, TARGETS, TASK, fixed_point

SIZES, NOISE, SPREAD = np.array([5, 5, 25]), 10.0, 1.0
SEEDS, ROUNDS = 300, 60


def federation_of(samples: np.ndarray, true: np.ndarray, sizes: np.ndarray) -> Federation:
    """Clients of each seed train on their samples ``[seeds, N, n]``, repeated up to its size, and have true means."""
    seeds, clients, count = samples.shape
    most = int(sizes.max())
    values = np.concatenate([samples, np.broadcast_to(true, (seeds, clients))[:, :, None]], axis=2)
    first = np.arange(seeds * clients).reshape(seeds, clients, 1) * (count + 1)

    def rows(index: np.ndarray, size: Any) -> Rows:
        index = np.broadcast_to(index, (seeds, clients, most)).astype(np.int32)
        return Rows(jnp.asarray(index), jnp.asarray(np.broadcast_to(size, (seeds, clients)).astype(np.int32)))

    ids = jnp.asarray(np.broadcast_to(np.arange(clients, dtype=np.int32), (seeds, clients)))
    parts = rows(first + np.arange(most) % count, sizes), rows(first, 0), rows(first + count, 1)
    y = values.astype(np.float32).ravel()
    return Federation(Examples(jnp.zeros((len(y), 1), jnp.float32), jnp.asarray(y)), ClientData(ids, *parts))


def drawn(seeds: int) -> Federation:
    """Three true means ``N(0, 1)`` of each seed, and the means of 5, 5 and 25 samples with the variance 10."""
    random, clients = np.random.default_rng(0), len(SIZES)
    true = random.normal(0, np.sqrt(SPREAD), (seeds, clients))
    local = true + random.normal(size=true.shape) * np.sqrt(NOISE / SIZES)
    return federation_of(local[:, :, None], true, SIZES)


def assert_within_bounds(payoffs: np.ndarray, expected: np.ndarray, half: float) -> None:
    """Of payoffs ``[R, P, N]``, whose bounds are narrower than ``half``; a draw in a thousand fails."""
    bounds = simultaneous_bounds(payoffs.reshape(len(payoffs), -1), 0.999)
    assert (bounds.low <= expected.ravel()).all()
    assert (expected.ravel() <= bounds.high).all()
    assert (bounds.high - bounds.mean).max() < half


def _errors(joins: np.ndarray) -> np.ndarray:
    return theory.coalition_errors(SIZES, joins, within_variance=SPREAD, noise_variance=NOISE)


@pytest.mark.thorough
def test_who_joins_agrees_with_theory() -> None:
    """Oracle D: expected squared errors of coalitions, within simultaneous bounds of all payoffs."""
    plan = PLAN._replace(arguments={**PLAN.arguments, "weights": "size"})
    table = games.payoffs(plan, drawn(SEEDS), rounds=ROUNDS, shape="join", seeds=SEEDS)
    joins = table.choices == 0
    expected = np.where(joins, _errors(joins), NOISE / SIZES)
    # Narrow enough to tell what a small client has alone, 2, from what it has with its like, 3/2.
    assert_within_bounds(-2 * table.payoffs, expected, 0.75)
    grand = joins.all(axis=1)
    np.testing.assert_allclose(expected[grand], [[1.551020, 1.551020, 0.408163]], atol=5e-7)


@pytest.mark.thorough
def test_scaled_updates_agree_with_mean_estimation() -> None:
    """Oracle M from samples: ``E u_i = -((w* - c_i)^2 + t sum_j s_j^2 / (sum_j s_j)^2) / 2`` with their variance t."""
    variance, scales = 0.25, np.array([[1, 1, 1], [1, 1, 2], [1, 1, 4], [1, 1, 0]])
    means = np.array(TARGETS) + np.sqrt(variance) * np.random.default_rng(1).normal(size=(SEEDS, 3))
    lies = {f"update times {scale}": Strategy(own=float(scale)) for scale in scales[1:, 2]}
    table = games.payoffs(
        PLAN,
        federation_of(means[:, :, None], np.array(TARGETS), np.ones(3, int)),
        rounds=ROUNDS,
        seeds=SEEDS,
        deviations=lies,
        deviators=[2],
        outside=False,
    )
    around = variance * (scales**2).sum(axis=1) / scales.sum(axis=1) ** 2
    expected = -((fixed_point(scales)[:, None] - np.array(TARGETS)) ** 2 + around[:, None]) / 2
    assert_within_bounds(table.payoffs, expected, 0.5)
    gains = games.unilateral_gains(table).gains
    known = [1.96875, 3.375, -5.625] - (around[1:] - around[0]) / 2
    assert_within_bounds(gains[:, :, None], known, 0.5)


SAMPLES, VARIANCE, COST = 8, 8.0, 0.02
# Of IAFL's clients: whether it trains on all samples, and what it reports, in shares of all.
PLAYED = {"honest": (1.0, 1.0), "half": (0.5, 0.5), "half reported": (1.0, 0.5), "nothing reported": (1.0, 0.0)}


def _utilities_of_iafl(choices: np.ndarray) -> np.ndarray:
    """``-v / 2 - c e_i`` with the variance v of the mean over ``S_i``, which has ``1 + ceil(s_i (N - 1))`` clients."""
    effort, reported = np.array(list(PLAYED.values()))[choices].T
    variance, others = VARIANCE / (SAMPLES * effort), len(choices) - 1
    chosen = np.ceil(np.minimum(reported, 1) * others)
    of_others = (variance.sum() - variance) / others  # of a client that is drawn
    return -(variance + chosen * of_others) / (1 + chosen) ** 2 / 2 - COST * effort


@pytest.mark.thorough
def test_who_contributes_agrees_with_the_contribution_game() -> None:
    """One round of IAFL by clients that estimate one mean, each step to the mean of the own samples.

    ``g(x) = -VARIANCE / (2 x)`` of x samples. Where all clients contribute alike, the model of client i averages
    ``p_i + s_i sum_{j != i} p_j`` samples, as in the game; else it is worse, since all updates have one weight.
    """
    seeds, clients = 400, 3
    samples = 1 + np.sqrt(VARIANCE) * np.random.default_rng(2).normal(size=(seeds, clients, SAMPLES))
    arguments = {"task": TASK, "local": Local(1.0, SAMPLES, steps=1), "contribution": np.ones(clients), "ceiling": 1.0}
    lies = {
        name: Strategy(effort=effort, factor=ByReport(contribution=reported))
        for name, (effort, reported) in list(PLAYED.items())[1:]
    }
    table = games.payoffs(
        Plan(iafl, arguments),
        federation_of(samples, np.ones(clients), np.full(clients, SAMPLES)),
        rounds=1,
        seeds=seeds,
        deviations=lies,
        shape="symmetric",
        utility=games.Utility(cost=COST),
        outside=False,
        max_runs=20 * seeds,
    )
    expected = np.array([_utilities_of_iafl(row) for row in table.choices])
    assert_within_bounds(table.payoffs, expected, 0.2)

    checked = 0
    for row, utilities in zip(table.choices, expected, strict=True):
        effort, reported = np.array(list(PLAYED.values()))[row].T
        rates = functools.partial(_rates, factor=reported / effort)
        game = Game(rates, COST / SAMPLES, lambda x: -VARIANCE / (2 * x))
        of_theory = np.asarray(theory.utilities(game, SAMPLES * effort))
        assert (utilities < of_theory + 1e-6).all()
        if len(set(effort)) == 1:
            np.testing.assert_allclose(utilities, of_theory, atol=1e-6)
            checked += 1
    assert checked == 11  # ten profiles of reports, and one in which all contribute half


def _rates(contribution: Any, factor: np.ndarray) -> Any:
    return iafl_rates(factor * contribution, ceiling=float(SAMPLES), kappa=0.0)
