"""Strategies: what names mean, mapping over lanes and devices, and what is compiled."""

from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine
from fljax.algorithms import fedavg
from fljax.engine.devices.client_mapping import _deal, fold_lanes, map_lanes
from fljax.engine.devices.layout import Layout, replicate
from fljax.engine.loop.compilation import Programs, compile_all, fastest
from fljax.engine.programs import program
from fljax.engine.programs.shapes import (
    ACCELERATOR,
    CACHE,
    CPU_CHUNK,
    TPU_CHUNK,
    Execution,
    Sizes,
    _least_waste,
    measure,
    neighbours,
    resolve,
)
from fljax.scenarios import availability, dropout
from fljax.training import Local
from tests.compiled import compilations
from tests.laws.compare import assert_close
from tests.precision import enable_x64
from tests.refusals import refuses
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.devices

ROOT = pathlib.Path(__file__).parent.parent.parent

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
SIZES = Sizes(rows=12, population=30, seeds=4, model=1000, evaluated=1000)


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        (Execution("vmap", "vmap", "vmap", 1), Layout(12, 4, 30)),
        (Execution("vmap", "vmap", "vmap"), Layout(6, 4, 15, 2)),
        (Execution("scan", "scan", "scan", 2), Layout(1, 1, 1, 2)),
        (Execution(5, 100, 7, 1), Layout(5, 4, 7)),
        (Execution(devices=1), Layout(12, 4, 30)),
        (Execution("trial", devices=1), Layout(12, 4, 30)),
    ],
)
def test_names_become_numbers(execution: Execution, expected: Layout) -> None:
    assert resolve(execution, SIZES, "cpu") == expected


@pytest.mark.in_turn
@pytest.mark.parametrize(("precision", "number"), [("default", 0), ("high", 1), ("highest", 2)])
def test_precision_reaches_the_products_of_the_model(precision: Any, number: int) -> None:
    spec, inputs = program.partition_plan(fedavg(TASK, LOCAL), tiny_federation())
    layout = resolve(Execution(devices=1, precision=precision), SIZES)
    state = program.start.trace(spec, layout, inputs, jnp.zeros(1, jnp.uint32)).out_info
    zero = jnp.int32(0)
    rounds = program.run_rounds.trace(spec, layout, 1, inputs, state, zero, zero).lower().as_text()
    judged = program.evaluate_runs.trace(spec, layout, inputs, state, zero).lower().as_text()
    name = ("DEFAULT", "HIGH,", "HIGHEST")[number]
    products = [line for line in judged.splitlines() if "stablehlo.dot_general" in line]
    assert products
    assert all(name in line for line in products)
    trained = [line for line in rounds.splitlines() if "stablehlo.dot_general" in line]
    assert sum(name in line for line in trained) >= 2  # forward, and by weights


@pytest.mark.in_turn
def test_predictions_have_the_precision_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Execution(devices=1, precision="highest")
    result = engine.simulate(fedavg(TASK, LOCAL), tiny_federation(), rounds=1, execution=given)
    asked: list[str] = []
    inner = program.deployed

    def deployed(*arguments: Any) -> Any:
        assert arguments[1].platform == "any"  # users may compile it for another platform
        asked.append(inner.trace(*arguments).lower().as_text())
        return inner(*arguments)

    monkeypatch.setattr(program, "deployed", deployed)
    result.predict(0, tiny_federation().examples.x[:2])
    rebuilt, arguments = cast(Any, result.deployed).__reduce__()  # as pickle does
    rebuilt(result.deployed._plan, *arguments[1:])(0, x=tiny_federation().examples.x[:2])
    assert len(asked) == 2
    for text in asked:
        products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert products
        assert all("HIGHEST" in line for line in products)


