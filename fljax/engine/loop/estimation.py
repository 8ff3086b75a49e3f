"""Before a run: its memory, a check for errors, and compilation ahead; nothing is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fljax.core import trees
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, default_platform, replicate
from fljax.engine.devices.memory import Memory, made_bytes
from fljax.engine.loop.compilation import begin, compile_all
from fljax.engine.offload.compilation import memory as offload_memory
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs import program
from fljax.engine.programs.execution import Execution, resolve_together
from fljax.engine.programs.labels import check_labels, task_of
from fljax.engine.programs.program import Inputs, Plan, Spec
from fljax.engine.programs.shapes import Shapes, first_run, measure, state_bytes
from fljax.engine.rounds.federations import by_id
from fljax.engine.rounds.keys import Seeds, seeds_of
from fljax.engine.rounds.round import one_round
from fljax.engine.rounds.states import State, initial_state
from fljax.protocol import Algorithm, Federation
from fljax.results.non_finite import NonFinite, check_mode


def estimate(
    algorithm_or_plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    evaluate_every: int | None = None,
    execution: Execution | None = None,
    non_finite: NonFinite = "freeze",
) -> Memory:
    """The memory of ``simulate`` with these arguments.

    The programs of the run are compiled for their memory, in about half the time of a real compilation, and not run.

    Args:
      algorithm_or_plan: as for ``simulate``.
      federation: as for ``simulate``.
      rounds: as for ``simulate``.
      seeds: as for ``simulate``.
      evaluate_every: as for ``simulate``.
      execution: as for ``simulate``; "trial" is estimated as "auto".
      non_finite: as for ``simulate``.

    Raises:
      ValueError: as for ``simulate``.
    """
    with jax.disable_jit(False):
        found = _prepared(algorithm_or_plan, federation, rounds, seeds, evaluate_every, execution, non_finite)
        if found.layout.is_offloaded:
            return offload_memory(OffloadRun.of(*found), found.shapes, quick=True)
        programs = compile_all(*found[:-1], quick=True)
    return memory_of(programs, found.inputs, found.shapes, found.layout)


def compile_ahead(
    pool: Executor,
    algorithm_or_plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    evaluate_every: int | None = None,
    execution: Execution | None = None,
    non_finite: NonFinite = "freeze",
) -> None:
    """Traces a run's programs now and compiles them on the threads of ``pool``, while something else is computed.

    ``simulate`` of a plan with the same structure and shapes waits for these programs and uses them. With the strategy
    "trial" the programs are not known yet, so one round is traced alone (``rehearse``). Where ``jax.jit`` is off
    ("debug"), nothing is traced.

    Args:
      pool: threads, such as ``concurrent.futures.ThreadPoolExecutor``.
      algorithm_or_plan: as for ``simulate``; a plan may have other values in its floats and arrays.
      federation: as for ``simulate``.
      rounds: as for ``simulate``.
      seeds: as for ``simulate``.
      evaluate_every: as for ``simulate``.
      execution: as for ``simulate``.
      non_finite: as for ``simulate``.

    Raises:
      ValueError: as for ``simulate``.
    """
    if eager.is_on() or (execution is not None and execution.clients == "debug"):
        return
    if execution is not None and execution.clients == "trial":
        rehearse(algorithm_or_plan, federation)
        return
    found = _prepared(algorithm_or_plan, federation, rounds, seeds, evaluate_every, execution, non_finite)
    if found.layout.is_offloaded:  # its programs are many, and the first round soon needs them
        return
    inputs = replicate(found.inputs, found.layout.devices)
    begin(pool, found.spec, found.layout, found.capacity, inputs, found.seeds)


class _Prepared(NamedTuple):
    """What ``compile_all`` takes, and the shapes of the run."""

    spec: Spec
    layout: Layout
    capacity: int
    inputs: Inputs
    seeds: Array
    shapes: Shapes


def _prepared(
    algorithm_or_plan: Algorithm | Plan,
    federation: Federation,
    rounds: int,
    seeds: Seeds,
    evaluate_every: int | None,
    execution: Execution | None,
    non_finite: NonFinite,
) -> _Prepared:
    seeds = seeds_of(seeds)
    check_mode(non_finite)
    capacity = program.capacity_of(rounds, evaluate_every)
    program.check_seeds(seeds, federation)
    spec, inputs = program.partition_plan(algorithm_or_plan, by_id(federation))
    spec = spec._replace(non_finite=non_finite)
    check_labels(task_of(spec, inputs), federation)
    shapes = measure(spec, inputs, len(seeds))
    layout = resolve_together(execution or Execution(), shapes.sizes)
    return _Prepared(spec, layout, capacity, inputs, jnp.asarray(seeds, jnp.uint32), shapes)


def rehearse(plan: Algorithm | Plan, federation: Federation) -> None:
    """Traces the initial state and one round of a plan's first run, so that the algorithm's errors appear early.

    Nothing is compiled or computed. Where ``jax.jit`` is off, nothing is traced either.

    Raises:
      ValueError: if the algorithm's arguments are bad.
      AlgorithmError: if one of its functions raises another exception.
    """
    if eager.is_on():
        return
    spec, inputs = program.partition_plan(plan, federation)

    def first_round(traced: list[Any], by_seed: Any, data: Federation) -> State:
        algorithm = spec.algorithm(traced, by_seed)
        zero = jnp.zeros((), jnp.int32)
        return one_round(algorithm, data, Layout(1, 1, 1), initial_state(algorithm, data, zero))[0]

    jax.eval_shape(first_round, *first_run(spec, inputs))


def memory_of(programs: Sequence[Any], inputs: Inputs, shapes: Shapes, layout: Layout) -> Memory:
    """The memory of a run with these compiled programs (start, rounds, evaluation)."""
    runs = shapes.sizes.seeds
    server, clients = (runs * each for each in state_bytes(shapes.state, layout))
    made = [each for each in map(made_bytes, programs) if each is not None]
    peak = None
    if programs and len(made) == len(programs):
        # The state is a result of the first program, and an argument of the others.
        peak = trees.bytes_of(inputs) + max([made[0], *(server + clients + each for each in made[1:])])
    return Memory(peak, trees.bytes_of(inputs.federation), server, clients, shapes.model, runs, layout.devices)


def size(count: float | None) -> str:
    """Bytes in words: 0, 177 KiB, 9.1 MiB, 2.3 GiB; "unknown" for None."""
    if count is None:
        return "unknown"
    power = 0 if count < 1024 else 1 if count < 2**20 else 2 if count < 2**30 else 3
    number = count / 1024**power
    digits = 1 if number < 10 and power > 1 else 0
    return f"{number:.{digits}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}" if count else "0"


def in_words(memory: Memory) -> str:
    """One line with the peak (or that it is unknown) and its parts."""
    each = memory.server // memory.runs // max(memory.model, 1)
    runs = f"{memory.runs} x " if memory.runs > 1 else ""
    models = f" ({runs}{each} model{'s' * (each != 1)} of {size(memory.model)})" if each else ""
    where = f" on each of {memory.devices} devices" if memory.devices > 1 else ""
    found = "an unknown amount" if memory.peak is None else size(memory.peak)
    return (
        f"{found} at once{where}: server {size(memory.server)}{models}, "
        f"clients {size(memory.clients)}, data {size(memory.data)}"
    )


def shortage(memory: Memory) -> str | None:
    """A sentence if a run needs more memory than the machine has (CPU) or the devices have free (accelerators).

    None if there is enough memory, or if the peak or the available memory is unknown.
    """
    if memory.peak is None:
        return None
    if default_platform() == "cpu":
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return None
        needed, whose = memory.peak * memory.devices // jax.process_count(), "this machine has"
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
