"""Programs on several devices: nothing is split over threads that lead a device, and long programs stay right."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.engine import jit
from fljax.engine.execution import Lanes
from fljax.engine.lanes import on_devices

ONE, TWO = Lanes(1, 1, 1, 1), Lanes(1, 1, 1, 2)
SPLIT = "outer_dimension_partitions"  # of a loop that XLA shares among threads


@jit.program(static_argnames=("spec", "lanes"))
def pointwise(spec: Any, lanes: Lanes, x: jax.Array) -> jax.Array:
    return on_devices(lambda x: jnp.tanh(x) * jnp.sin(x), lanes.devices)(x)


def test_loops_are_split_over_threads_on_one_device_only() -> None:
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("on one core XLA has no threads to split loops over")
    x = jnp.zeros((2000, 2000))
    assert SPLIT in pointwise.trace(None, ONE, x).lower().compile().as_text()
    assert SPLIT not in pointwise.trace(None, TWO, x).lower().compile().as_text()


def test_a_call_takes_the_program_that_was_traced() -> None:
    x = jnp.linspace(0, 1, 5)
    for lanes in (ONE, TWO):
        np.testing.assert_allclose(pointwise(None, lanes, x), np.tanh(x) * np.sin(x), rtol=1e-6)
    assert pointwise.on(ONE) is not pointwise.on(TWO)


def test_options_are_kept() -> None:
    options = {"xla_backend_optimization_level": 0}
    quick = jit.program(static_argnames=("spec", "lanes"), compiler_options=options)(lambda spec, lanes, x: x + 1)
    assert [int(quick(None, lanes, 1)) for lanes in (ONE, TWO)] == [2, 2]
    assert options == {"xla_backend_optimization_level": 0}


@jit.program(static_argnames=("spec", "lanes"))
def many_products(spec: Any, lanes: Lanes, kernel: jax.Array, patches: jax.Array, count: jax.Array) -> jax.Array:
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
    mesh = jax.make_mesh((lanes.devices,), ("clients",))
    everywhere, apart = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("clients")
    return jax.shard_map(run, mesh=mesh, in_specs=everywhere, out_specs=apart, check_vma=False)(kernel, patches)


def test_a_long_program_on_all_devices_computes_what_a_short_one_does() -> None:
    """With split loops jaxlib 0.10 is wrong after some 50 to 150 turns on a machine of two cores."""
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.normal(size=(576, 64)), jnp.float32)
    patches = jnp.asarray(random.normal(size=(576, 8192)), jnp.float32)
    short, long = (np.asarray(many_products(None, TWO, kernel, patches, jnp.int32(count))) for count in (1, 200))
    assert np.array_equal(short, long)
