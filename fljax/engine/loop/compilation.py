"""The programs of a run before it begins: prepared, compiled in parallel, timed, and their memory estimated."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import repeat
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax import results
from fljax.core import processes, trees
from fljax.core.names import check_unlabelled
from fljax.engine.devices import eager
from fljax.engine.devices.layout import QUICK, Layout, Memory, default_platform, made_bytes, put_state, replicate
from fljax.engine.loop import diagnosis
from fljax.engine.loop.history import OnMemory, Schedule
from fljax.engine.offload.run import OffloadRun
from fljax.engine.offload.run import memory as offload_memory
from fljax.engine.programs import program
from fljax.engine.programs.program import Inputs, Plan, Spec, on_devices
from fljax.engine.programs.shapes import (
    Shapes,
    check_labels,
    measure,
    resolve_together,
    state_bytes,
    task_of,
    trace_round,
)
from fljax.engine.rounds.evaluate import GRADIENT_NORM
from fljax.engine.rounds.states import ROUNDS, Seeds, State, by_id, check_below, seeds_of
from fljax.protocol import Algorithm, Federation, Info, Labelled
from fljax.results import Reference
from fljax.results.non_finite import check_mode


class Programs(NamedTuple):
    """The programs of a run, and their arguments: as a user gives them, or moved to the devices (``programs_of``)."""

    spec: Spec
    layout: Layout
    capacity: int  # rounds of the longest block
    inputs: Inputs
    seeds: Array  # [runs]
    shapes: Shapes

    def start(self) -> State:
        """States of all runs before round 0."""
        arguments = (self.spec, self.layout, self.inputs, self.seeds)
        state: State = program.start(*arguments)
        if diagnosis.is_asked():
            diagnosis.check_start(*arguments, state)
        return state

    def placed(self, state: State) -> State:
        """The state as arrays on the devices of the layout, as the programs take it."""
        return put_state(jax.tree.map(jnp.asarray, state), self.layout)

    def rounds(self, state: State, done: int, count: int) -> tuple[State, Info]:
        """``count`` rounds after ``done``; records ``[runs, capacity, ...]``."""
        first, number = jnp.int32(done), jnp.int32(count)
        after, records = program.run_rounds(self.spec, self.layout, self.capacity, self.inputs, state, first, number)
        if diagnosis.is_asked():
            diagnosis.check_rounds(self.spec, self.layout, self.inputs, after, done, count)
        return after, records

    def evaluate(self, state: State, done: int, whole: bool = True) -> dict[str, Labelled]:
        """The evaluation after ``done`` rounds; ``whole``: of all clients, whatever ``spec.judged`` says."""
        arguments = (self.spec._replace(judged=0) if whole else self.spec, self.layout, self.inputs, state)
        scores: dict[str, Labelled] = jax.tree.map(np.asarray, program.judge_runs(*arguments, jnp.int32(done)))
        if diagnosis.is_asked():
            diagnosis.check_evaluation(*arguments, done, scores)
        return scores


def checked_seeds(
    federation: Federation, seeds: Seeds, rounds: int = 0, **counts: int | None
) -> tuple[list[int], Federation]:
    """The seeds as a list, and the federation stored by id; raises a ValueError if numbers do not fit."""
    numbers = seeds_of(seeds)
    program.check_lengths(rounds, **counts)
    program.check_seeds(numbers, federation)
    return numbers, by_id(federation)


def checked_shapes(spec: Spec, inputs: Inputs, runs: int, end: int) -> Shapes:
    """The shapes of a run to round ``end``; raises a ValueError if task, labels and scenarios do not fit."""
    check_labels(task_of(spec, inputs), inputs.federation)
    shapes = measure(spec, inputs, runs)
    check_rounds(shapes.algorithm, end)
    return shapes


class Together(NamedTuple):
    """Plans that run together, checked and split: all that their programs depend on, but for the layout."""

    schedule: Schedule
    seeds: list[int]
    parts: list[tuple[Spec, Inputs]]  # of each plan
    spec: Spec
    inputs: Inputs
    shapes: Shapes
    references: list[Reference | None]

    @classmethod
    def of(
        cls,
        plans: Sequence[Algorithm | Plan],
        federation: Federation,
        schedule: Schedule,
        first: int = 0,
        references: Sequence[Reference | None] | None = None,
    ) -> Together:
        """From round ``first``; ``references``, one for each plan, are None before they are known."""
        check_mode(schedule.non_finite)
        counts = {name: getattr(schedule, name) for name in ("evaluate_every", "clients_per_evaluation")}
        seeds, stored = checked_seeds(federation, schedule.seeds, schedule.rounds, **counts)
        parts = program.partition_plans(plans, stored)
        for (_, inputs), reference in zip(parts, references or repeat(None), strict=False):
            check_rows(seeds, inputs, reference)
        known = list(map(_required, plans, references or repeat(None)))
        spec, inputs = program.stack_plans(parts, len(seeds))
        spec = spec._replace(non_finite=schedule.non_finite, extra=schedule.needs(spec.valid))
        if GRADIENT_NORM in spec.extra:
            # Before references are known, only their shape matters.
            shape = len(seeds) * len(parts), inputs.federation.clients.id.shape[-1]
            required = np.zeros(shape, np.float32) if references is None else _stacked_requirements(known)
            inputs = inputs._replace(required=required)
        shapes = checked_shapes(spec, inputs, len(seeds) * len(parts), first + schedule.rounds)
        spec = program.with_global_model(spec, inputs, shapes.global_model)
        if (schedule.clients_per_evaluation or shapes.sizes.population) < shapes.sizes.population:
            spec = spec._replace(judged=schedule.clients_per_evaluation)
        return cls(schedule, seeds, parts, spec, inputs, shapes, known)

    @property
    def runs(self) -> list[int]:
        """The seed of each run: all seeds of the first plan, then those of the next one."""
        return self.seeds * len(self.parts)

    def on(self, layout: Layout | None = None) -> Programs:
        """The arguments of the programs in a layout; None: the one that the execution resolves to."""
        layout = resolve_together(self.schedule.execution, self.shapes.sizes) if layout is None else layout
        capacity = program.capacity_of(self.schedule.rounds, self.schedule.spacing, layout)
        return Programs(self.spec, layout, capacity, self.inputs, jnp.asarray(self.runs, jnp.uint32), self.shapes)


def _stacked_requirements(references: Sequence[Reference | None]) -> np.ndarray:
    """What clients require in all runs ``[runs, N]``, those of the first plan first."""
    known = [reference for reference in references if reference is not None]
    if len(known) < len(references):
        raise ValueError(f"expected a reference, with what clients require, for {GRADIENT_NORM}, got None")
    required = [each.threshold if each.required is None else each.required for each in known]
    return np.concatenate([np.asarray(each) for each in required])


def _required(plan: Algorithm | Plan, reference: Reference | None) -> Reference | None:
    """The reference with the ``threshold`` of the plan's arguments, unless the reference already has a threshold."""
    if not isinstance(plan, Plan) or reference is None or reference.required is not None:
        return reference
    return results.with_threshold(reference, plan.by_seed.get("threshold", plan.arguments.get("threshold")))


