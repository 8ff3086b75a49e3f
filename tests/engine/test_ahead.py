"""Programs that are compiled before their run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import incfl
from fljax.engine.loop import compilation
from fljax.protocol import Task
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)


def plan(threshold: float, task: Task = TASK) -> engine.Plan:
    """INCFL with one threshold for all clients."""
    clients = tiny_federation().clients.id.shape[0]
    thresholds = np.full((2, clients), threshold, np.float32)
    return engine.Plan(incfl, {"task": task, "local": LOCAL}, {"threshold": thresholds})


@pytest.mark.in_turn
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_run_uses_the_programs_that_were_compiled_ahead(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other thresholds than those of the run: JAX gives both the same compiled program."""
    given: Any = {"rounds": 4, "seeds": 2, "evaluate_every": 2, "execution": engine.Execution(devices=devices)}
    begun: list[Any] = []
    inner = compilation.begin
    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(compilation, "begin", lambda *arguments: begun.extend(inner(*arguments)))
        engine.compile_ahead(pool, plan(0.5), tiny_federation(), engine.Schedule(**given))
    ahead = [job.result() for job in begun]
    used: list[Any] = []
    memory_of = compilation.memory_of

    def noted(programs: list[Any], *rest: Any) -> Any:
        used.extend(programs)
        return memory_of(programs, *rest)

    monkeypatch.setattr("fljax.engine.loop.compilation.memory_of", noted)
    found = engine.simulate(plan(0.7), tiny_federation(), **given)
    assert float(found.metrics["seconds_train"]) > 0
    assert len(ahead) == len(used) == 3
    for one, other in zip(ahead, used, strict=True):
        assert one.runtime_executable() is other.runtime_executable()


@pytest.mark.thorough
def test_a_sweep_uses_the_programs_that_were_compiled_ahead(made: list[str]) -> None:
    """Of as many plans, with other thresholds."""
    given: Any = {"rounds": 2, "seeds": 2}
    task = TASK._replace(logits=lambda *inputs: TASK.logits(*inputs))  # no other test has its programs
    with ThreadPoolExecutor(3) as pool:
        engine.compile_ahead(pool, [plan(0.5, task), plan(0.6, task)], tiny_federation(), engine.Schedule(**given))
    assert {"start", "run_rounds", "evaluate_runs"} <= set(made)
    made.clear()
    engine.sweep([plan(0.7, task), plan(0.8, task)], tiny_federation(), **given)
    assert not {"start", "run_rounds", "evaluate_runs"} & set(made)


def test_a_trial_is_only_traced() -> None:
    """Nothing is given to the threads, since the strategy is not known."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()  # it refuses work from here on
    engine.compile_ahead(pool, plan(0.5), tiny_federation(), engine.Schedule(1, 2, execution=engine.Execution("trial")))
