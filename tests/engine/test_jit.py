"""Programs on several devices: nothing is split over threads that lead a device, and long programs stay right."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fljax.core import platforms
from fljax.engine.devices.layout import Layout, mesh
from fljax.engine.loop.standalone_models import _run
from fljax.engine.offload.programs import train_block
from fljax.engine.programs import jit
from fljax.engine.programs.program import capacity_of, evaluate_runs, run_rounds
from tests.toys.quick import QUICK

pytestmark = pytest.mark.devices

ONE, TWO = Layout(1, 1, 1, 1), Layout(1, 1, 1, 2)
FEW = "jax_disable_most_optimizations"
SPLIT = "outer_dimension_partitions"  # of a loop that XLA shares among threads


@jit.program(static_argnames=("spec", "layout"))
def pointwise(spec: Any, layout: Layout, x: jax.Array) -> jax.Array:
    compute = lambda x: jnp.tanh(x) * jnp.sin(x)  # noqa: E731
    if layout.devices == 1:
        return compute(x)
    return jax.shard_map(compute, mesh=mesh(layout.devices), in_specs=P(), out_specs=P())(x)


def test_loops_are_split_over_threads_on_one_device_only() -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("on one core XLA has no threads to split loops over")
    x = jnp.zeros((2000, 2000))
    assert SPLIT in pointwise.trace(None, ONE, x).lower().compile().as_text()
    assert SPLIT not in pointwise.trace(None, TWO, x).lower().compile().as_text()


@pytest.mark.in_turn
def test_a_call_takes_the_program_that_was_traced() -> None:
    x = jnp.linspace(0, 1, 5)
    for layout in (ONE, TWO):
        np.testing.assert_allclose(pointwise(None, layout, x), np.tanh(x) * np.sin(x), rtol=1e-6)
    assert pointwise.jitted(None, ONE, x) is pointwise.jitted(spec=None, layout=ONE, x=x + 1)
    assert pointwise.jitted(None, ONE, x) is not pointwise.jitted(None, TWO, x)


@pytest.mark.skipif(not platforms.is_supported(), reason="this JAX has no contexts that are part of a trace")
@pytest.mark.parametrize(("platform", "forms"), [("cpu", ["cpu"]), ("gpu", ["others"]), ("tpu", ["others"])])
def test_a_program_has_the_form_of_its_platform_alone(platform: str, forms: list[str]) -> None:
    program, seen = _with_forms()
    program.trace(None, ONE._replace(platform=platform), jnp.ones(2))
    assert seen == forms


def test_a_program_for_any_platform_has_all_forms() -> None:
    program, seen = _with_forms()
    program.trace(None, ONE._replace(platform=platforms.ANY), jnp.ones(2))
    assert sorted(set(seen)) == ["cpu", "others"]


def _with_forms() -> tuple[jit.Program, list[str]]:
    """A program with two forms, and those that were traced."""
    seen: list[str] = []

    def noted(name: str) -> Any:
        return lambda x: (seen.append(name), x + 1)[1]

    def function(spec: Any, layout: Layout, x: jax.Array) -> jax.Array:
        return platforms.choose(x, cpu=noted("cpu"), default=noted("others"))

    return jit.Program(function, static_argnames=("spec", "layout"), store=jit.Store(4)), seen


def test_options_are_kept() -> None:
    options = {"xla_backend_optimization_level": 0}
    quick = jit.program(static_argnames=("spec", "layout"), compiler_options=options)(lambda spec, layout, x: x + 1)
    assert [int(quick(None, layout, 1)) for layout in (ONE, TWO)] == [2, 2]
    assert options == {"xla_backend_optimization_level": 0}


@pytest.fixture
def as_users_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has chosen a level of optimisations, as quick tests do."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = jax.config.read(FEW)
    jax.config.update(FEW, False)
    yield
    jax.config.update(FEW, before)


@pytest.mark.usefixtures("as_users_compile")
def test_an_option_is_used_only_where_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jit.is_accepted((("xla_backend_optimization_level", 1),))
    assert not jit.is_accepted((("xla_no_such_option", 1),))
    known = jit.is_accepted(tuple(jit.UNFUSED.items()))
    one, two, none = {"layout": ONE}, {"layout": TWO}, {"layout": None}
    names, short = ("spec", "layout"), jit.ENOUGH | jit.UNSPLIT
    long = jit.Program(lambda spec, layout, x: x, static_argnames=names, is_long=True)
    assert long.options(two) == short | (jit.UNFUSED if known else {})
    assert pointwise.options(two) == short
    assert long.options(one) == pointwise.options(one) == jit.ENOUGH
    assert long.options(none) == {}
    for name in ("yes", "no"):
        monkeypatch.setattr(jit, "is_accepted", lambda _, name=name: name == "yes")
        assert (long.options(two) != short) == (name == "yes")


@pytest.mark.usefixtures("as_users_compile")
@pytest.mark.parametrize("layout", [ONE, TWO])
def test_programs_of_a_cpu_have_fewer_optimisations_unless_somebody_chose_a_level(layout, monkeypatch):
    """They compile in half the time. A GPU's programs have all optimisations."""
    options = {"xla_backend_optimization_level": 0}
    asks = jit.Program(lambda layout, x: x, static_argnames=("layout",), compiler_options=options)

    def level(program: jit.Program, layout: Layout | None) -> int | None:
        return program.options({"layout": layout}).get("xla_backend_optimization_level")

    assert level(pointwise, layout) == 2
    assert [level(pointwise, each) for each in (layout._replace(platform="gpu"), None)] == [None, None]
    assert level(asks, layout) == 0
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false --xla_backend_optimization_level=3")
    assert level(pointwise, layout) is None
    monkeypatch.delenv("XLA_FLAGS")
    jax.config.update(FEW, True)
    assert level(pointwise, layout) is None


