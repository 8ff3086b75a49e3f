"""Several devices: tables with one row per client are divided among them, and results do not change."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import fljax
from fljax import engine
from fljax.algorithms import ditto, fedavg, fedfomo, iafl, rank
from fljax.core import trees
from fljax.core.trees import take
from fljax.engine.devices import client_mapping as mapping
from fljax.engine.devices.client_mapping import Picked, Spread, arguments_read, fold_lanes, map_lanes
from fljax.engine.devices.layout import division, replicate
from fljax.engine.loop import checkpointing
from fljax.engine.loop.compilation import Programs, compile_all
from fljax.engine.programs import program
from fljax.engine.programs.program import Plan, partition_plan
from fljax.engine.programs.shapes import Execution, measure, resolve, state_bytes
from fljax.protocol import Exchanged, PerClient, Rows, Seat, WithPeers, rows_of, seen_from, with_rows
from fljax.training import Local
from tests.laws.compare import assert_close, assert_same
from tests.toys.federation import tiny_federation
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.devices

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=3)
CONTRIBUTION = (0.9, 0.4, 1.0, 0.7, 0.2)


@pytest.mark.parametrize(
    ("shape", "devices", "lead", "expected"),
    [
        ((5, 8, 6), 2, 1, PartitionSpec(None, "clients")),
        ((5, 6, 8), 2, 1, PartitionSpec(None, None, "clients")),
        ((5, 7, 6), 2, 1, PartitionSpec(None, None, "clients")),
        ((3, 5, 9, 8), 4, 2, PartitionSpec(None, None, None, "clients")),
        ((8, 7, 3), 2, 1, PartitionSpec()),  # the axis of clients is never divided
        ((8,), 2, 1, PartitionSpec()),
        ((8, 0), 2, 1, PartitionSpec()),
    ],
)
def test_division(shape: tuple[int, ...], devices: int, lead: int, expected: PartitionSpec) -> None:
    assert division(jax.ShapeDtypeStruct(shape, jnp.float32), devices, lead) == expected


def test_rows_of_a_server_are_what_a_client_sees() -> None:
    table = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.arange(3)}
    server = {"models": PerClient(table), "shared": jnp.ones(4), "more": (PerClient(jnp.arange(3) + 10),)}
    zero = jnp.zeros((), jnp.int32)
    for id in range(3):
        seat = Seat(zero, jnp.int32(id), zero)
        rows = jax.tree.map(lambda leaf: leaf[1], rows_of(server, jnp.asarray([0, id])))
        assert_close(seen_from(server, seat), seen_from(with_rows(server, rows), seat))


@pytest.mark.in_turn
def test_what_a_client_sees_of_its_peers() -> None:
    """The same whether the Server is whole or made of the client's rows; only ``send`` sees peers."""
    table = {"a": jnp.arange(8.0).reshape(4, 2), "b": jnp.arange(4)}
    server = (Exchanged(table), PerClient(jnp.arange(4) + 10), jnp.ones(3))
    zero, peers = jnp.zeros((), jnp.int32), jnp.asarray([[1, 2], [3, 3], [0, 1], [2, 0]])
    for id in range(4):
        seat = Seat(zero, jnp.int32(id), zero)
        rows = jax.tree.map(lambda leaf: leaf[0], rows_of(server, jnp.asarray([id]), peers[jnp.asarray([id])]))
        whole, own = seen_from(server, seat, peers[id]), seen_from(with_rows(server, rows), seat, peers[id])
        assert_close(whole, own)
        assert_close(seen_from(server, seat), seen_from(with_rows(server, rows), seat))
        assert_close(whole[0], WithPeers(take(table, id), take(table, peers[id]), peers[id]))
        assert_close(seen_from(server, seat)[0], take(table, id))
    unknown = Seat(zero, jnp.int32(-1), zero, known=False)
    nobody = seen_from(server, unknown, jnp.zeros(0, jnp.int32))[0]
    assert_close(nobody.own, trees.zeros_like(take(table, 0)))
    assert (nobody.peers["a"].shape, nobody.id.shape) == ((0, 2), (0,))


def _federation() -> fljax.Federation:
    """With rows of the server, on which models are judged."""
    federation = tiny_federation()
    held = Rows(jnp.arange(6, dtype=jnp.int32), jnp.int32(6))
    return federation._replace(held={"validation": held, "test": held})


