"""What a run holds, told before it runs."""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import engine, trees
from fljax.algorithms import lg_fedavg, scaffold, standalone
from fljax.data import stack
from fljax.engine import Execution, Memory, estimate, in_words, program, sentences, shortage, simulate, size
from fljax.engine import shapes as engine_shapes
from fljax.engine.memory import made_bytes, peak_bytes
from fljax.engine.round import by_id
from fljax.training import Local
from tests.toys.federation import tiny_federation
from tests.toys.models_per_client import models_per_client
from tests.toys.task import logistic_regression

engine_estimate = importlib.import_module("fljax.engine.estimate")  # the package gives the function by that name
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
    assert memory == estimate(algorithm, data, **given)
    assert (memory.model, memory.runs, memory.devices) == (MODEL, 2, devices)
    assert memory.server == 2 * (5 + 1) * MODEL
    assert memory.clients == 0
    assert memory.data == trees.bytes_of(data)
    assert memory.peak > memory.data + 2 * memory.server  # while they are mixed
    assert float(result.metrics["execution_memory"]) == memory.peak


def test_what_clients_keep_counts() -> None:
    memory = estimate(scaffold(TASK, LOCAL), tiny_federation(), rounds=1)
    assert memory.clients == 5 * MODEL
    assert memory.server >= 2 * MODEL


def test_nothing_is_compiled_for_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: pytest.fail("compiled"))
    estimate(scaffold(TASK, LOCAL), tiny_federation(), rounds=1)


class _Bare:
    """A jaxpr whose operations do not say how many of their operands are constants and how many are carried."""

    def __init__(self, jaxpr: Any) -> None:
        self.invars, self.outvars, self.constvars = jaxpr.invars, jaxpr.outvars, jaxpr.constvars
        self.eqns = [_bare_equation(eqn) for eqn in jaxpr.eqns]


def _bare_equation(eqn: Any) -> Any:
    def bare(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(bare, value))
        inner = getattr(value, "jaxpr", value)
        return _Bare(inner) if hasattr(inner, "eqns") else value

    params = {name: bare(value) for name, value in eqn.params.items() if not name.startswith("num_")}
    params = {name: value for name, value in params.items() if not name.endswith("_nconsts")}
    fields = {name: getattr(eqn, name) for name in ("primitive", "invars", "outvars", "effects")}
    return types.SimpleNamespace(params=params, **fields)


def test_an_estimate_needs_no_numbers_of_operands() -> None:
    """JAX 0.12 dropped ``num_consts`` and ``num_carry`` of a scan."""

    def loops(x: Any, count: Any) -> Any:
        kernel = jnp.sin(x @ x)
        total, each = jax.lax.scan(lambda c, row: (c + row @ kernel, c), x[0], jnp.cos(x))
        grown = jax.lax.fori_loop(0, count, lambda i, c: c @ kernel + total[None], x)
        return each, jax.lax.while_loop(lambda c: jnp.sum(c @ x) < count, lambda c: c @ kernel, grown)

    whole = jax.make_jaxpr(loops)(jnp.ones((64, 64)), 3).jaxpr
    assert peak_bytes(_Bare(whole)) == peak_bytes(whole)
    assert made_bytes(_Bare(whole)) == made_bytes(whole) > 3 * 64 * 64 * 4


def _refuse(*_: Any) -> Any:
    raise KeyError("num_consts")


@pytest.mark.thorough
def test_a_run_goes_on_without_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Memory] = []
    given: Any = {"rounds": 1, "execution": Execution(devices=1)}
    expected = simulate(scaffold(TASK, LOCAL), tiny_federation(), **given, on_memory=told.append)
    monkeypatch.setattr(engine_estimate, "peak_bytes", _refuse)
    for name in ("made_bytes", "steps_differ"):
        monkeypatch.setattr(engine_shapes, name, _refuse)
    result = simulate(scaffold(TASK, LOCAL), tiny_federation(), **given, on_memory=told.append)
    np.testing.assert_array_equal(result.metrics["test_loss"], expected.metrics["test_loss"])
    assert np.isnan(result.metrics["execution_memory"])
    assert told[1] == told[0]._replace(peak=None) == estimate(scaffold(TASK, LOCAL), tiny_federation(), **given)
    (words,) = sentences(told[1])
    assert words.startswith(
        "no estimate with this version of JAX: server 124 bytes (2 models of 60 bytes), clients 300"
    )
    assert shortage(told[1]) is None
    assert size(told[1].peak) == "unknown"


def test_standalone_models_need_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    solo = importlib.import_module("fljax.engine.standalone")
    monkeypatch.setattr(solo, "made_bytes", _refuse)
    spec, inputs = program.partition_plan(program.Plan(solo._Solo, {"task": TASK, "local": LOCAL}), tiny_federation())
    assert solo._lane_bytes(spec, inputs) == 0


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
    assert in_words(memory) == ("about 312 MiB at once: server 8.8 MiB (51 models of 177 KiB), clients 0, data 47 MiB")
    two = memory._replace(runs=3, server=3 * 181_000, clients=2**20, devices=2)
    assert in_words(two) == (
        "about 312 MiB at once on each of 2 devices: server 530 KiB (3 x 1 model of 177 KiB), clients 1.0 MiB, "
        "data 47 MiB"
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
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(
        jax, "local_devices", lambda: [types.SimpleNamespace(memory_stats=lambda: free[0]), *jax.devices()]
    )
    assert shortage(memory._replace(peak=2 * 2**30 + 2**20)) is None  # what the data take lies there already
    found = shortage(memory._replace(peak=2 * 2**30 + 2**20 + 1))
    assert found is not None
    assert found.startswith("that is about 2.0 GiB where the device has free 2.0 GiB")
    free[0] = {}
    assert shortage(memory) is None


def test_estimate_refuses_what_simulate_refuses() -> None:
    with pytest.raises(ValueError, match="distinct"):
        engine.estimate(scaffold(TASK, LOCAL), tiny_federation(), rounds=1, seeds=(1, 1))
    with pytest.raises(ValueError, match="expected rounds to be zero or more, got -1"):
        engine.estimate(scaffold(TASK, LOCAL), tiny_federation(), rounds=-1)


@pytest.mark.parametrize("build", [standalone, functools.partial(lg_fedavg, shared=("bias",))], ids=["alone", "part"])
def test_a_client_that_is_sent_little_still_trains_a_whole_model(build: Any) -> None:
    spec, inputs = program.partition_plan(build(TASK, LOCAL), by_id(tiny_federation()))
    found = engine_shapes.measure(spec, inputs, 1)
    assert found.wire.down < found.model == found.sizes.model
