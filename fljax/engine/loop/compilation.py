"""Parallel compilation of a run's programs, and timing of execution strategies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fljax.core import processes
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout
from fljax.engine.devices.memory import QUICK
from fljax.engine.programs import program
from fljax.engine.programs.program import Inputs, Spec


def compile_all(
    spec: Spec, layout: Layout, capacity: int, inputs: Inputs, seeds: Array, quick: bool = False
) -> list[Any]:
    """Compiles start, rounds and evaluation in parallel; later calls with the same shapes reuse them.

    Args:
      spec: the static part of a plan.
      layout: how clients and runs map to devices.
      capacity: rounds of the longest block.
      inputs: the traced part of a plan.
      seeds: ``[runs]``.
      quick: whether the programs are compiled for their memory only (``fljax.engine.devices.memory``); later calls do
        not reuse them.

    Returns:
      The three programs (``jax.stages.Compiled``); none where ``jax.jit`` is off.
    """
    if eager.is_on():
        return []
    with ThreadPoolExecutor(3) as pool:
        jobs = begin(pool, spec, layout, capacity, inputs, seeds, QUICK if quick else None)
        return [job.result() for job in jobs]


def begin(
    pool: Executor,
    spec: Spec,
    layout: Layout,
    capacity: int,
    inputs: Inputs,
    seeds: Array,
    options: dict[str, Any] | None = None,
) -> list[Future[Any]]:
    """Traces start, rounds and evaluation now, and compiles them on the threads of ``pool``.

    Later calls with the same shapes wait for these programs and use them. Each program compiles while the next one is
    traced. Tracing stays in this thread, since it reads settings of the thread, such as a context with double
    precision.
    """
    traced = program.trace_all(spec, layout, capacity, inputs, seeds)
    return [pool.submit(each.lower().compile, options) for each in traced]


def fastest(spec: Spec, tried: Sequence[Layout], capacity: int, inputs: Inputs, seeds: Array) -> Layout:
    """The fastest of ``tried``: each runs two timed rounds after compilation, and the faster round counts.

    Strategies that run out of memory are skipped; with one client at a time the error is raised.
    """
    seconds: dict[Layout, float] = {}
    for layout in tried:
        state: Any = program.start(spec, tried[0], inputs, seeds)
        try:
            state, _ = program.run_rounds(spec, layout, capacity, inputs, state, jnp.int32(0), jnp.int32(1))
            for place in (1, 2):
                jax.block_until_ready(state)
                began = time.perf_counter()
                state, _ = program.run_rounds(spec, layout, capacity, inputs, state, jnp.int32(place), jnp.int32(1))
                jax.block_until_ready(state)
                seconds[layout] = min(time.perf_counter() - began, seconds.get(layout, float("inf")))
        except jax.errors.JaxRuntimeError:  # too many clients side by side for the memory
            if layout.clients == 1:
                raise
    return processes.agreed(lambda: min(seconds, key=lambda layout: seconds[layout]))
