"""Functions of users: wrong ones are refused by name before anything is trained, and failures later lose no results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fljax
from fljax import algorithms, data, models

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
    return fljax.simulate(algorithm, FEDERATION, **{"rounds": 3, "evaluate_every": 1} | options)


WRONG: dict[str, Callable[..., Any]] = {
    "None": lambda *_, **__: None,
    "text": lambda *_, **__: "0.5",
    "a pair": lambda *_, **__: (1.0, "x"),
    "a dictionary": lambda *_, **__: {"a": 1.0},
    "complex": lambda *_, **__: 1j,
    "another shape": lambda *_, **__: np.zeros((7, 3)),
    "an error": lambda *_, **__: {}["nope"],
}

PLACES: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "a score": lambda mine: simulate(scores=[mine], callbacks=[never]),
    "a score, compared": lambda mine: fljax.compare(
        ["fedavg"], FEDERATION, TASK, LOCAL, rounds=1, scores=[mine], callbacks=[never], progress=False
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_function_is_refused_by_name_before_training(place: str, wrong: str) -> None:
    def mine(*arguments: Any, **keywords: Any) -> Any:
        return WRONG[wrong](*arguments, **keywords)

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
        found = simulate(scores=[strict], score_every=score_every)
    assert len(told) == 1
    assert np.isnan(found.metrics.score_strict[0, -1]).values.tolist() == [False, False, True]
    assert np.isfinite([found.metrics[name][0, -1] for name in ("pooled_score_strict", "average_score_strict")]).all()
    assert "client west" in found.metrics.score_strict.attrs["failed"]
    assert (int(found.metrics.rounds_done), found.records.sizes["round"]) == (3, 3)
    np.testing.assert_array_equal(found.metrics.test_loss, simulate().metrics.test_loss)