@pytest.mark.thorough
def test_rounds_in_several_short_programs_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, and the records of all rounds."""
    whole, short = (_five_rounds(monkeypatch, longest) for longest in (31, 2))
    assert_same(whole.state, short.state)
    assert whole.records.sizes["round"] == short.records.sizes["round"] == 5
    assert whole.records.equals(short.records)


@pytest.mark.in_turn
@pytest.mark.parametrize(("devices", "expected"), [(2, 1), (1, 5)])
def test_programs_of_slow_rounds_end_early_on_several_cores(monkeypatch, devices, expected):
    """31 slow rounds are many minutes, in which the heap would grow by gigabytes."""
    counts: list[int] = []
    rounds = Programs.rounds
    monkeypatch.setattr(
        Programs, "rounds", lambda run, state, done, count: counts.append(count) or rounds(run, state, done, count)
    )
    monkeypatch.setattr(checkpointing, "PIECE", 0.0)  # every round is slow
    algorithm = fedavg(TASK, LOCAL, clients_per_round=3)
    engine.simulate(algorithm, _federation(), rounds=5, evaluate_every=5, execution=Execution(2, devices=devices))
    assert max(counts) == expected
    assert sum(counts) == 5


def _five_rounds(monkeypatch: pytest.MonkeyPatch, longest: int) -> fljax.Result:
    monkeypatch.setattr(program, "LONGEST_ON_CORES", longest)
    algorithm = fedavg(TASK, LOCAL, clients_per_round=3)
    return engine.simulate(algorithm, _federation(), rounds=5, evaluate_every=5, execution=Execution(2, devices=2))


def _wide(build: Any) -> Any:
    """A plan of a task whose models have axes that devices can divide."""
    task = fljax.models.mlp((4,), 3, hidden=[64], dropout=0.0)
    return Plan(build, {"task": task, "local": LOCAL} | ({"contribution": CONTRIBUTION} if build is iafl else {}))


@pytest.mark.thorough
@pytest.mark.parametrize("build", [iafl, rank, ditto, fedfomo])
def test_each_device_holds_a_part_of_the_models_of_clients(build: Any) -> None:
    found = engine.simulate(_wide(build), _federation(), rounds=1, execution=Execution(1, devices=2))
    table = found.state.clients if build is ditto else found.state.server.models.values
    sizes = [leaf.size for leaf in jax.tree.leaves(table)]
    held = [leaf.addressable_data(0).size for leaf in jax.tree.leaves(table)]
    assert sum(held) < 0.6 * sum(sizes)


# A tiny round of fedfomo moves more models at once than there are.
@pytest.mark.parametrize("build", [*(pytest.param(each, marks=pytest.mark.thorough) for each in (iafl, rank, ditto))])
def test_a_round_needs_less_memory_on_each_of_two_devices(build: Any) -> None:
    needed, told = [], []
    for devices in (1, 2):
        spec, inputs = partition_plan(_wide(build), _federation())
        shapes = measure(spec, inputs, 1)
        layout = resolve(Execution(1, evaluation=1, devices=devices), shapes.sizes)
        inputs = replicate(inputs, devices)
        _, rounds, _ = compile_all(spec, layout, 1, inputs, jnp.zeros(1, jnp.uint32), quick=True)
        memory = rounds.memory_analysis()
        needed.append(memory.argument_size_in_bytes + memory.temp_size_in_bytes)
        told.append(sum(state_bytes(shapes.state, layout)))
    assert needed[1] < needed[0]
    assert told[1] < 0.6 * told[0]


def test_devices_share_the_models_that_the_server_judges() -> None:
    """Each device computes a part of the models: the program of one device has fewer than all."""

    def judge(models: Any) -> Any:
        return Spread(1, 2)(lambda model: jnp.sum(jnp.sin(model)), models)

    models = jnp.arange(12.0).reshape(6, 2)
    np.testing.assert_allclose(jax.jit(judge)(models), np.sin(models).sum(axis=1), rtol=1e-6)
    text = str(jax.make_jaxpr(judge)(models))
    assert "shard_map" in text
    assert "f32[3,2]" in text  # the models of one device


@pytest.mark.in_turn
def test_a_function_may_close_over_what_all_devices_hold() -> None:
    """Also over whole numbers and keys, and inside another compiled function."""
    table, index, key = jnp.arange(20.0).reshape(10, 2), jnp.asarray([7, 3, 1, 0, 9]), jax.random.key(4)

    def run(table: Any, index: Any, key: Any, x: Any) -> Any:
        def one(row: Any) -> Any:
            draw = jax.random.uniform(jax.random.fold_in(key, row))
            return jax.jit(lambda row: table[index[row]])(row) + draw

        return map_lanes(one, x, 2, 2)

    x = jnp.arange(5)
    draws = np.asarray([jax.random.uniform(jax.random.fold_in(key, row)) for row in range(5)])
    expected = np.asarray(table)[np.asarray(index)] + draws[:, None]
    np.testing.assert_allclose(jax.jit(run)(table, index, key, x), expected, rtol=1e-6)
    twice = jax.jit(jax.vmap(run, in_axes=(0, None, None, None)))(jnp.stack([table, 2 * table]), index, key, x)
    np.testing.assert_allclose(twice[0], expected, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("count", "lanes"), [(4, 1), (4, 2), (5, 1), (7, 2), (12, 2)])
def test_rows_come_block_by_block(count: int, lanes: int, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "BLOCK", 8)
    given = np.random.default_rng(count).normal(size=(count, 2)).astype(np.float32)
    cost = jnp.arange(count, dtype=jnp.int32) % 4 if ordered else None  # rows without cost are not computed

    def run(x: Any) -> Any:
        def add(summands: Any, real: Any) -> Any:
            return jnp.sum(jnp.where(real[:, None], summands, 0), axis=0)

        return fold_lanes(lambda row: (row, 2 * row), add, x, lanes, 2, cost)

    worked = np.ones(count, bool) if cost is None else np.asarray(cost) > 0
    sums, kept = jax.jit(run)(jnp.asarray(given))
    np.testing.assert_allclose(kept[worked], 2 * given[worked], rtol=1e-6)
    if cost is None:
        np.testing.assert_allclose(sums, given.sum(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("width", [2, 3])  # devices divide rows of 2, and hold rows of 3 whole
@pytest.mark.parametrize(("count", "lanes", "ordered"), [(4, 1, False), (5, 2, False), (5, 2, True), (12, 2, True)])
def test_rows_are_picked_where_they_are_used(count, lanes, ordered, width, monkeypatch):
    monkeypatch.setattr(mapping, "BLOCK", 24)
    random = np.random.default_rng(count)
    table = random.normal(size=(7, width)).astype(np.float32)
    index, given = random.integers(0, 7, (count, 3)), random.normal(size=(count, 2)).astype(np.float32)
    cost = 1 + jnp.arange(count, dtype=jnp.int32) % 4 if ordered else None

    def run(x: Any, table: Any, index: Any) -> Any:
        return map_lanes(lambda row: (row[0], 2 * row[1]), (x, Picked(table, index)), lanes, 2, cost)

    own, picked = jax.jit(run)(jnp.asarray(given), jnp.asarray(table), jnp.asarray(index))
    np.testing.assert_array_equal(own, given)
    np.testing.assert_array_equal(picked, 2 * table[index])


def test_picked_rows_that_nothing_reads_are_not_read() -> None:
    table, index, x = jnp.arange(14.0).reshape(7, 2), jnp.zeros((4, 3), jnp.int32), jnp.arange(8.0).reshape(4, 2)

    def run(x: Any, table: Any) -> Any:
        return map_lanes(lambda row: 2 * row[0], (x, Picked(table, index)), 1, 2)

    np.testing.assert_array_equal(jax.jit(run)(x, table), 2 * np.asarray(x))
    assert arguments_read(jax.make_jaxpr(run)(x, table).jaxpr) == [True, False]


@pytest.mark.in_turn
def test_gradients_pass_through_several_devices() -> None:
    def loss(factor: Any, devices: int) -> Any:
        def one(row: Any) -> Any:
            return factor**2 * row, jnp.sin(factor * row)

        def add(summands: Any, real: Any) -> Any:
            return jnp.sum(jnp.where(real, summands, 0))

        sums, kept = fold_lanes(one, add, jnp.arange(5.0), 2, devices)
        return jnp.sum(kept) + sums**2

    one, two = (jax.jit(jax.grad(loss), static_argnums=1)(0.7, devices) for devices in (1, 2))
    np.testing.assert_allclose(one, two, rtol=1e-6)


EIGHT = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
from tests.engine.test_devices import _federation, TASK, LOCAL, _wide
from fljax import engine
from fljax.algorithms import ditto, fedavg, fedfomo, iafl, rank
from fljax.engine.programs.shapes import Execution
from tests.laws.compare import assert_close, assert_same
for build in (iafl, rank, ditto, fedavg, fedfomo):
    runs = [
        engine.simulate(_wide(build), _federation(), rounds=2, execution=Execution(1, devices=devices)).state
        for devices in (1, 2, 4, 5)
    ]
    for other in runs[1:]:
        assert_close(runs[0], other)
print("equal")
"""


@pytest.mark.thorough
def test_more_devices_give_the_same() -> None:
    """A cohort of five takes at most five of eight devices, by which no axis of these models is divided."""
    found = subprocess.run([sys.executable, "-c", EIGHT], capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["equal"], found.stderr
