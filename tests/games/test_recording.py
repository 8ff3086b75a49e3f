"""The record of a run, by what estimators make of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import algorithms, contributions
from fljax.contributions import RunRecord
from fljax.engine import Plan
from fljax.games.comparing import record_runs
from fljax.training import Local
from tests.games.test_retraining import LOCAL, few, plan
from tests.toys.federation import TRAIN
from tests.toys.task import logistic_regression

ROUNDS = 2


@pytest.fixture(scope="module")
def record() -> RunRecord:
    """Two seeds of a cohort of two of three clients, weighted by size."""
    return record_runs(plan(clients_per_round=2), few(3), rounds=ROUNDS, seeds=(0, 1))


def of_seed(record: RunRecord, seed: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[seed]), record)


@pytest.mark.in_turn
def test_a_record_repeats_the_steps_of_the_server(record: RunRecord) -> None:
    for seed in range(2):
        seen = of_seed(record, seed)
        assert seen.weights.shape == (ROUNDS, 2)
        np.testing.assert_array_equal(seen.weights, np.array(TRAIN)[seen.ids])
        for t in range(ROUNDS):
            share = seen.weights[t] / seen.weights[t].sum()
            step = jax.tree.map(lambda leaf, t=t, share=share: np.tensordot(share, leaf[t], 1), seen.updates)
            after = jax.tree.map(lambda leaf, move, t=t: leaf[t] + move, seen.models, step)
            expected = jax.tree.map(lambda leaf, t=t: leaf[t + 1], seen.models)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), after, expected)


@pytest.mark.in_turn
def test_values_of_rounds_add_up_to_what_the_run_gained(record: RunRecord) -> None:
    def utility(model: Any) -> Any:
        return -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(model))

    seen = of_seed(record, 0)
    found = contributions.estimate("multi_round", seen, utility=utility, clients=3)
    ends = [utility(jax.tree.map(lambda leaf, at=at: leaf[at], seen.models)) for at in (0, -1)]
    np.testing.assert_allclose(np.nansum(found.worth), ends[1] - ends[0], rtol=1e-4, atol=1e-5)


def test_algorithms_of_another_kind_are_refused() -> None:
    clustered = Plan(
        algorithms.ifca, {"task": logistic_regression(), "local": Local(*LOCAL), "clients_per_round": 2, "clusters": 2}
    )
    with pytest.raises(ValueError, match="expected an algorithm whose server has one model"):
        record_runs(clustered, few(3), rounds=1, seeds=(0,))
