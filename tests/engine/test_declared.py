"""Which plans share a program: by the declared types of numbers, and by what partials call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import TypeAliasType

from fljax.algorithms import fedavg, incfl
from fljax.engine import Plan, as_declared, groups
from fljax.engine.programs import program
from fljax.experiments.inputs.preparation import Composed
from fljax.protocol import Seat, Task
from fljax.scenarios import dropout, free_riding
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)


def plan(local: Local = LOCAL, build: Any = incfl, **arguments: Any) -> Plan:
    return Plan(build, {"task": TASK, "local": local, **arguments})


def loss(scale: Any, logits: Any, y: Any) -> Any:
    return scale * TASK.loss(logits, y)


def test_a_number_that_is_declared_float_is_one_program() -> None:
    plans = [plan(threshold=each) for each in (1, 1.0, 2, np.int64(3), np.float32(0.5))]
    assert groups(plans[:4]) == [[0, 1, 2, 3]]
    spec, inputs = program.partition_plan(plans[0], tiny_federation())
    assert spec == program.partition_plan(plans[2], tiny_federation())[0]
    assert any(isinstance(each, float) and each == 1.0 for each in inputs.traced)
    rates = [
        plan(LOCAL._replace(learning_rate=rate, weight_decay=decay)) for rate, decay in ((1, 0), (2, 1), (0.5, 0.1))
    ]
    assert groups(rates) == [[0, 1, 2]]


def test_plans_that_run_together_share_the_federation() -> None:
    plans = [plan(threshold=number) for number in (0.5, 0.7)]
    parts, alone = (
        program.partition_plans(plans, tiny_federation()),
        program.partition_plan(plans[1], tiny_federation()),
    )
    assert parts[0][1].federation is parts[1][1].federation
    assert (parts[1][0], parts[1][1].traced) == (alone[0], alone[1].traced)


def test_whole_numbers_stay_static() -> None:
    assert groups([plan(build=fedavg, clients_per_round=each) for each in (2, 3)]) == [[0], [1]]
    assert groups([plan(LOCAL._replace(steps=each)) for each in (2, 3)]) == [[0], [1]]


class Pair(NamedTuple):
    rate: "float | jax.Array | None" = None  # noqa: UP037 - annotations are read as they are written
    count: int = 1


Alias = TypeAliasType("Alias", float | jax.Array)


def test_a_function_or_a_name_in_an_annotation_is_no_number() -> None:
    def build(
        weight: Callable[[jax.Array], float] | None,
        kind: Literal["float", "int"],
        either: float | Callable[[int], float],
        like: np.typing.ArrayLike,
        alias: Alias,
        own: float | Unknown,  # type: ignore[name-defined]
    ) -> None: ...

    found = as_declared(build, {"weight": 1, "kind": 1, "either": 1, "like": [1, 2], "alias": 1, "own": 1})
    assert {name: type(value) for name, value in found.items()} == {
        "weight": int,  # the builder says what is wrong
        "kind": int,
        "either": float,
        "like": np.ndarray,
        "alias": float,
        "own": int,
    }


def test_annotations_decide() -> None:
    def build(rate: float, either: int | float, flag: float, levels: Any, many: list[float], pair: Pair) -> None: ...

    given = {"rate": 1, "either": 1, "flag": True, "levels": 1, "many": [1, 2.5], "pair": Pair(3, 2), "more": 1}
    found = as_declared(build, given)
    assert found == given
    kinds = {name: type(found[name]) for name in ("rate", "either", "flag", "levels", "more")}
    assert kinds == {"rate": float, "either": int, "flag": bool, "levels": int, "more": int}
    assert [type(each) for each in found["many"]] == [float, float]
    assert [type(each) for each in found["pair"]] == [float, int]
    assert as_declared(functools.partial(build, either=2), {"rate": 1}) == {"rate": 1.0}


def test_equal_partials_share_a_program() -> None:
    half = lambda scale=0.5: functools.partial(loss, scale)  # noqa: E731
    tasks = [TASK._replace(loss=each) for each in (half(), half(), half(0.25), functools.partial(loss, scale=0.5))]
    assert groups([Plan(fedavg, {"task": task, "local": LOCAL}) for task in tasks]) == [[0, 1], [2], [3]]
    build: Any = fedavg
    builders = [functools.partial(build, clients_per_round=each) for each in (2, 2, 3, 2.0)]
    assert groups([plan(build=each) for each in builders]) == [[0, 1], [2], [3]]
    composed = [Plan(Composed(each), {"arguments": {"task": TASK, "local": LOCAL}, "options": ()}) for each in builders]
    assert groups(composed) == [[0, 1], [2], [3]]
    array = np.zeros(2)  # cannot be hashed
    assert groups([plan(build=functools.partial(build, clients_per_round=array)) for _ in "ab"]) == [[0], [1]]
    algorithm = fedavg(TASK, LOCAL)
    assert groups([algorithm._replace(common=half()) for _ in "ab"]) == [[0, 1]]


def test_a_seat_crosses_and_stays_static() -> None:
    def use(seat: Seat) -> Any:
        return seat.id + 1 if seat.known else -seat.round

    one = jnp.int32(1)
    for known, expected in ((True, 2), (False, -1)):
        seat = Seat(one, one, one, known)
        assert len(jax.tree.leaves(seat)) == 3
        assert int(jax.jit(use)(seat)) == expected
        rows = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), seat)
        np.testing.assert_array_equal(jax.vmap(use)(rows), [expected] * 2)
        _, found = jax.lax.scan(lambda carry, row: (carry, use(row)), seat, rows)
        np.testing.assert_array_equal(found, [expected] * 2)
        assert jax.jit(lambda seat: seat)(seat) == seat
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(Seat(one, one, one))[0]]
    assert paths == [".round", ".id", ".slot"]


@pytest.mark.in_turn
def test_tasks_and_algorithms_cross_without_leaves() -> None:
    algorithm = fedavg(TASK, LOCAL)
    for value in (TASK, algorithm):
        assert jax.tree.leaves(value) == []
        assert jax.jit(lambda value: value)(value) == value
    run = lambda task, x: task.logits(task.init(jax.random.key(0)), x)  # noqa: E731
    x = jnp.ones((2, 4))
    traces: list[Task] = []

    def counted(task: Task, x: Any) -> Any:
        traces.append(task)
        return run(task, x)

    jitted = jax.jit(counted)
    np.testing.assert_allclose(jitted(TASK, x), run(TASK, x), rtol=1e-6)
    jitted(Task(*TASK), x)
    assert len(traces) == 1
    found = jax.vmap(run, in_axes=(None, 0))(TASK, jnp.stack([x, x]))
    assert found.shape[0] == 2


def test_lists_of_numbers_are_arrays_where_that_is_declared() -> None:
    """A config has lists only; as arrays their entries are traced, so that cells of a sweep share a program."""
    found = as_declared(free_riding, {"who": [[0, 1, 0], [True, 0, 0]], "ids": [1, 2]})
    np.testing.assert_array_equal(found["who"], [[0, 1, 0], [1, 0, 0]])
    assert isinstance(found["who"], np.ndarray)
    assert found["ids"] == [1, 2]
    rate = as_declared(dropout, {"rate": [[0, 1], [1, 0]]})["rate"]
    assert rate.dtype == float
    ragged = as_declared(dropout, {"rate": [[0.5, 1], [1]]})["rate"]  # the builder says what is wrong
    assert ragged == [[0.5, 1.0], [1.0]]
    traced = jax.jit(lambda x: as_declared(dropout, {"rate": [x, 0.5]})["rate"])(0.25)
    assert [float(each) for each in traced] == [0.25, 0.5]