def test_auto_keeps_to_the_budget() -> None:
    one = Execution(devices=1)
    large, full = SIZES._replace(model=CACHE // 9, evaluated=400 * 2**10), SIZES._replace(full=True)
    assert resolve(one, large, "cpu") == Layout(3, 1, 10)  # divisors of 12 and 30; seeds one by one
    assert resolve(one, full._replace(lane=CPU_CHUNK // 7), "cpu") == Layout(6, 4, 30)
    # Two chunks of four would train eight clients for five, and two of three as many as six.
    assert resolve(one, full._replace(rows=5, lane=CPU_CHUNK // 4), "cpu").clients == 1
    assert resolve(one, full._replace(rows=5, lane=1000), "cpu").clients == 5
    assert resolve(Execution(), full._replace(rows=100, lane=CPU_CHUNK // 7), "cpu").clients == 5  # 50 on each of two
    assert resolve(one, large, "gpu").clients == 12
    assert resolve(one, large._replace(lane=TPU_CHUNK // 5), "tpu").clients == 4  # a divisor of 12
    assert resolve(one, large._replace(lane=TPU_CHUNK // 5), "gpu").clients == 12
    assert resolve(one, large._replace(lane=ACCELERATOR // 3), "gpu").clients == 6  # twice what the device has
    assert resolve(one, large._replace(lane=2**60), "tpu").clients == 1
    assert resolve(one, SIZES._replace(model=2**40), "cpu") == Layout(1, 1, 30)


@pytest.mark.parametrize(
    ("wrapped", "full"),
    [
        (lambda algorithm: algorithm, True),
        (lambda algorithm: availability(algorithm, trace=np.eye(5), announced=True), False),
        (lambda algorithm: dropout(algorithm, rate=0.5), False),
    ],
)
def test_small_models_share_chunks_where_no_row_can_be_empty(wrapped: Any, full: bool) -> None:
    """Chunks without a client are skipped, so that small ones are better where rows can be empty."""
    spec, inputs = program.partition_plan(wrapped(fedavg(TASK, LOCAL)), tiny_federation())
    sizes = measure(spec, inputs, 1).sizes
    assert sizes.full is full
    assert sizes.lane > 0
    wide = sizes._replace(model=CACHE // 9)
    assert resolve(Execution(devices=1), wide, "cpu").clients == (5 if full else 3)


@pytest.mark.parametrize("rows", [1, 6, 12, 14, 15, 18, 30, 53, 100])
def test_auto_wastes_little_where_clients_are_alike(rows: int) -> None:
    alike = SIZES._replace(rows=rows, samples=(50,) * 100)
    lanes = resolve(Execution(devices=1), alike, "cpu").clients
    assert -(-rows // lanes) * lanes <= rows + 1
    assert lanes > min(rows, 5) or lanes == rows


@pytest.mark.parametrize("rows", [8, 15, 30, 53, 100])
def test_auto_gives_devices_like_shares_of_clients_alike(rows: int) -> None:
    samples = (50,) * 100
    for most in (4, 7, 30, 100):
        lanes = _least_waste(samples, rows, 2, min(most, -(-rows // 2)), 1.0)
        turns = -(-rows // (2 * lanes))
        # A device computes at most two lanes more than its half of the clients, in few turns.
        assert turns * lanes <= -(-rows // 2) + 2
        assert turns <= 2 * -(-rows // (2 * most))


@pytest.mark.parametrize("rows", [5, 10, 20, 50, 100])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_auto_wastes_little_where_steps_differ(rows: int, backend: str) -> None:
    random = np.random.default_rng(0)
    sizes = np.sort(random.dirichlet(np.full(100, 0.5)) * 10_000).astype(int)[::-1]
    skewed = SIZES._replace(rows=rows, samples=tuple(sizes.tolist()))
    lanes = resolve(Execution(devices=1), skewed, backend).clients
    wasted = []
    for _ in range(100):
        cohort = np.sort(np.maximum(1, random.choice(sizes, rows, replace=False)))[::-1]
        wasted.append(sum(cohort[::lanes]) * lanes / sum(cohort))
    assert np.mean(wasted) < (1.3 if backend == "cpu" else 4)


@pytest.mark.in_turn
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_padding_takes_no_more_steps_than_the_cheapest_row(lanes: int) -> None:
    seen: list[int] = []

    def one(x: Any) -> tuple[Any, Any]:
        jax.debug.callback(lambda x: seen.append(int(x)), x)
        return x, 2 * x

    xs = jnp.asarray([1, 2, 3, 4, 1000])
    total, kept = jax.jit(lambda xs: fold_lanes(one, lambda parts, real: jnp.sum(parts * real), xs, lanes, cost=xs))(xs)
    jax.effects_barrier()
    assert int(total) == 1010
    np.testing.assert_array_equal(kept, 2 * xs)
    assert seen.count(1000) == 1
    assert len(seen) == -(-5 // lanes) * lanes


def test_devices_take_whole_runs_where_there_are_enough() -> None:
    assert resolve(Execution(), SIZES._replace(seeds=7), "cpu") == Layout(6, 7, 15, 2)
    assert resolve(Execution(), SIZES._replace(seeds=9), "cpu") == Layout(12, 5, 30, 2, runs_apart=True)
    assert resolve(Execution(devices=1), SIZES._replace(seeds=9), "cpu") == Layout(12, 7, 30)


def test_no_more_devices_than_rows() -> None:
    assert resolve(Execution(), SIZES._replace(rows=1), "cpu").devices == 1
    whole = resolve(Execution(), SIZES._replace(rows=1, seeds=8), "cpu")
    assert (whole.devices, whole.runs_apart) == (2, True)


def _double_and_sum(row: Any) -> Any:
    return {"sum": row[0] + jnp.sum(row[1]), "twice": 2 * row[1]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("count", "lanes", "devices", "costly"),
    list(itertools.product((1, 2, 5, 7, 12), (1, 2, 5, 20), (1, 2), (False, True))),
)
def test_map_lanes_maps(count: int, lanes: int, devices: int, costly: bool) -> None:
    """For all ways, cohorts that divide and that do not, with rows that cost nothing among those that differ."""
    first, second = jnp.arange(float(count)), jnp.arange(2 * count).reshape(count, 2)
    cost = jnp.asarray(np.random.default_rng(count).integers(0, 4, count)) if costly else None
    run = lambda xs, cost: map_lanes(_double_and_sum, xs, lanes, devices, cost)  # noqa: E731
    found = jax.jit(run)((first, second), cost)
    free = np.zeros(count, bool) if cost is None else np.asarray(cost) == 0
    np.testing.assert_array_equal(
        np.where(free, 0, found["sum"]), np.where(free, 0, np.arange(count) + np.asarray(second).sum(axis=1))
    )
    np.testing.assert_array_equal(np.where(free[:, None], 0, found["twice"]), np.where(free[:, None], 0, 2 * second))


def test_a_row_that_costs_nothing_is_not_computed() -> None:
    calls: list[int] = []

    def told(x: Any) -> Any:
        jax.debug.callback(lambda x: calls.append(int(x)), x)
        return x

    for lanes, computed in ((1, {1, 3}), (2, {1, 3})):
        calls.clear()
        found = jax.jit(lambda x, c, lanes=lanes: map_lanes(told, x, lanes, 1, c))(
            jnp.arange(4), jnp.asarray([0, 2, 0, 1])
        )
        jax.effects_barrier()
        assert set(calls) == computed
        assert np.asarray(found)[[1, 3]].tolist() == [1, 3]


@pytest.mark.in_turn
def test_devices_get_like_sums() -> None:
    """Chunks in order of cost go where least is to be done; each device takes as many."""
    cost = jnp.asarray([9, 8, 7, 6, 4, 3, 2, 1])
    assert cost[_deal(cost, 2)].sum(axis=1).tolist() == [20, 20]
    skewed = jnp.asarray([50, 20, 15, 10, 5, 1, 1, 0])
    dealt = np.asarray(_deal(skewed, 2))
    assert skewed[dealt].sum(axis=1).tolist() == [52, 50]
    assert np.all(np.diff(dealt, axis=1) > 0)  # the dearest first
    assert sorted(dealt.ravel().tolist()) == list(range(8))


def _runs(execution: Execution, local: Local, rows: int) -> Any:
    plan = engine.Plan(fedavg, {"task": TASK, "local": local, "clients_per_round": rows})
    return engine.simulate(plan, tiny_federation(), rounds=3, evaluate_every=3, seeds=(1, 2), execution=execution)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("local", "rows"), [(LOCAL, 3), (LOCAL._replace(steps=None, epochs=2), 5)], ids=["steps", "epochs of ragged"]
)
def test_every_strategy_gives_the_same(local: Local, rows: int) -> None:
    """Cohorts of three and five do not divide by two devices, nor by chunks of two."""
    expected = _runs(Execution("vmap", devices=1), local, rows).state
    strategies: list[tuple[Any, Any]] = [("scan", 1), (2, 2), ("vmap", 2), ("auto", "all")]
    for clients, devices in strategies:
        assert_close(expected, _runs(Execution(clients, devices=devices), local, rows).state)


@pytest.mark.thorough
def test_the_same_layout_gives_the_same_bits() -> None:
    """Other numbers of devices or lanes add up in another order: see law 24."""
    for execution in (Execution("scan", devices=2), Execution(2, devices=1)):
        one, two = (_runs(execution, LOCAL, 5).state for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


@pytest.mark.thorough
def test_all_devices_hold_the_same_bits() -> None:
    """Every device goes on from sums of its own, so they must be equal to the last bit; on 2, 4 and 8 devices."""
    code = """
import fljax
fljax.use_cores(8)
import jax, numpy as np
from fljax.algorithms import fedavg, incfl
from fljax.engine.programs.shapes import measure
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression
task, local = logistic_regression(), Local(0.2, batch_size=2, steps=3)
for algorithm in (fedavg(task, local, clients_per_round=None), incfl(task, local, threshold=0.9)):
    alone = None
    for devices in (1, 2, 4, 8):
        execution = fljax.Execution("scan", devices=devices)
        state = fljax.simulate(algorithm, tiny_federation(), rounds=3, evaluate_every=3, execution=execution).state
        for leaf in jax.tree.leaves(state):
            copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
            assert len(copies) == min(devices, 5), len(copies)  # a device for each client at most
            assert all(np.array_equal(copies[0], each) for each in copies), devices
        found = jax.tree.map(np.asarray, state)
        alone = found if alone is None else alone
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), alone, found)
print("same")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert found.stdout.split() == ["same"], found.stderr


@pytest.mark.thorough
def test_a_trial_takes_one_of_the_neighbours() -> None:
    assert [each.clients for each in neighbours(Layout(4, 1, 1, 2), SIZES)] == [1, 4, 6]
    assert [each.clients for each in neighbours(Layout(8, 1, 1, 2, True), SIZES)] == [1, 2, 8, 12]
    result = _runs(Execution("trial"), LOCAL, 5)
    assert int(result.metrics["execution_clients"]) in (1, 2, 3)
    assert float(result.metrics["seconds_trial"]) > 0
    spec, inputs = program.partition_plan(fedavg(TASK, LOCAL, clients_per_round=5), tiny_federation())
    seeds, shapes = jnp.zeros(1, jnp.uint32), measure(spec, inputs, 1)
    prepared = Programs(spec, Layout(1, 1, 5), 1, inputs, seeds, shapes)
    assert fastest(prepared, [Layout(1, 1, 5)]) == Layout(1, 1, 5)


@pytest.mark.thorough
def test_one_compilation_serves_seeds_rounds_and_values() -> None:
    def run(rate: float, seeds: tuple[int, ...], rounds: int) -> None:
        local = LOCAL._replace(learning_rate=rate)
        plan = engine.Plan(fedavg, {"task": TASK, "local": local, "clients_per_round": 4})
        engine.simulate(plan, tiny_federation(), rounds=rounds, seeds=seeds, evaluate_every=3)

    run(0.1, (0, 1), 6)
    with compilations() as seen:
        run(0.1, (0, 1), 6)
        run(0.3, (7, 9), 8)
        run(0.2, (3, 4), 3)
    assert seen == []


@pytest.mark.in_turn
@pytest.mark.parametrize("devices", [1, 2])
def test_what_is_compiled_ahead_is_what_is_called(devices: int) -> None:
    local = LOCAL._replace(batch_size=2 + devices)
    spec, inputs = program.partition_plan(fedavg(TASK, local, clients_per_round=4), tiny_federation())
    layout, seeds = Layout(1, 1, 5, devices), jnp.asarray([3], jnp.uint32)
    inputs = replicate(inputs, devices)
    zero, one = jnp.int32(0), jnp.int32(1)
    compile_all(spec, layout, 2, inputs, seeds)
    with compilations() as seen:
        state = program.start(spec, layout, inputs, seeds)
        state, _ = program.run_rounds(spec, layout, 2, inputs, state, zero, one)
        program.evaluate_runs(spec, layout, inputs, state, one)
    assert seen == []


@pytest.mark.thorough
def test_a_run_goes_on_with_another_number_of_devices() -> None:
    plan = fedavg(TASK, LOCAL, clients_per_round=5)
    run = lambda rounds, devices, initial=None: engine.simulate(  # noqa: E731
        plan, tiny_federation(), rounds=rounds, initial=initial, execution=Execution("scan", devices=devices)
    )
    whole = run(4, 1).state
    for first, second in ((1, 2), (2, 1)):
        found = run(2, second, run(2, first).state).state
        # Up to rounding: devices add their parts of the sums up in another order.
        assert_close(whole, found)


@pytest.mark.thorough
def test_double_precision_in_a_context() -> None:
    with enable_x64(True):
        task = logistic_regression(jnp.float64)
        data = tiny_federation(dtype=jnp.float64)
        result = engine.simulate(fedavg(task, LOCAL, clients_per_round=3), data, rounds=2, evaluate_every=2)
        assert {leaf.dtype for leaf in jax.tree.leaves(result.deployed(0))} == {np.dtype("float64")}


@pytest.mark.parametrize(("lanes", "devices"), [(1, 1), (3, 1), (2, 2)])
def test_nobody_is_mapped_to_nothing(lanes: int, devices: int) -> None:
    run = lambda xs: map_lanes(lambda x: 2 * x, xs, lanes, devices)  # noqa: E731
    assert jax.jit(run)(jnp.zeros((0, 3))).shape == (0, 3)


@pytest.mark.slow
def test_a_device_may_wait_for_long() -> None:
    """XLA's own patience ends after a minute, and the process with it."""
    code = """
import fljax
fljax.use_cores(2)
import time, jax, jax.numpy as jnp, numpy as np
from fljax.engine.devices.client_mapping import map_lanes
def slow(x):
    time.sleep(90 * (x == 0))
    return np.float32(x)
one = lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), x)
print(jax.jit(lambda xs: map_lanes(one, xs, 1, 2))(jnp.arange(2.0)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["[0.", "1.]"], found.stderr


@pytest.mark.in_turn
def test_use_cores_comes_before_jax_starts() -> None:
    jax.devices()
    assert engine.use_cores(2) == 2
    refuses(lambda: engine.use_cores(3), "to be called before JAX starts, got a JAX that runs with 2 CPU", RuntimeError)
    refuses(lambda: engine.use_cores(0), "expected a positive number of cores, got 0")
    code = "import fljax; n = fljax.use_cores(3); import jax; print(n, jax.device_count('cpu'), fljax.use_cores(3))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["3", "3", "3"], found.stderr
