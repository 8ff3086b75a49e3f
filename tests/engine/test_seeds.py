"""Seeds: a number of them or a list, and nothing else."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.rounds.keys import seeds_of
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (3, [0, 1, 2]),
        (np.int64(2), [0, 1]),
        ([5, 9], [5, 9]),
        ((np.uint32(7),), [7]),
        (np.arange(2), [0, 1]),
        (jnp.arange(2), [0, 1]),
        (range(4, 6), [4, 5]),
        ([2**32 - 1], [2**32 - 1]),
    ],
)
def test_seeds(given, found):
    assert seeds_of(given) == found
    assert all(type(seed) is int for seed in seeds_of(given))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "wrong",
    [
        *(0, -1, True, 1.7, "3", None, [], [1.7], [1.0], [True], [np.bool(True)], [-1], [2**32], [1, 1], ["1"]),
        *([[1, 2]], np.array([1.5]), np.array([True]), jnp.array([1.0])),
    ],
)
def test_what_is_no_seed(wrong):
    with pytest.raises(ValueError, match=r"^expected (seeds to be distinct integers|a positive number)"):
        seeds_of(wrong)


@pytest.mark.thorough
def test_a_number_of_seeds_means_the_same_everywhere():
    federation: Any = tiny_federation()
    algorithm = fedavg(TASK, LOCAL, clients_per_round=3)
    run: dict[str, Any] = {"rounds": 1, "seeds": 2}
    reference = engine.standalone(TASK, federation, LOCAL, seeds=2)
    assert reference.threshold.shape[0] == 2
    result = engine.simulate(algorithm, federation, **run, reference=reference)
    assert result.metrics["seed"].values.tolist() == [0, 1]
    (swept,) = engine.sweep([algorithm], federation, **run)
    np.testing.assert_array_equal(swept.metrics["test_loss"], result.metrics["test_loss"])
    estimate = engine.estimate(algorithm, federation, engine.Schedule(**run))
    assert estimate == engine.estimate(algorithm, federation, engine.Schedule(1, (0, 1)))


@pytest.mark.unchecked
def test_what_is_no_seed_is_refused_everywhere():
    federation: Any = tiny_federation()
    algorithm = fedavg(TASK, LOCAL, clients_per_round=3)
    wrong: Any = [1.7]
    with pytest.raises(ValueError, match=r"got \[1.7\]"):
        engine.simulate(algorithm, federation, rounds=1, seeds=wrong)
    with pytest.raises(ValueError, match=r"got \[1.7\]"):
        engine.estimate(algorithm, federation, engine.Schedule(1, wrong))
    with pytest.raises(ValueError, match="got True"):
        engine.standalone(TASK, federation, LOCAL, seeds=True)
