"""Federations chosen out of a stack: a run is that of the single federation, and all choices share programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import algorithms, data
from fljax.engine import Over, Plan, runs
from fljax.protocol import Federation
from fljax.training import Local
from tests.compiled import compilations
from tests.data.test_datasets import FRAME, OPTIONS
from tests.refusals import refuses

BLOBS = data.load("blobs", samples=160, classes=3, seed=1)
TASK, LOCAL = fljax.models.logistic_regression(BLOBS.x.shape[1:], 3), Local(0.2, 2, steps=2)
PLAN = Plan(algorithms.scaffold, {"task": TASK, "local": LOCAL, "clients_per_round": 3})
OVER = Over({"server_lr": np.array([0.5, 1.0, 2.0])})
ALIKE = {"clients": 4, "unseen": 1, "valid_fraction": 0.2}


@pytest.fixture(scope="module")
def singles() -> list[Federation]:
    """In the last two every client has more than half of the rows of the largest; in the others some have few."""
    uneven = data.federations(BLOBS, "dirichlet", alpha=0.7, seeds=3, **ALIKE)
    return [*uneven, *data.federations(BLOBS, seeds=2, **ALIKE)]


def play(federation: Federation, seeds: tuple[int, ...]) -> Any:
    return runs(PLAN, federation, OVER, rounds=2, seeds=seeds)


@pytest.mark.in_turn
def test_a_run_on_a_choice_is_that_of_its_federation(singles: list[Federation]) -> None:
    """To the bit on a CPU; a federation may be chosen twice, and a choice may be chosen from."""
    stacked, seeds = data.stack(singles), (7, 3, 9)
    found = play(data.choose(data.choose(stacked, [4, 1, 2]), [0, 1, 0]), seeds)
    for seed, place in zip(seeds, (4, 1, 4), strict=True):
        for single in (singles[place], data.choose(stacked, place)):
            expected = play(single, (seed,))
            for name in ("test_loss", "valid_loss", "unseen_test_loss"):
                np.testing.assert_array_equal(found[name].sel(seed=[seed]), expected[name])


@pytest.mark.in_turn
def test_choices_of_one_number_share_their_program(singles: list[Federation]) -> None:
    """Also where every client has about as many rows as the largest, of which a loop could make use."""
    stacked = data.stack(singles)
    play(data.choose(stacked, [0, 1]), (7, 3))
    with compilations() as seen:
        play(data.choose(stacked, np.array([2, 4])), (5, 8))
        play(data.choose(stacked, [3, 4]), (1, 2))
    assert seen == []


def loss(rate: Any, federation: Federation, seed: Any) -> Any:
    """The mean test loss after two rounds with this learning rate of the server."""
    algorithm = PLAN.build(**PLAN.arguments, server_lr=rate)
    state, _ = fljax.rollout(algorithm, federation, rounds=2, seed=seed)
    return jnp.mean(fljax.evaluate_clients(algorithm, federation, state)["test_loss"])


@pytest.mark.in_turn
def test_rollouts_of_chosen_federations_side_by_side_are_those_of_simulate(singles: list[Federation]) -> None:
    """With the derivative by a float of the algorithm: the stack is an argument of the program, and so are places."""
    stacked, seeds, places = data.stack(singles), np.array([7, 3]), np.array([4, 1])

    def one(stacked: Federation, place: Any, seed: Any) -> Any:
        return jax.value_and_grad(loss)(1.5, data.choose(stacked, place), seed)

    found, slope = jax.jit(jax.vmap(one, (None, 0, 0)))(stacked, places, seeds)
    chosen = data.choose(stacked, places)
    plan = PLAN._replace(arguments={**PLAN.arguments, "server_lr": 1.5})
    metrics = fljax.simulate(plan, chosen, rounds=2, seeds=seeds).metrics
    np.testing.assert_allclose(found, metrics["test_loss"].isel(evaluated_round=-1).mean("client"), rtol=1e-5)
    alone = jax.jit(jax.grad(loss))(1.5, singles[1], 3)
    np.testing.assert_allclose(slope[1], alone, rtol=1e-4)
    assert abs(alone) > 1e-3


@pytest.mark.unchecked
def test_what_cannot_be_chosen_is_refused_in_one_sentence(singles: list[Federation]) -> None:
    stacked: Any = data.stack(singles)
    bad: list[Any] = [5, -1, [0, 5], [], 1.0, [[0]], True]
    for place in bad:
        refuses(lambda place=place: data.choose(stacked, place), r"expected places from 0 to 4 of stacked federations")
    refuses(lambda: data.choose(singles[0], 0), "expected several federations to choose from")
    frames = [data.from_frame(FRAME, standardise=True, seed=seed, **OPTIONS) for seed in (0, 1)]
    refuses(lambda: data.choose(data.stack(frames), 0), "expected federations of one data set")
    refuses(
        lambda: fljax.rollout(PLAN.build(**PLAN.arguments), stacked, rounds=1),
        r"got one of 5 seeds, of which fljax.data.choose\(federation, place\) gives one",
    )
