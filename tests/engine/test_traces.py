"""How often functions are traced: once for shapes and loops, and once for a run and what comes before it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.devices.client_mapping import fold_lanes, map_lanes
from fljax.engine.loop import compilation
from fljax.engine.programs import program
from fljax.engine.programs.shapes import measure
from fljax.protocol import Poll, Task
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)


def counted() -> tuple[Task, list[str]]:
    """A task, and an entry for every trace of its model: "step" with a key, as in training, "judged" without."""
    seen: list[str] = []

    def logits(params: Any, x: Any, key: Any = None) -> Any:
        seen.append("judged" if key is None else "step")
        return TASK.logits(params, x, key)

    return TASK._replace(logits=logits), seen


def test_a_rehearsal_the_compilation_ahead_and_the_run_share_their_traces() -> None:
    """A local step is traced once for the shapes, and once in the program of rounds."""
    task, seen = counted()
    plan, federation = engine.Plan(fedavg, {"task": task, "local": LOCAL}), tiny_federation()
    engine.rehearse(plan, federation)
    assert seen.count("step") == 1
    schedule, judged = engine.Schedule(2), list[int]()
    for _ in ("ahead", "run"):
        prepared = compilation.Together.of([plan], federation, schedule).on()
        assert len(list(program.trace_all(*prepared[:-1]))) == 3
        assert seen.count("step") == 2
        judged.append(seen.count("judged"))
    assert judged[0] == judged[1] > 0


def test_other_shapes_and_other_plans_are_traced_anew() -> None:
    task, seen = counted()
    federation = tiny_federation()
    for number, local in enumerate((LOCAL, LOCAL._replace(steps=4), LOCAL._replace(steps=4, learning_rate=0.3)), 1):
        spec, inputs = program.partition_plan(engine.Plan(fedavg, {"task": task, "local": local}), federation)
        sizes = measure(spec, inputs, 1).sizes
        assert seen.count("step") == min(number, 2)  # another learning rate is only another number
        assert measure(spec, inputs, 3).sizes == sizes._replace(seeds=3)
        assert seen.count("step") == min(number, 2)


def test_shapes_take_one_trace_of_a_poll() -> None:
    seen: list[str] = []

    def ask(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
        seen.append("ask")
        return {"rows": data.train.rows.size, "number": jnp.zeros(3)}

    spec, inputs = program.partition_plan(fedavg(TASK, LOCAL)._replace(poll=Poll(ask)), tiny_federation())
    shapes = measure(spec, inputs, 1)
    assert seen == ["ask"]
    sizes = [int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes.state.ballots)]
    assert shapes.wire.ballot == sum(sizes) > 0


@pytest.mark.parametrize("lanes", [1, 2, 4, 5])
def test_a_function_of_one_row_is_traced_once(lanes: int) -> None:
    """Also where the last chunk is smaller."""
    seen: list[int] = []

    def double(x: Any) -> Any:
        seen.append(1)
        return 2 * x

    jax.make_jaxpr(lambda xs: map_lanes(double, xs, lanes))(jnp.arange(5.0))
    assert len(seen) == 1


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_a_chunk_is_traced_once_for_its_shapes_and_the_loop(lanes: int) -> None:
    rows: list[int] = []
    sums: list[int] = []

    def double(x: Any) -> tuple[Any, Any]:
        rows.append(1)
        return x, 2 * x

    def add_up(parts: Any, real: Any) -> Any:
        sums.append(1)
        return jnp.sum(parts * real)

    jax.make_jaxpr(lambda xs, cost: fold_lanes(double, add_up, xs, lanes, cost=cost))(jnp.arange(5.0), jnp.arange(5))
    assert (len(rows), len(sums)) == (1, 1)
