"""Compiling the programs of a run side by side, and timing strategies against each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fljax.engine import program
from fljax.engine.execution import Lanes
from fljax.engine.lanes import sharding
from fljax.engine.memory import peak_bytes
from fljax.engine.program import Inputs, Spec

if TYPE_CHECKING:
    from jaxtyping import Array


def compile_all(spec: Spec, lanes: Lanes, capacity: int, inputs: Inputs, seeds: Array) -> int:
    """Compiles start, rounds and evaluation at the same time; later calls with such arguments find them ready.

    Returns:
      An estimate of the bytes that rounds hold at once on each device, data and state included.
    """
    everywhere = sharding(lanes.devices)
    place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere)  # noqa: E731
    zero = jnp.int32(0)
    with ThreadPoolExecutor(3) as pool:
        # Each compiles while the next is traced. Only compiling leaves this thread: what traces reads settings of the
        # thread, such as a context with double precision.
        start = program.start.trace(spec, lanes, inputs, seeds)
        jobs = [pool.submit(start.lower().compile)]
        state = jax.tree.map(place, start.out_info)
        rounds = program.run_rounds.trace(spec, lanes, capacity, inputs, state, zero, zero)
        jobs.append(pool.submit(rounds.lower().compile))
        jobs.append(pool.submit(program.evaluate.trace(spec, lanes, inputs, state, zero).lower().compile))
        for job in jobs:
            job.result()
    first = len(jax.tree.leaves(inputs))
    return peak_bytes(rounds.jaxpr.jaxpr, frozenset(range(first, first + len(jax.tree.leaves(state)))))


def fastest(spec: Spec, tried: Sequence[Lanes], capacity: int, inputs: Inputs, seeds: Array) -> Lanes:
    """Which of ``tried`` runs a round soonest: the better of two timed rounds each, after compiling.

    One that runs out of memory is left out, unless it is one client at a time.
    """
    seconds: dict[Lanes, float] = {}
    for lanes in tried:
        state: Any = program.start(spec, tried[0], inputs, seeds)
        try:
            state, _ = program.run_rounds(spec, lanes, capacity, inputs, state, jnp.int32(0), jnp.int32(1))
            for place in (1, 2):
                jax.block_until_ready(state)
                began = time.perf_counter()
                state, _ = program.run_rounds(spec, lanes, capacity, inputs, state, jnp.int32(place), jnp.int32(1))
                jax.block_until_ready(state)
                seconds[lanes] = min(time.perf_counter() - began, seconds.get(lanes, float("inf")))
        except jax.errors.JaxRuntimeError:  # more side by side than memory holds: the others remain
            if lanes.clients == 1:
                raise
    return min(seconds, key=lambda lanes: seconds[lanes])