def check_rows(seeds: list[int], inputs: Inputs, reference: Reference | None) -> None:
    """Raises a ValueError unless ``by_seed`` and ``reference`` have a row for each seed."""
    for name, tree in inputs.by_seed.items():
        for leaf in jax.tree.leaves(tree):
            if np.ndim(leaf) == 0 or np.shape(leaf)[0] != len(seeds):
                raise ValueError(f"expected {name} in by_seed to have {len(seeds)} rows, got shape {np.shape(leaf)}")
    check_unlabelled("reference", reference)
    expected = (len(seeds), inputs.federation.clients.id.shape[-1])
    if reference is not None and np.shape(reference.threshold) != expected:
        raise ValueError(
            f"expected reference to be of {expected} seeds and clients, got {np.shape(reference.threshold)}"
        )


def check_rounds(algorithm: Algorithm, end: int) -> None:
    """Raises a ValueError if a scenario's table, or random keys, cover fewer rounds than ``end``."""
    check_below(ROUNDS, "the number of all rounds", end)
    for name, rounds, *_ in algorithm.scenarios:
        if rounds is not None and end > rounds:
            raise ValueError(f"expected at most {rounds} rounds, for which the table of {name} has rows, got {end}")


def programs_of(prepared: Programs) -> Programs | OffloadRun:
    """The programs of a run with its inputs on the devices, or on the host where the layout says so."""
    if prepared.layout.is_offloaded:
        return OffloadRun.of(*prepared)
    return prepared._replace(inputs=on_devices(prepared.inputs, prepared.layout))


def compiled(run: Programs | OffloadRun, shapes: Shapes, on_memory: OnMemory | None) -> int | None:
    """Compiles the programs; returns the peak of their memory. ``on_memory`` is called unless ``jax.jit`` is off."""
    if isinstance(run, OffloadRun):
        memory = offload_memory(run, shapes)
    else:
        memory = memory_of(compile_all(*run[:-1]), run.inputs, shapes, run.layout)
    if on_memory is not None and not eager.is_on():
        on_memory(memory)
    return memory.peak


def compile_all(
    spec: Spec, layout: Layout, capacity: int, inputs: Inputs, seeds: Array, quick: bool = False
) -> list[Any]:
    """Compiles start, rounds and evaluation in parallel, in this order; none where ``jax.jit`` is off."""
    # Later calls with the same shapes reuse them, but not ``quick`` ones, which have the same memory (``QUICK``).
    if eager.is_on():
        return []
    with ThreadPoolExecutor(3) as pool:
        traced = program.trace_all(spec, layout, capacity, inputs, seeds)
        return [job.result() for job in begin(pool, traced, QUICK if quick else None)]


