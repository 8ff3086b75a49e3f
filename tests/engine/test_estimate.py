"""The memory of a run, told before it runs, and of one lane."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import models
from fljax.algorithms import fedavg, lg_fedavg, scaffold, standalone
from fljax.core import trees
from fljax.data import stack
from fljax.engine import Execution, Memory, Schedule, estimate, in_words, sentences, shortage, simulate, size
from fljax.engine.devices.layout import Layout, made_bytes
from fljax.engine.loop import compilation
from fljax.engine.loop.compilation import compile_all, memory_of
from fljax.engine.programs import jit, program
from fljax.engine.programs import shapes as engine_shapes
from fljax.engine.rounds.states import by_id
from fljax.protocol import ClientData, Examples, Federation, Rows
from fljax.training import Local
from tests.platforms import forms_of
from tests.toys.federation import tiny_federation
from tests.toys.models_per_client import models_per_client
from tests.toys.task import logistic_regression

pytestmark = pytest.mark.devices

TASK, LOCAL = logistic_regression(), Local(0.2, batch_size=2, steps=2)
MODEL = 15 * 4


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, 2])
def test_simulate_tells_the_estimate_before_it_trains(devices: int) -> None:
    told: list[Any] = []
    algorithm = models_per_client(TASK, LOCAL, contribution=np.ones(5, np.float32))
    data = stack([tiny_federation(), tiny_federation(1)])
    given: Any = {"rounds": 3, "seeds": (1, 2), "evaluate_every": 2, "execution": Execution(devices=devices)}
    result = simulate(algorithm, data, **given, callbacks=(told.append,), on_memory=told.append)
    memory, *blocks = told
    assert len(blocks) == 2
    assert memory == estimate(algorithm, data, Schedule(**given))
    assert (memory.model, memory.runs, memory.devices) == (MODEL, 2, devices)
    assert (memory.server, memory.clients, memory.data) == (2 * (5 + 1) * MODEL, 0, trees.bytes_of(data))
    assert memory.peak > memory.data + 2 * memory.server  # while they are mixed
    assert float(result.metrics["execution_memory"]) == memory.peak


def test_what_clients_keep_counts() -> None:
    spec, inputs = program.partition_plan(scaffold(TASK, LOCAL), by_id(tiny_federation()))
    shapes = engine_shapes.measure(spec, inputs, 3)
    memory = memory_of([], inputs, shapes, Layout(1, 1, 1))
    assert memory.clients == 3 * 5 * MODEL
    assert memory.server >= 3 * 2 * MODEL


@pytest.mark.parametrize(
    ("optimizer", "options", "kept"), [("sgd", {"momentum": 0.9}, MODEL), ("adam", {}, 2 * MODEL + 4)]
)
def test_kept_states_of_optimizers_count(optimizer: str, options: dict[str, float], kept: int) -> None:
    """Momentum is a model for each client; Adam's moments are two models and a number of steps."""
    local = LOCAL._replace(optimizer=optimizer, options=tuple(options.items()))
    for is_kept in (False, True):
        algorithm = fedavg(TASK, local._replace(keep=is_kept))
        spec, inputs = program.partition_plan(algorithm, by_id(tiny_federation()))
        memory = memory_of([], inputs, engine_shapes.measure(spec, inputs, 3), Layout(1, 1, 1))
        assert memory.clients == 3 * 5 * kept * is_kept


@pytest.mark.in_turn
def test_nothing_is_run_for_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit.Program, "__call__", lambda *_, **__: pytest.fail("run"))
    monkeypatch.setattr(jax.stages.Compiled, "__call__", lambda *_, **__: pytest.fail("run"))
    assert estimate(fedavg(TASK, LOCAL), tiny_federation(), Schedule(1)).peak


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "runs"), [(Layout(1, 1, 5), 1), (Layout(2, 2, 5), 3), (Layout(2, 1, 3, 2), 1)])
def test_the_peak_is_that_of_xla(layout: Layout, runs: int) -> None:
    """Programs that are compiled for their memory only hold what the real ones hold."""
    spec, inputs = program.partition_plan(scaffold(TASK, LOCAL), by_id(tiny_federation()))
    shapes, seeds = engine_shapes.measure(spec, inputs, runs), jnp.arange(runs, dtype=jnp.uint32)
    programs = compile_all(spec, layout, 3, inputs, seeds)
    memory: Any = memory_of(programs, inputs, shapes, layout)
    assert memory == memory_of(compile_all(spec, layout, 3, inputs, seeds, quick=True), inputs, shapes, layout)
    found = [each.memory_analysis() for each in programs]
    sums = [
        each.argument_size_in_bytes + each.output_size_in_bytes - each.alias_size_in_bytes + each.temp_size_in_bytes
        for each in found
    ]
    # XLA counts a few bytes for the numbers of rounds, and not the tables of clients that a program does not read.
    unread = trees.bytes_of(inputs.federation.clients)
    assert -16 <= memory.peak - max(sums) < unread
    state = program.start.trace(spec, layout, inputs, seeds).out_info
    assert memory.server == trees.bytes_of(state.server)
    # Five clients with weights [4, 3], of which each of two devices holds a half, and biases [3], which both hold.
    halved = 5 * 4 * 3 * 4 // 2 if layout.devices == 2 else 0
    assert memory.clients == trees.bytes_of(state.clients) - halved


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("network", ["mlp", "bilstm"])
def test_a_local_step_reads_and_writes_more_than_it_holds(network: str, platform: str) -> None:
    """Beside the slope between the compiled programs of whole rounds; so chunks of these bytes fit the memory."""
    if network == "mlp":
        task, data = models.mlp((28, 28), 10), _images(20, 50)
    else:
        task, data = models.bilstm((30,), 5, vocabulary=100, embedding=16, hidden=16), _texts(20, 50)
    algorithm = fedavg(task, Local(0.05, batch_size=20, steps=2), clients_per_round=20)
    spec, inputs = program.partition_plan(algorithm, data)
    told = []
    with forms_of(platform):
        for lanes in (5, 20):
            layout = Layout(lanes, 1, 5, platform=platform)
            programs = compile_all(spec, layout, 3, inputs, jnp.zeros(1, jnp.uint32), quick=True)
            told.append(made_bytes(programs[1]))
    lane = engine_shapes.measure(spec, inputs, 1, platform).sizes.lane
    assert 1 < lane / ((told[1] - told[0]) / 15) < 30


