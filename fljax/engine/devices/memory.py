"""Memory of compiled programs, by XLA's own analysis. Nothing is run.

What a run keeps (data, server, clients) is computed from shapes. What it holds at once is the analysis of its compiled
programs. ``estimate`` compiles them with quick machine code: XLA assigns memory before it makes machine code, so the
analysis is the same. Where XLA does not tell, the peak is None and the run goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
