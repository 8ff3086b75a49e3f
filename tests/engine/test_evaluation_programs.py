"""One program judges the models of all algorithms whose clients use one model of the Server."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg, incfl
from fljax.engine.devices.layout import Layout
from fljax.engine.loop import compilation
from fljax.engine.programs import program
from fljax.engine.programs.program import GlobalModel, global_model_of
from fljax.engine.rounds.states import by_id
from fljax.protocol import Algorithm, Judged, PerClient, Task, unlabelled
from fljax.scenarios import byzantine
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)


def new_task() -> Task:
    """A task of which no other test has programs."""
    return TASK._replace(logits=lambda *inputs: TASK.logits(*inputs))


def traced(build: Any, task: Task, **more: Any) -> list[str]:
    """The names of the programs that a run of this algorithm compiles."""
    plan = engine.Plan(build, {"task": task, "local": LOCAL, **more})
    prepared = compilation.Together.of([plan], tiny_federation(), engine.Schedule(2, seeds=2)).on()
    return [traced.fun_name for traced in program.trace_all(*prepared[:-1])]


def noisy(task: Task, local: Local) -> Algorithm:
    """FedAvg with Byzantine clients, which metrics do not count."""
    return byzantine(fedavg(task, local), fraction=0.4)


def test_all_algorithms_with_a_global_model_share_the_program_of_their_evaluation(made: list[str]) -> None:
    task = new_task()
    assert traced(fedavg, task) == ["start", "run_rounds", "evaluate_runs"]
    assert traced(incfl, task, threshold=1.0) == ["start", "run_rounds", "evaluate_runs"]
    assert traced(noisy, task) == ["start", "run_rounds", "count_clients", "evaluate_runs"]
    assert [made.count(name) for name in ("start", "run_rounds", "evaluate_runs")] == [3, 3, 1]


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("build", [noisy, pytest.param(fedavg, marks=pytest.mark.thorough)])
def test_scores_are_those_of_the_algorithm(build: Any, devices: int) -> None:
    plan = engine.Plan(build, {"task": TASK, "local": LOCAL})
    schedule = engine.Schedule(1, seeds=2, execution=engine.Execution(devices=devices))
    run: Any = compilation.programs_of(compilation.Together.of([plan], tiny_federation(), schedule).on())
    assert run.spec.global_model is not None
    state = run.start()
    found = unlabelled(run.evaluate(state, 0))
    alone = run.spec._replace(global_model=None)
    expected = unlabelled(program.evaluate_runs(alone, run.layout, run.inputs, state, jnp.int32(0)))
    assert found.keys() == expected.keys()
    assert np.isnan(found["test_loss"]).sum() > np.isnan(found["unseen_test_loss"]).sum() or build is fedavg
    for name, scores in found.items():
        np.testing.assert_array_equal(scores, expected[name], err_msg=name)


def served(**fields: Any) -> Algorithm:
    """FedAvg whose Server is the model ("model"), another one like it, and a row for each client."""
    return fedavg(TASK, LOCAL)._replace(**{"send": lambda server, seat: server["model"], **fields})


MODEL = jax.eval_shape(TASK.init, jax.random.key(0))
SERVER = {"another": MODEL, "model": MODEL, "row": PerClient(jax.ShapeDtypeStruct((5, 2), jnp.float32))}


def test_the_model_is_a_part_of_the_server() -> None:
    found: Any = global_model_of(TASK, served(), SERVER, MODEL, unseen=True)
    count = len(jax.tree.leaves(MODEL))
    assert found == GlobalModel(jax.tree.structure(MODEL), tuple(range(count, 2 * count)), False)
    model = TASK.init(jax.random.key(0))
    assert all(map(operator.is_, found.of({**SERVER, "model": model}), model))


def _personal(key: Any, seat: Any, down: Any, client: Any, data: Any) -> Any:
    return down


@pytest.mark.parametrize(
    "fields",
    [
        {"personal": _personal},
        {"common": None},
        {"models": lambda server: {"server_test": Judged(server["another"], "test")}},
        {"task": new_task()},
        {"send": lambda server, seat: jax.tree.map(lambda leaf: leaf + 1, server["model"])},
        {"send": lambda server, seat: server["model"] if seat.known else server["another"]},
        {"send": lambda server, seat: server["row"]},
    ],
    ids=["personal", "no common", "models", "another task", "changed", "unseen", "per client"],
)
def test_other_models_are_judged_by_the_algorithm(fields: dict[str, Any]) -> None:
    assert global_model_of(TASK, served(**fields), SERVER, MODEL, unseen=True) is None


def test_unseen_clients_matter_where_there_are_some() -> None:
    told = served(send=lambda server, seat: server["model"] if seat.known else server["another"])
    assert global_model_of(TASK, told, SERVER, MODEL, unseen=False) is not None
    assert global_model_of(None, served(), SERVER, MODEL, unseen=False) is None


def test_a_model_that_is_a_function_holds_more_than_parts_of_the_server() -> None:
    told = served(common=lambda down: jax.tree_util.Partial(lambda x: TASK.logits(down, x)))
    assert global_model_of(TASK, told, SERVER, MODEL, unseen=False) is None


def test_the_task_may_stand_anywhere_in_the_arguments() -> None:
    """Configs nest the arguments of builders inside those of scenarios."""

    def of(*tasks: Task) -> Task | None:
        arguments = {"arguments": {"task": tasks[0]}, "options": tasks[1:]}
        spec, traced, _ = program.split_plan(engine.Plan(fedavg, arguments))
        return program.task_given(spec, traced)

    assert of(TASK) == of(TASK, TASK) == TASK
    assert of(TASK, new_task()) is None


def test_arrays_of_the_task_of_a_finished_algorithm_are_constants_of_its_programs() -> None:
    """As arguments they would have to be on all devices, and XLA rounds some operations of constants otherwise."""

    def given(task: Task) -> Task | None:
        spec, traced, _ = program.split_plan(fedavg(task, LOCAL))
        return program.task_given(spec, traced)

    assert given(TASK) == TASK
    assert given(TASK._replace(logits=jax.tree_util.Partial(lambda *given: given[1], jnp.ones(1)))) is None


def test_arrays_of_the_task_are_arguments_unless_runs_differ_in_them() -> None:
    def shifted(shift: Any, params: Any, x: Any, key: Any = None) -> Any:
        return TASK.logits(params, x) + shift

    task = TASK._replace(logits=jax.tree_util.Partial(shifted, jnp.ones((1, 1))))
    spec, inputs = program.partition_plan(engine.Plan(fedavg, {"task": task, "local": LOCAL}), by_id(tiny_federation()))
    model = GlobalModel(None, (), False)
    assert program.with_global_model(spec, inputs, model).global_model == model
    assert program.with_global_model(spec._replace(varied=(0,)), inputs, model).global_model is None
    asked = spec._replace(extra=("objective_gradient_norm",))
    assert program.with_global_model(asked, inputs, model).global_model is None
    serving, layout, judged = program._of_model(spec, Layout(3, 1, 2), inputs)
    assert layout == Layout(1, 1, 2)
    assert len(judged.traced) == 1
    assert serving.static.count(program.TRACED) == 1
