"""Evaluations of a run in order, without memory for those that it may never reach; and numbers beyond the keys."""

from __future__ import annotations

import pathlib
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.loop.history import Schedule
from fljax.engine.rounds.states import ROUNDS
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression


@hypothesis.given(st.integers(0, 9), st.integers(0, 30), st.none() | st.integers(1, 9), st.lists(st.integers(-3, 45)))
def test_evaluations_in_order(first: int, rounds: int, every: int | None, more: list[int]) -> None:
    stops = Schedule(rounds, evaluate_every=every, evaluate_at=more).evaluations(first)
    end = first + rounds
    every = every or max(1, rounds // 10)
    usual = range(first + every, end, every)
    assert list(stops) == sorted({*usual, *(done for done in more if first < done < end), *([end] * (rounds > 0))})
    assert len(stops) == len(list(stops))


@pytest.mark.in_turn
@pytest.mark.parametrize("saved", [False, True])
def test_a_run_takes_the_memory_of_what_it_does(tmp_path: pathlib.Path, saved: bool) -> None:
    """A callback stops a run of the most rounds at its first evaluation."""
    plan = fedavg(logistic_regression(), Local(0.1, batch_size=2, steps=1), clients_per_round=2)
    how = {"rounds": ROUNDS - 1, "evaluate_every": 2, "evaluate_at": [7], "callbacks": [lambda block: True]}
    tracemalloc.start()
    done = engine.simulate(plan, tiny_federation(), **how, checkpoint=tmp_path if saved else None)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.metrics.rounds_done == 2
    assert most < 2**28
