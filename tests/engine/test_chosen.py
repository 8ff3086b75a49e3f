"""Federations chosen out of a stack: a run is that of the single federation, and all choices share programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, data
from fljax.protocol import Federation
from fljax.training import Local
from tests.compiled import compilations
from tests.data.test_datasets import FRAME, OPTIONS
from tests.refusals import refuses

BLOBS = data.load("blobs", samples=160, classes=3, seed=1)
TASK = fljax.models.logistic_regression(BLOBS.x.shape[1:], 3)
PLAN = fljax.Plan(algorithms.scaffold, {"task": TASK, "local": Local(0.2, 2, steps=2), "clients_per_round": 3})
ALIKE = {"clients": 4, "unseen": 1, "valid_fraction": 0.2}
# In the last two every client has more than half of the rows of the largest; in the others some have few.
SINGLES = [
    *data.federations(BLOBS, "dirichlet", alpha=0.7, seeds=3, **ALIKE),
    *data.federations(BLOBS, seeds=2, **ALIKE),
]
STACKED: Any = data.stack(SINGLES)


def play(federation: Federation, *seeds: int) -> Any:
    return fljax.runs(PLAN, federation, fljax.Over({"server_lr": np.array([0.5, 2.0])}), rounds=2, seeds=seeds)


@pytest.mark.in_turn
def test_a_run_on_a_choice_is_that_of_its_federation() -> None:
    """To the bit on a CPU. A loop of known length, which the last two would allow, does not tell choices apart."""
    found = play(data.choose(data.choose(STACKED, [4, 1, 2]), [0, 1, 0]), 7, 3, 9)
    with compilations() as seen:
        play(data.choose(STACKED, np.array([3, 4, 3])), 1, 2, 5)
    assert seen == []
    assert data.choose(STACKED, 4).examples.x is STACKED.examples.x
    for seed, place in zip((7, 3, 9), (4, 1, 4), strict=True):
        for single in (SINGLES[place], data.choose(STACKED, place)):
            expected = play(single, seed)
            for name in ("test_loss", "valid_loss", "unseen_test_loss"):
                np.testing.assert_array_equal(found[name].sel(seed=[seed]), expected[name])


def loss(rate: Any, federation: Federation, seed: Any) -> Any:
    algorithm = PLAN.build(**PLAN.arguments, server_lr=rate)
    state, _ = fljax.rollout(algorithm, federation, rounds=2, seed=seed)
    return jnp.mean(fljax.evaluate_clients(algorithm, federation, state)["test_loss"])


@pytest.mark.in_turn
def test_rollouts_of_chosen_federations_side_by_side_are_those_of_simulate() -> None:
    """With the derivative by a float of the algorithm: the stack is an argument of the program, and so are places."""
    places, seeds = np.array([4, 1]), np.array([7, 3])
    one = lambda stacked, place, seed: jax.value_and_grad(loss)(1.5, data.choose(stacked, place), seed)  # noqa: E731
    found, slope = jax.jit(jax.vmap(one, (None, 0, 0)))(STACKED, places, seeds)
    plan = PLAN._replace(arguments={**PLAN.arguments, "server_lr": 1.5})
    metrics = fljax.simulate(plan, data.choose(STACKED, places), rounds=2, seeds=seeds).metrics
    np.testing.assert_allclose(found, metrics["test_loss"].isel(evaluated_round=-1).mean("client"), rtol=1e-5)
    alone = jax.jit(jax.grad(loss))(1.5, SINGLES[1], 3)
    np.testing.assert_allclose(slope[1], alone, rtol=1e-4)
    assert abs(alone) > 1e-3


@pytest.mark.unchecked
def test_what_cannot_be_chosen_is_refused_in_one_sentence() -> None:
    bad: list[Any] = [5, -1, [0, 5], [], 1.0, [[0]], True]
    for place in bad:
        refuses(lambda place=place: data.choose(STACKED, place), r"expected places from 0 to 4 of stacked federations")
    refuses(lambda: data.choose(SINGLES[0], 0), "expected several federations to choose from")
    frames = data.stack([data.from_frame(FRAME, standardise=True, seed=seed, **OPTIONS) for seed in (0, 1)])
    refuses(lambda: data.choose(frames, 0), "expected federations of one data set")
    refuses(lambda: loss(1.0, STACKED, 0), "got one of 5 seeds, of which fljax.data.choose")
