"""A server that clips the updates of a round to their median norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import fedavg, incfl, standalone
from fljax.engine.rounds.states import by_id, initial_state
from fljax.scenarios import availability, byzantine, median_clipped
from tests.aggregators.test_clipping import oracle
from tests.scenarios.tools import LOCAL, POPULATION, TASK, run, sent, taking_part

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
EVERYBODY = np.ones(POPULATION, bool)
BAD = np.array([False, True, False, False, True])


def uniform() -> Any:
    return fedavg(TASK, LOCAL, clients_per_round=None, weights="uniform")


def solver() -> Any:
    return incfl(TASK, LOCAL, threshold=0.5, clients_per_round=None)


def rows_of(update: Any) -> np.ndarray:
    parts = (np.asarray(leaf, np.float64).reshape(POPULATION, -1) for leaf in (update.weight, update.bias))
    return np.concatenate(list(parts), axis=1)


def model_of(state: Any) -> np.ndarray:
    server = getattr(state.server, "inner", state.server)
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in (server.model.weight, server.model.bias)])


@pytest.mark.parametrize("times", [1.0, pytest.param(0.5, marks=pytest.mark.thorough)])
def test_one_round_is_the_oracles(times, federation):
    """With the weights of the wrapped algorithm: those of INCFL do not depend on the length of updates."""
    attacked = byzantine(solver(), who=jnp.asarray(BAD), report="threshold", noise=50.0)
    _, up = sent(attacked, federation)
    before = model_of(initial_state(attacked, by_id(federation), jnp.uint32(0)))
    slope = 1 / (1 + np.exp(-(np.asarray(up.report.loss, np.float64) - 0.5)))
    weight = slope * (1 - slope)
    expected = before + weight @ oracle(rows_of(up.update), EVERYBODY, times) / (weight.sum() + 1e-8)
    states, records = run(median_clipped(attacked, times=times), federation, 1)
    np.testing.assert_allclose(model_of(states[-1]), expected, rtol=1e-4, atol=1e-6)
    assert taking_part(records[0]) == set(range(POPULATION))


def test_it_may_stand_inside_of_the_attack_or_around_it(federation):
    """The server clips what arrives, wherever the scenario stands."""
    attack: dict[str, Any] = {"who": jnp.asarray(BAD), "noise": 50.0}
    one, other = (
        run(each, federation, 2)[0][-1]
        for each in (median_clipped(byzantine(uniform(), **attack)), byzantine(median_clipped(uniform()), **attack))
    )
    np.testing.assert_array_equal(model_of(one), model_of(other))


def test_clients_that_are_absent_do_not_count(federation):
    """A cohort of three: the median is over those who came, and not over the empty rows."""
    trace = np.array([[1, 0, 1, 1, 0]])
    _, up = sent(uniform(), federation)
    before = model_of(initial_state(uniform(), by_id(federation), jnp.uint32(0)))
    present = trace[0].astype(bool)
    expected = before + oracle(rows_of(up.update), present)[present].mean(axis=0)
    states, _ = run(availability(median_clipped(uniform(), times=1.0), trace=trace), federation, 1)
    np.testing.assert_allclose(model_of(states[-1]), expected, rtol=1e-4, atol=1e-6)


def test_a_long_factor_and_no_update_change_nothing(federation):
    for inner in (uniform(), solver(), standalone(TASK, LOCAL)):
        plain, clipped = (run(each, federation, 2)[0][-1] for each in (inner, median_clipped(inner, times=1e6)))
        for one, other in zip(leaves(plain), leaves(clipped), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def leaves(state: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((state.server, state.clients))]
