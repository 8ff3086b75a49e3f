"""Every scenario around every algorithm, in one program each: laws 2, 5 and 9."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.core import trees
from fljax.engine.rounds.evaluate import evaluate_state
from fljax.engine.rounds.states import by_id, initial_state
from fljax.protocol import Available
from tests.laws.cases import (
    CASES,
    LOCAL,
    PAIRS,
    PAIRS_SLOW,
    QUICK_PAIRS,
    SIDE_BY_SIDE,
    SLOW,
    TASK,
    Controls,
    chosen,
    controlled,
    federation,
)
from tests.laws.compare import assert_finite, assert_same, shapes
from tests.toys.quick import QUICK


@pytest.mark.parametrize(
    "name", chosen((name for name in PAIRS if name not in CASES or name in SLOW), QUICK_PAIRS, PAIRS_SLOW)
)
def test_scenario_keeps_shapes_the_absent_and_empty_rounds(name: str) -> None:
    case, data = PAIRS[name], by_id(federation())
    algorithm = case.build(TASK, LOCAL, **case.example)
    start = jax.jit(lambda: initial_state(algorithm, data, jnp.uint32(0)), compiler_options=QUICK)()
    everybody = jnp.ones(data.clients.id.shape, bool)
    available = Available(everybody.size)
    cohort = jax.eval_shape(
        lambda: algorithm.select(jax.random.key(0), jnp.int32(0), start.server, start.ballots, available)[1]
    )
    rows = jnp.arange(cohort.id.shape[0])

    @jax.jit
    def program(state, available):
        controls = Controls(rows, rows % 2 == 0)
        after, info = engine.one_round(controlled(algorithm, controls), data, SIDE_BY_SIDE, state, available=available)
        return after, info, evaluate_state(algorithm, data, SIDE_BY_SIDE, after, jnp.int32(1))

    step = program.lower(start, everybody).compile(compiler_options=QUICK)
    first, info, judged = step(start, everybody)
    assert shapes(first) == shapes(start)
    absent = np.ones(everybody.shape, bool)
    absent[np.asarray(info["cohort_id"].values)[np.asarray(info["cohort_present"].values)]] = False
    of_absent = lambda state: jax.tree.map(lambda leaf: trees.numbers_of(leaf)[absent], state.clients)  # noqa: E731
    assert_same(of_absent(start), of_absent(first))

    second, _, judged_again = step(first, ~everybody)
    assert_finite(second)
    assert_same(first.clients, second.clients)
    assert_same(judged, judged_again)
