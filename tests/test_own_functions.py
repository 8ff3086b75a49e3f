"""Functions of users: wrong ones are refused by name before anything is trained, and failures later lose no results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import fljax
from fljax import algorithms, contributions, data, games, models

DRAW = np.random.default_rng(0)
X, OWNERS = DRAW.normal(size=(60, 4)).astype("float32"), np.repeat(["north", "south", "west"], 20)
Y = np.where(OWNERS == "west", 0, X[:, 0] > 0).astype("int32")  # west has one class
FEDERATION = data.from_arrays(X, Y, OWNERS, valid_fraction=0.2)
TASK, LOCAL = models.logistic_regression((4,), 2), fljax.Local(0.1, 8, steps=1)
FEDAVG = algorithms.fedavg(TASK, LOCAL, clients_per_round=None)


class Trained(Exception):
    """A round was done, although a function is wrong."""


def never(block: fljax.Block) -> None:
    raise Trained(block.round)


def simulate(algorithm: Any = FEDAVG, **options: Any) -> Any:
    return fljax.simulate(algorithm, FEDERATION, **{"rounds": 3, "evaluate_every": 1, "callbacks": [never]} | options)


WRONG: dict[str, Callable[..., Any]] = {
    "None": lambda *_, **__: None,
    "text": lambda *_, **__: "0.5",
    "a pair": lambda *_, **__: (1.0, 2.0),
    "objects": lambda *_, **__: {"a": [None]},
    "complex": lambda *_, **__: 1j,
    "another shape": lambda *_, **__: np.zeros((7, 3)),
    "an error": lambda *_, **__: {}["nope"],
    "no arguments": lambda: 1.0,
}
PLAN = fljax.Plan(algorithms.fedavg, {"task": TASK, "local": LOCAL, "clients_per_round": None})
EVERYBODY = fljax.Over(member=np.ones((1, 3), bool))
KEY = jax.random.key(0)


def compare(name: str = "fedavg", **options: Any) -> Any:
    how = {"rounds": 1, "callbacks": [never], "progress": False}
    return fljax.compare([name], FEDERATION, TASK, LOCAL, **how | options)


def task(**options: Any) -> Any:
    return simulate(algorithms.fedavg(models.task_from_module(nn.Dense(2), X[:1], **options), LOCAL))


def module_of(mine: Callable[..., Any]) -> nn.Module:
    class mine_(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return mine(nn.Dense(2)(x))

    return mine_()


def game(mine: Callable[..., Any]) -> Any:
    return contributions.estimate("permutation_shapley", contributions.CachedGame(mine, 3), key=KEY)


# Where a function of a user is taken: what is done with it.
PLACES: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "score of simulate": lambda mine: simulate(scores=[mine]),
    "score of compare": lambda mine: compare(scores=[mine]),
    "loss": lambda mine: task(loss=mine),
    "loss with labels": lambda mine: task(loss=mine, example_y=Y[:1]),
    "score of a task": lambda mine: task(score=mine),
    "score with labels": lambda mine: task(score=mine, example_y=Y[:1]),
    "prepare": lambda mine: task(prepare=mine),
    "augment": lambda mine: task(augment=mine),
    "module": lambda mine: models.task_from_module(module_of(mine), X[:1]),
    "nnx module": lambda mine: models.task_from_module(mine, X[:1]),
    "optimizer": lambda mine: simulate(algorithms.fedavg(TASK, LOCAL._replace(optimizer=mine))),
    "partition": lambda mine: data.federate(data.dataset(X, Y), mine, clients=3),
    "data": lambda mine: data.load(mine),
    "measure of rounds": lambda mine: simulate(algorithms.iafl(TASK, LOCAL, contribution=mine, clients_per_round=3)),
    "requirement": lambda mine: compare("incfl", requirement=mine),
    "value of coalitions": lambda mine: games.coalitions(PLAN, FEDERATION, rounds=1, value=mine),
    "utility": lambda mine: games.payoffs(PLAN, FEDERATION, rounds=1, utility=mine),
    "measure of runs": lambda mine: fljax.runs(PLAN, FEDERATION, EVERYBODY, rounds=1, measure=mine),
    "value of a game": lambda mine: contributions.exact_shapley(mine, 3),
    "value of orders": lambda mine: contributions.monte_carlo_shapley(KEY, mine, 3, 4),
    "value of a cached game": game,
}


@pytest.mark.unchecked
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_function_is_refused_by_name_before_training(place: str, wrong: str) -> None:
    def mine(*arguments: Any, **keywords: Any) -> Any:
        return WRONG[wrong](*arguments, **keywords)

    mine.__qualname__ = "mine"  # as of a module's function
    mine.__signature__ = inspect.signature(WRONG[wrong])  # type: ignore[attr-defined]
    if (place, wrong) == ("requirement", "no arguments"):
        return  # it is asked for what it has parameters for
    with pytest.raises((ValueError, fljax.AlgorithmError), match="mine") as refused:
        PLACES[place](mine)
    assert "\n" not in str(refused.value)


def strict(labels: np.ndarray, probabilities: np.ndarray) -> float:
    if len(np.unique(labels)) < 2:
        raise ValueError("one class")
    return float(np.mean(probabilities[:, 1]))


@pytest.mark.parametrize("score_every", [None, 1])
def test_a_score_that_fails_for_one_client_loses_nothing(score_every: int | None) -> None:
    words = r"the score 'strict' .* for client west, got ValueError: one class \(.*py:\d+\); it is NaN there"
    with pytest.warns(RuntimeWarning, match=words) as told:
        found = simulate(scores=[strict], score_every=score_every, callbacks=[])
    assert len(told) == 1
    assert np.isnan(found.metrics.score_strict[0, -1]).values.tolist() == [False, False, True]
    assert np.isfinite([found.metrics[name][0, -1] for name in ("pooled_score_strict", "average_score_strict")]).all()
    assert "client west" in found.metrics.score_strict.attrs["failed"]
    assert (int(found.metrics.rounds_done), found.records.sizes["round"]) == (3, 3)
    np.testing.assert_array_equal(found.metrics.test_loss, simulate(callbacks=[]).metrics.test_loss)
