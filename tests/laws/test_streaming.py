"""Law 15: an algorithm whose aggregation is streamed gives the same on a cohort that is stacked."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.engine.devices.layout import Layout
from fljax.engine.rounds.states import State, by_id, initial_state
from fljax.protocol import Algorithm, sums
from tests.laws.cases import ALGORITHMS, LOCAL, chosen
from tests.laws.compare import assert_close
from tests.precision import enable_x64
from tests.toys.federation import spoil_client, tiny_federation
from tests.toys.quick import QUICK
from tests.toys.task import logistic_regression

STREAMED = (
    "fedavg",
    "fedprox",
    "scaffold",
    "fednova",
    "feddyn",
    "moon",
    "perfedavg",
    "pfedme",
    "afl",
    "mwfed",
    "incfl",
    "lg_fedavg",
    "fedbn",
    "fedper",
    "fedrep",
    "fedbabu",
    "ifca",
    "fedsoft",
    "fedem",
    "fedavg_finetune",
    "ditto",
    "apfl",
    "fedala",
    "fedproto",
)


def _algorithm(name: str) -> Algorithm:
    return ALGORITHMS[name].build(logistic_regression(jnp.float64), LOCAL, **ALGORITHMS[name].example)


def test_which_algorithms_are_streamed() -> None:
    with enable_x64(True):
        found = [name for name in ALGORITHMS if isinstance(_algorithm(name).aggregate, sums.Streamed)]
    assert tuple(found) == STREAMED


@pytest.mark.sampled(50)
@pytest.mark.in_turn
@pytest.mark.parametrize("name", chosen(STREAMED, quick=("scaffold",)))
def test_law_15_streamed_and_stacked_agree(name: str) -> None:
    """In chunks and all at once, ragged, with an absent client that holds NaN; law 3 has one client at a time."""
    with enable_x64(True):
        whole = tiny_federation(dtype=jnp.float64)
        streamed = _algorithm(name)

        def aggregate(*arguments: Any) -> Any:
            return streamed.aggregate(*arguments)

        assert not isinstance(aggregate, sums.Streamed)
        stacked = streamed._replace(aggregate=aggregate)
        data = by_id(spoil_client(whole, 1))
        available = jnp.arange(5) != 1

        def run(algorithm: Algorithm, lanes: int) -> tuple[State, Any]:
            @functools.partial(jax.jit, compiler_options=QUICK)
            def step(state: State) -> tuple[State, Any]:
                return engine.one_round(algorithm, data, Layout(lanes, 1, 5), state, available=available)

            state, info = initial_state(algorithm, data, jnp.uint32(0)), None
            for _ in range(2):
                state, info = step(state)
            return state, info

        expected = run(stacked, 5)
        assert np.all(np.asarray(expected[0].diverged) == -1)
        for lanes in (2, 5):
            assert_close(expected, run(streamed, lanes), 1e-12)
