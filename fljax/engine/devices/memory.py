"""Memory of compiled programs, by XLA's own analysis, and what a run does if that of its devices does not suffice.

Nothing is run for the analysis. What a run keeps (data, server, clients) is computed from shapes. What it holds at once
is the analysis of its compiled programs. ``estimate`` compiles them with quick machine code: XLA assigns memory before
it makes machine code, so the analysis is the same. Where XLA does not tell, the peak is None and the run goes on.

A run whose memory does not suffice goes on with fewer clients side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fljax.engine.devices.layout import Layout

# XLA assigns memory before it makes machine code. So quick machine code, in half the time, has the same analysis.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}


def made_bytes(compiled: Any) -> int | None:
    """Bytes that a compiled program (``jax.stages.Compiled``) holds at once on each device, without its arguments.

    These are its results, except those that take the place of donated arguments, and all that it computes in between.
    None if XLA does not tell.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    return found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


class Memory(NamedTuple):
    """A run's memory in bytes, on each device. ``peak`` is read from compiled programs, all else from shapes.

    Attributes:
      peak: the largest memory of a program of the run (start, rounds, evaluation), including all of the following; None
        if XLA does not tell it for this device.
      data: examples and index tables.
      server: the server's state between rounds, of all runs.
      clients: the clients' states between rounds and their last ballots, of all runs.
      model: one initial model of the task.
      runs: number of runs: seeds, in a sweep times cells.
      devices: number of devices; each holds these amounts. Tables with one row per client are divided among them.
    """

    peak: int | None
    data: int
    server: int
    clients: int
    model: int
    runs: int
    devices: int


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of JAX says that memory did not suffice, of a device or for compiling."""
    words = str(error)
    return isinstance(error, jax.errors.JaxRuntimeError | MemoryError) and (
        isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in words or "out of memory" in words.lower()
    )


def smaller(layout: Layout) -> Layout | None:
    """The layout with half as many clients and runs side by side; None if there is one of each already."""
    halved = layout._replace(
        clients=max(1, layout.clients // 2),
        seeds=max(1, layout.seeds // 2),
        evaluation=max(1, layout.evaluation // 2),
    )
    return None if halved == layout else halved


def sentence(layout: Layout, done: int) -> str:
    """What a run says before it goes on with ``layout`` after ``done`` rounds."""
    return (
        f"memory did not suffice; the run goes on after round {done} with fewer side by side: clients in training "
        f"{layout.clients}, clients in evaluation {layout.evaluation}, runs {layout.seeds}"
    )