def begin(pool: Executor, traced: Iterator[Any], options: dict[str, Any] | None = None) -> list[Future[Any]]:
    """Traces programs now (``trace_all``); each compiles on a thread of ``pool`` while the next one is traced."""
    # Tracing stays in this thread: it reads settings of the thread, such as a context with double precision.
    return [pool.submit(traced_program.lower().compile, options) for traced_program in traced]


def fastest(prepared: Programs, tried: Sequence[Layout]) -> Layout:
    """The fastest of ``tried`` by the faster of two timed rounds; those that run out of memory are skipped."""
    spec, _, capacity, inputs, seeds, _ = prepared
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


def estimate(algorithm_or_plan: Algorithm | Plan, federation: Federation, schedule: Schedule) -> Memory:
    """The memory of ``simulate`` of this schedule; "trial" is estimated as "auto".

    The programs of the run are compiled for their memory, in about half the time of a real compilation, and not run.

    Raises:
      ValueError: as for ``simulate``.
    """
    with jax.disable_jit(False):
        prepared = Together.of([algorithm_or_plan], federation, schedule).on()
        if prepared.layout.is_offloaded:
            return offload_memory(OffloadRun.of(*prepared), prepared.shapes, quick=True)
        programs = compile_all(*prepared[:-1], quick=True)
    return memory_of(programs, prepared.inputs, prepared.shapes, prepared.layout)


def compile_ahead(
    pool: Executor, plans: Algorithm | Plan | list[Plan], federation: Federation, schedule: Schedule
) -> None:
    """Traces a run's programs now and compiles them on the threads of ``pool``, while something else is computed.

    ``simulate`` of a plan with the same structure and shapes waits for these programs and uses them; the plan may have
    other values in its floats and arrays. So does ``sweep`` of as many plans, which differ in the same values. With the
    strategy "trial" the programs are not known yet, so one round of the first plan is traced alone (``rehearse``).
    Where ``jax.jit`` is off ("debug"), nothing is traced.

    Args:
      pool: threads, such as ``concurrent.futures.ThreadPoolExecutor``.
      plans: an algorithm or a plan of ``simulate``, or the plans of ``sweep``.
      federation: of the run.
      schedule: of the run.

    Raises:
      ValueError: if there is no plan, or as for ``simulate`` and ``sweep``.
    """
    together = plans if isinstance(plans, list) else [plans]
    if not together:
        raise ValueError("expected at least one plan, got none")
    if eager.is_on() or schedule.execution.clients == "debug":
        return
    if schedule.execution.clients == "trial":
        rehearse(together[0], federation)
        return
    prepared = Together.of(together, federation, schedule).on()
    if prepared.layout.is_offloaded:  # its programs are many, and the first round soon needs them
        return
    prepared = prepared._replace(inputs=replicate(prepared.inputs, prepared.layout.devices))
    begin(pool, program.trace_all(*prepared[:-1]))


def rehearse(plan: Algorithm | Plan, federation: Federation) -> None:
    """Traces the initial state and one round of a plan's first run, so that the algorithm's errors appear early.

    Nothing is compiled or computed. Where ``jax.jit`` is off, nothing is traced either.

    Raises:
      ValueError: if the algorithm's arguments are bad.
      AlgorithmError: if one of its functions raises another exception.
    """
    if eager.is_on():
        return
    trace_round(*program.partition_plan(plan, federation))


def memory_of(programs: Sequence[Any], inputs: Inputs, shapes: Shapes, layout: Layout) -> Memory:
    """The memory of a run with these compiled programs (start, rounds, evaluation)."""
    runs = shapes.sizes.seeds
    server, clients = (runs * count for count in state_bytes(shapes.state, layout))
    made = [count for count in map(made_bytes, programs) if count is not None]
    peak = None
    if programs and len(made) == len(programs):
        # The state is a result of the first program, and an argument of the others.
        peak = trees.bytes_of(inputs) + max([made[0], *(server + clients + count for count in made[1:])])
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
    models_per_run = memory.server // memory.runs // max(memory.model, 1)
    runs = f"{memory.runs} x " if memory.runs > 1 else ""
    models = (
        f" ({runs}{models_per_run} model{'s' * (models_per_run != 1)} of {size(memory.model)})"
        if models_per_run
        else ""
    )
    where = f" on each of {memory.devices} devices" if memory.devices > 1 else ""
    peak = "an unknown amount" if memory.peak is None else size(memory.peak)
    return (
        f"{peak} at once{where}: server {size(memory.server)}{models}, "
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
        if not all("bytes_limit" in stats for stats in told):
            return None
        # The data are on the device already.
        needed, whose = memory.peak - memory.data, "the device has free"
        there = min(stats["bytes_limit"] - stats.get("bytes_in_use", 0) for stats in told)
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
