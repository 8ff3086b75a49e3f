"""Seeds: a number of them or a list, and nothing else."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.rounds.states import seeds_of
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
