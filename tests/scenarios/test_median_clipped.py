"""A server that clips the updates of a round to their median norm."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms import incfl, standalone
from fljax.engine.rounds.states import by_id, initial_state
from fljax.scenarios import availability, byzantine, median_clipped
from tests.aggregators.test_clipping import oracle
from tests.scenarios.tools import LOCAL, POPULATION, TASK, everybody, flat, run, sent, taking_part, uniform

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation")]
BAD = np.array([False, True, False, False, True])


@pytest.mark.parametrize("times", [1.0, pytest.param(0.5, marks=pytest.mark.thorough)])
def test_one_round_is_the_oracles(times, federation):
    """With the weights of the wrapped algorithm: those of INCFL do not depend on the length of updates."""
    attacked = byzantine(everybody(incfl, threshold=0.5), who=jnp.asarray(BAD), report="threshold", noise=50.0)
    _, up = sent(attacked, federation)
    before = flat(initial_state(attacked, by_id(federation), jnp.uint32(0)).server.model)
    slope = 1 / (1 + np.exp(-(np.asarray(up.report.loss, np.float64) - 0.5)))
    weight = slope * (1 - slope)
    expected = before + weight @ oracle(flat(up.update, 1), np.ones(POPULATION, bool), times) / (weight.sum() + 1e-8)
    states, records = run(median_clipped(attacked, times=times), federation, 1)
    np.testing.assert_allclose(flat(states[-1].server.model), expected, rtol=1e-4, atol=1e-6)
    assert taking_part(records[0]) == set(range(POPULATION))


def test_clients_that_are_absent_do_not_count(federation):
    """A cohort of three: the median is over those who came, and not over the empty rows."""
    trace = np.array([[1, 0, 1, 1, 0]])
    _, up = sent(uniform(), federation)
    before = flat(initial_state(uniform(), by_id(federation), jnp.uint32(0)).server.model)
    present = trace[0].astype(bool)
    expected = before + oracle(flat(up.update, 1), present)[present].mean(axis=0)
    states, _ = run(availability(median_clipped(uniform(), times=1.0), trace=trace), federation, 1)
    np.testing.assert_allclose(flat(states[-1].server.model), expected, rtol=1e-4, atol=1e-6)


def test_a_long_factor_and_no_update_change_nothing(federation):
    for inner in (uniform(), everybody(incfl, threshold=0.5), standalone(TASK, LOCAL)):
        plain, clipped = (run(each, federation, 2)[0][-1] for each in (inner, median_clipped(inner, times=1e6)))
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7),
            *((state.server, state.clients) for state in (plain, clipped)),
        )