def _texts(clients: int, rows: int) -> Federation:
    """Of 30 words."""
    data = _images(clients, rows)
    words = np.random.default_rng(0).integers(1, 100, (clients * rows, 30), np.int32)
    return data._replace(examples=Examples(jnp.asarray(words), data.examples.y % 5))


def _images(clients: int, rows: int) -> Federation:
    random, count = np.random.default_rng(0), clients * rows
    owned = Rows(jnp.arange(count, dtype=jnp.int32).reshape(clients, rows), jnp.full(clients, rows, jnp.int32))
    few = Rows(owned.index[:, :2], jnp.full(clients, 2, jnp.int32))
    examples = Examples(
        jnp.asarray(random.integers(0, 256, (count, 28, 28), np.uint8)), jnp.arange(count, dtype=jnp.int32) % 10
    )
    return Federation(examples, ClientData(jnp.arange(clients, dtype=jnp.int32), owned, few, few))


@pytest.mark.thorough
def test_a_run_goes_on_where_xla_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Memory] = []
    given: Any = {"rounds": 1, "execution": Execution(devices=1)}
    expected = simulate(scaffold(TASK, LOCAL), tiny_federation(), **given, on_memory=told.append)
    monkeypatch.setattr(compilation, "made_bytes", lambda compiled: None)
    result = simulate(scaffold(TASK, LOCAL), tiny_federation(), **given, on_memory=told.append)
    np.testing.assert_array_equal(result.metrics["test_loss"], expected.metrics["test_loss"])
    assert np.isnan(result.metrics["execution_memory"])
    assert (
        told[1] == told[0]._replace(peak=None) == estimate(scaffold(TASK, LOCAL), tiny_federation(), Schedule(**given))
    )
    (words,) = sentences(told[1])
    assert words.startswith("an unknown amount at once: server 124 bytes (2 models of 60 bytes), clients 300")
    assert shortage(told[1]) is None
    assert size(told[1].peak) == "unknown"


def test_words() -> None:
    assert [size(n) for n in (0, 1000, 181_000, 5 * 2**20, 312 * 2**20, 2.3 * 2**30)] == [
        "0",
        "1000 bytes",
        "177 KiB",
        "5.0 MiB",
        "312 MiB",
        "2.3 GiB",
    ]
    memory = Memory(312 * 2**20, 47 * 2**20, 51 * 181_000, 0, 181_000, 1, 1)
    assert in_words(memory) == ("312 MiB at once: server 8.8 MiB (51 models of 177 KiB), clients 0, data 47 MiB")
    two = memory._replace(runs=3, server=3 * 181_000, clients=2**20, devices=2)
    assert in_words(two) == (
        "312 MiB at once on each of 2 devices: server 530 KiB (3 x 1 model of 177 KiB), clients 1.0 MiB, data 47 MiB"
    )
    assert "models" not in in_words(memory._replace(server=40))


def test_a_shortage_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(2**60, 2**20, 0, 0, 1, 1, 1)
    assert shortage(memory._replace(peak=2**20)) is None
    found = shortage(memory)
    assert found is not None
    assert found.startswith("that is about 1073741824 GiB where this machine has ")
    assert sentences(memory) == [in_words(memory), found]
    assert len(sentences(memory._replace(peak=2**20))) == 1
    free: list[dict[str, int]] = [{"bytes_limit": 3 * 2**30, "bytes_in_use": 2**30}]
    monkeypatch.setattr(compilation, "default_platform", lambda: "gpu")
    monkeypatch.setattr(
        jax, "local_devices", lambda: [types.SimpleNamespace(memory_stats=lambda: free[0]), *jax.devices()]
    )
    assert shortage(memory._replace(peak=2 * 2**30 + 2**20)) is None  # what the data take lies there already
    found = shortage(memory._replace(peak=2 * 2**30 + 2**20 + 1))
    assert found is not None
    assert found.startswith("that is about 2.0 GiB where the device has free 2.0 GiB")
    free[0] = {}
    assert shortage(memory) is None


@pytest.mark.parametrize("build", [standalone, functools.partial(lg_fedavg, shared=("bias",))], ids=["alone", "part"])
def test_a_client_that_is_sent_little_still_trains_a_whole_model(build: Any) -> None:
    spec, inputs = program.partition_plan(build(TASK, LOCAL), by_id(tiny_federation()))
    found = engine_shapes.measure(spec, inputs, 1)
    assert found.wire.down < found.model == found.sizes.model
