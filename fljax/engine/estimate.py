"""Memory estimates and error checks before a run; nothing is compiled or computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import trees
from fljax.engine import program
from fljax.engine.execution import Execution, Lanes, resolve
from fljax.engine.keys import Seeds, seeds_of
from fljax.engine.labels import check_labels, task_of
from fljax.engine.memory import attempt, peak_bytes
from fljax.engine.program import Plan
from fljax.engine.round import State, by_id, initial_state, one_round
from fljax.engine.shapes import Shapes, first_run, measure
from fljax.types import Algorithm, Federation


class Memory(NamedTuple):
    """A run's estimated memory in bytes, on each device.

    Attributes:
      peak: the largest memory of a program of the run (start, rounds, evaluation), including all of the following; None
        without an estimate, because this release of JAX writes its programs in an unknown form.
      data: examples and index tables.
      server: the server's state between rounds, of all runs.
      clients: the clients' states between rounds and their last ballots, of all runs.
      model: one initial model of the task.
      runs: number of runs: seeds, in a sweep times cells.
      devices: number of devices; each device holds these amounts.
    """

    peak: int | None
    data: int
    server: int
    clients: int
    model: int
    runs: int
    devices: int


def estimate(
    algorithm_or_plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    evaluate_every: int | None = None,
    execution: Execution | None = None,
) -> Memory:
    """The memory of ``simulate`` with these arguments; programs are traced, but not compiled or run.

    Args:
      algorithm_or_plan: as for ``simulate``.
      federation: as for ``simulate``.
      rounds: as for ``simulate``.
      seeds: as for ``simulate``.
      evaluate_every: as for ``simulate``.
      execution: as for ``simulate``; "trial" is estimated as "auto".

    Raises:
      ValueError: as for ``simulate``.
    """
    seeds = seeds_of(seeds)
    capacity = program.capacity_of(rounds, evaluate_every)
    program.check_seeds(seeds, federation)
    spec, inputs = program.partition_plan(algorithm_or_plan, by_id(federation))
    check_labels(task_of(spec, inputs), federation)
    shapes = measure(spec, inputs, len(seeds))
    lanes = resolve(execution or Execution(), shapes.sizes)
    traced = list(program.trace_all(spec, lanes, capacity, inputs, jnp.asarray(seeds, jnp.uint32)))
    return memory_of(traced, inputs.federation, shapes, lanes)


def rehearse(plan: Algorithm | Plan, federation: Federation) -> None:
    """Traces the initial state and one round of a plan's first run, so that the algorithm's errors appear early.

    Nothing is compiled or computed.

    Raises:
      ValueError: if the algorithm raises it.
    """
    spec, inputs = program.partition_plan(plan, federation)

    def begin(traced: list[Any], by_seed: Any, data: Federation) -> State:
        algorithm = spec.algorithm(traced, by_seed)
        zero = jnp.zeros((), jnp.int32)
        return one_round(algorithm, data, Lanes(1, 1, 1), initial_state(algorithm, data, zero))[0]

    jax.eval_shape(begin, *first_run(spec, inputs))


def memory_of(traced: Sequence[Any], federation: Federation, shapes: Shapes, lanes: Lanes) -> Memory:
    """The estimate for the three programs of a run, in the order of ``trace_all``."""
    state: State = traced[0].out_info
    peak = attempt(_peak, traced, len(jax.tree.leaves(state)))
    server = trees.bytes_of(state.server)
    kept = trees.bytes_of((state.clients, state.ballots))
    return Memory(peak, trees.bytes_of(federation), server, kept, shapes.model, shapes.sizes.seeds, lanes.devices)


def _peak(traced: Sequence[Any], state: int) -> int:
    """The peak of the program with the largest peak; the state of a run has ``state`` leaves."""
    start, rounds, evaluation = (each.jaxpr.jaxpr for each in traced)
    # The state is the only donated argument; only the two numbers of rounds follow it.
    after = len(rounds.invars) - 2
    donated = frozenset(range(after - state, after))
    return max(peak_bytes(start), peak_bytes(rounds, donated), peak_bytes(evaluation))


def size(count: float | None) -> str:
    """Bytes in words: 0, 177 KiB, 9.1 MiB, 2.3 GiB; "unknown" for None."""
    if count is None:
        return "unknown"
    power = 0 if count < 1024 else 1 if count < 2**20 else 2 if count < 2**30 else 3
    number = count / 1024**power
    digits = 1 if number < 10 and power > 1 else 0
    return f"{number:.{digits}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}" if count else "0"


def in_words(memory: Memory) -> str:
    """One line with the peak (or that there is no estimate) and its parts."""
    each = memory.server // memory.runs // max(memory.model, 1)
    runs = f"{memory.runs} x " if memory.runs > 1 else ""
    models = f" ({runs}{each} model{'s' * (each != 1)} of {size(memory.model)})" if each else ""
    where = f" on each of {memory.devices} devices" if memory.devices > 1 else ""
    found = "no estimate with this version of JAX" if memory.peak is None else f"about {size(memory.peak)} at once"
    return (
        f"{found}{where}: server {size(memory.server)}{models}, "
        f"clients {size(memory.clients)}, data {size(memory.data)}"
    )


def shortage(memory: Memory) -> str | None:
    """A sentence if a run needs more memory than the machine has (CPU) or the devices have free (accelerators).

    None if there is enough memory, if the available memory is unknown, or if there is no estimate.
    """
    if memory.peak is None:
        return None
    if jax.default_backend() == "cpu":
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return None
        needed, whose = memory.peak * memory.devices, "this machine has"
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        told = [device.memory_stats() or {} for device in jax.local_devices()[: memory.devices]]
        if not all("bytes_limit" in each for each in told):
            return None
        # The data are on the device already.
        needed, whose = memory.peak - memory.data, "the device has free"
        there = min(each["bytes_limit"] - each.get("bytes_in_use", 0) for each in told)
    if needed <= there:
        return None
    return (
        f"that is about {size(needed)} where {whose} {size(there)}: it may fail; fewer clients or seeds side by side "
        "need less (execution.clients, execution.seeds)"
    )


def sentences(memory: Memory) -> list[str]:
    """The lines of a log before a run: ``in_words``, and ``shortage`` if there is one."""
    missing = shortage(memory)
    return [in_words(memory), *([] if missing is None else [missing])]