@pytest.mark.usefixtures("as_users_compile")
def test_which_programs_are_long() -> None:
    """Standalone training is one program; rounds, evaluations and blocks of clients are short ones."""
    short = jit.ENOUGH | jit.UNSPLIT
    unfused = jit.UNFUSED if jit.is_accepted(tuple(jit.UNFUSED.items())) else {}
    assert _run.options({"layout": TWO}) == short | unfused
    assert run_rounds.options({"layout": TWO}) == evaluate_runs.options({"layout": TWO}) == short
    assert train_block.options({"layout": TWO}) == short


@pytest.mark.parametrize(("rounds", "every", "expected"), [(1000, 1000, 31), (1000, 40, 31), (1000, 30, 30), (0, 5, 1)])
def test_programs_of_several_devices_of_a_cpu_have_at_most_31_rounds(rounds: int, every: int, expected: int) -> None:
    """The heap grows while they run. On one device, on accelerators and with data on the host it does not."""
    assert capacity_of(rounds, every, TWO) == expected
    others = (ONE, TWO._replace(platform="gpu"), TWO._replace(client_states="host"))
    usual = max(1, min(rounds, every))
    assert [capacity_of(rounds, every, layout) for layout in others] == [usual] * 3


def _counted(store: jit.Store) -> tuple[jit.Program, list[Any]]:
    """A program kept in ``store``, and the shapes that it was traced for."""
    seen: list[Any] = []

    def grown(spec: Any, layout: Layout, x: jax.Array) -> jax.Array:
        seen.append((spec, x.shape))
        return jnp.tanh(x) @ jnp.cos(x).T + len(x)

    return jit.Program(grown, static_argnames=("spec", "layout"), compiler_options=QUICK, store=store), seen


@pytest.mark.in_turn
def test_programs_that_were_used_last_are_kept() -> None:
    store = jit.Store(4)
    grown, seen = _counted(store)
    for spec in "abcd" * 2:  # four fit
        grown(spec, ONE, jnp.ones((2, 2)))
    assert seen == [(spec, (2, 2)) for spec in "abcd"]
    grown("a", ONE, jnp.ones((2, 2)))  # so that b is the oldest
    grown("a", ONE, jnp.ones((3, 2)))
    assert seen[4:] == [("a", (3, 2))]
    assert len(store) == 4
    for spec in "acd":
        grown(spec, ONE, jnp.ones((2, 2)))
    assert seen[5:] == []
    grown("b", ONE, jnp.ones((2, 2)))
    assert seen[5:] == [("b", (2, 2))]


def test_a_store_of_traces_leaves_freeing_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[bool] = []
    for collects in (True, False):
        monkeypatch.setattr(jit.gc, "collect", lambda collects=collects: collected.append(collects))
        store = jit.Store(2, collects)
        for key in range(3):
            store.find(key, object)
        assert len(store) == 2
    assert collected == [True]


def test_a_traced_program_is_compiled_once() -> None:
    grown, seen = _counted(jit.Store(4))
    x = jnp.ones((2, 2))
    grown.trace("a", ONE, jax.ShapeDtypeStruct(x.shape, x.dtype)).lower().compile()
    grown("a", ONE, x)
    assert len(seen) == 1


@pytest.mark.thorough
def test_what_is_no_longer_kept_holds_no_memory_maps() -> None:
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("memory maps are counted where /proc tells them")

    def growth(store: jit.Store) -> int:
        grown, seen = _counted(store)
        gc.collect()
        before = len(maps.read_text().splitlines())
        for rows in range(1, 11):
            grown(None, ONE, np.ones((rows, 3), np.float32))
        assert len(seen) == 10
        return len(maps.read_text().splitlines()) - before

    kept = jit.Store(100)
    assert growth(kept) > 2 * growth(jit.Store(2))
    assert len(kept) == 10


@jit.program(static_argnames=("spec", "layout"))
def many_products(spec: Any, layout: Layout, kernel: jax.Array, patches: jax.Array, count: jax.Array) -> jax.Array:
    """Two convolutions in a row, as a matrix product of patches each, ``count`` times over."""
    product = lambda a, b: jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())))  # noqa: E731
    width = patches.shape[1] - 64

    def run(kernel: jax.Array, patches: jax.Array) -> jax.Array:
        def body(turn: jax.Array, _: jax.Array) -> jax.Array:
            weights = kernel * (1 + 0 * turn.astype(jnp.float32))
            first = jnp.maximum(0.5 * product(weights, patches), 0)
            windows = jnp.concatenate([first[:, 8 * i : 8 * i + width] for i in range(9)])
            return product(weights, jnp.pad(windows, ((0, 0), (0, 64))))

        return jax.lax.fori_loop(0, count, body, jnp.zeros((kernel.shape[1], patches.shape[1])))[None]

    # Every device's own result, so that none can hide.
    mesh = jax.make_mesh((layout.devices,), ("clients",))
    everywhere, apart = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("clients")
    return jax.shard_map(run, mesh=mesh, in_specs=everywhere, out_specs=apart, check_vma=False)(kernel, patches)


@pytest.mark.thorough
def test_a_long_program_on_all_devices_computes_what_a_short_one_does() -> None:
    """With split loops jaxlib 0.10 is wrong after some 50 to 150 turns on a machine of two cores."""
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.normal(size=(576, 64)), jnp.float32)
    patches = jnp.asarray(random.normal(size=(576, 8192)), jnp.float32)
    short, long = (np.asarray(many_products(None, TWO, kernel, patches, jnp.int32(count))) for count in (1, 200))
    assert np.array_equal(short, long)
