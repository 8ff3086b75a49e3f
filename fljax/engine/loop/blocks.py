"""Blocks of rounds, each followed by an evaluation, the callbacks and, if it is due, a checkpoint.

``run_blocks`` runs pieces of a block: as many rounds as take about 5 seconds. After each it looks whether a checkpoint
is due, or a stop is asked for. The number of rounds is traced, so pieces share the program of a block and change no
bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax.engine.callbacks.contract import Block, Callback, call_all, diverged
from fljax.engine.devices.layout import Layout, of_this_process
from fljax.engine.devices.placement import put_state
from fljax.engine.loop import nans, offenders
from fljax.engine.loop.checkpointing import Keeper, Position
from fljax.engine.loop.compilation import compile_all
from fljax.engine.loop.estimation import Memory, memory_of
from fljax.engine.loop.history import History
from fljax.engine.loop.kept import Kept
from fljax.engine.offload.compilation import memory as offload_memory
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs import program
from fljax.engine.programs.execution import Execution
from fljax.engine.programs.program import Inputs, Spec, on_devices
from fljax.engine.programs.shapes import Shapes
from fljax.engine.rounds.states import State
from fljax.protocol import Info, Labelled

OnMemory = Callable[[Memory], Any]


def earlier_blocks(
    history: History, end: int, state: State, judge: Callable[[dict[str, Labelled]], dict[str, np.ndarray]]
) -> list[Block]:
    """The blocks of all evaluations so far, the first one included; their states and seconds are not known.

    ``state`` is that of the run now: of it, only the seeds are those of the blocks.
    """
    found, before = [], None
    for done, scores in history.evaluations():
        ran = 0 if before is None else done - before
        found.append(Block(done, end, ran, judge(scores), state, 0.0, ()))
        before = done
    return found


class Clock:
    """Seconds by purpose."""

    def __init__(self) -> None:
        self.seconds = {"trial": 0.0, "compile": 0.0, "train": 0.0, "evaluate": 0.0}
        self._last = time.perf_counter()

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds the seconds of an earlier process."""
        for purpose, spent in seconds.items():
            self.seconds[purpose] += spent

    def skip(self) -> None:
        """Leaves the time since the last lap out of all purposes."""
        self._last = time.perf_counter()

    def lap(self, purpose: str) -> float:
        """Adds the seconds since the last lap to a purpose, and returns them."""
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        self.seconds[purpose] += spent
        return spent


def evaluation_rounds(first: int, end: int, every: int | None, further: Sequence[int]) -> list[int]:
    """The numbers of rounds done after which a run is evaluated, after the first evaluation."""
    usual = range(first + every, end, every) if every else ()
    return sorted({*usual, *(at for at in further if first < at < end), *([end] if end > first else [])})


class Programs(NamedTuple):
    """The compiled programs of a run, and their arguments."""

    spec: Spec
    layout: Layout
    capacity: int
    inputs: Inputs
    seeds: Array

    def start(self) -> State:
        """States of all runs before round 0."""
        given = (self.spec, self.layout, self.inputs, self.seeds)
        state: State = program.start(*given)
        if nans.is_asked():
            nans.check_start(*given, state)
        return state

    def placed(self, state: State) -> State:
        """A state as the programs take it."""
        return put_state(jax.tree.map(jnp.asarray, state), self.layout)

    def rounds(self, state: State, done: int, count: int) -> tuple[State, Info]:
        """``count`` rounds after ``done``; records ``[runs, capacity, ...]``."""
        first, number = jnp.int32(done), jnp.int32(count)
        after, records = program.run_rounds(self.spec, self.layout, self.capacity, self.inputs, state, first, number)
        if nans.is_asked():
            nans.check_rounds(self.spec, self.layout, self.inputs, after, done, count)
        return after, records

    def evaluate(self, state: State, done: int) -> dict[str, Labelled]:
        given = (self.spec, self.layout, self.inputs, state)
        scores: dict[str, Labelled] = jax.tree.map(np.asarray, program.evaluate(*given, jnp.int32(done)))
        if nans.is_asked():
            nans.check_evaluation(*given, done, scores)
        return scores


def programs_of(
    spec: Spec, layout: Layout, capacity: int, inputs: Inputs, seeds: Array, shapes: Shapes
) -> Programs | OffloadRun:
    """The programs of a run with its inputs on the devices, or on the host where the layout says so."""
    if layout.is_offloaded:
        return OffloadRun.of(spec, layout, capacity, inputs, seeds, shapes)
    return Programs(spec, layout, capacity, on_devices(inputs, layout), seeds)


def compiled(run: Programs | OffloadRun, shapes: Shapes, on_memory: OnMemory | None) -> int | None:
    """Compiles the programs; the peak of their memory."""
    if isinstance(run, OffloadRun):
        memory = offload_memory(run, shapes)
    else:
        memory = memory_of(compile_all(*run), run.inputs, shapes, run.layout)
    if on_memory is not None:
        on_memory(memory)
    return memory.peak


def run_blocks(
    run: Programs | OffloadRun,
    stops: Sequence[int],
    state: State,
    history: History,
    at: Position,
    keeper: Keeper,
    execution: Execution,
    clock: Clock,
    callbacks: Sequence[Callback],
    judge: Callable[[dict[str, Labelled]], dict[str, np.ndarray]],
    kept: Kept,
) -> tuple[State, Position]:
    """Runs block after block, each up to the next evaluation, from ``at`` to the last of ``stops``.

    Raises:
      Stopped: if the keeper is asked to stop, after a checkpoint.
    """
    runs = np.asarray(run.seeds).tolist()
    end = stops[-1] if stops else at.done

    def save() -> None:
        keeper.save(at._replace(seconds=dict(clock.seconds)), state, history, run.layout, execution, kept.saved())

    with keeper.watching():
        # Only where a block begins: a run that goes on inside a block ends it first, as it would have done.
        if at.done == at.first and offenders.is_stopped(run.spec.non_finite, state):
            at = at._replace(ended=True)
        while at.done < end and not at.ended:
            began = time.perf_counter()
            target = next(stop for stop in stops if stop > at.done)
            before = max((stop for stop in stops if stop <= at.done), default=at.first)
            while at.done < target:
                count = keeper.pace(min(target - at.done, run.capacity))
                state, block = run.rounds(state, at.done, count)
                history.ran(block, count)
                keeper.ran(count, clock.lap("train"))
                at = at._replace(done=at.done + count)
                if at.done < target and keeper.is_due:
                    save()
                    if keeper.must_stop:
                        raise keeper.stopped(at, end)
            scores = run.evaluate(state, at.done)
            history.measured(at.done, scores)
            kept.evaluated(at.done, scores, state)
            clock.lap("evaluate")
            if callbacks:
                seconds = time.perf_counter() - began
                own = of_this_process(state)
                report = Block(at.done, end, at.done - before, judge(scores), own, seconds, diverged(runs, state))
                at = at._replace(ended=call_all(callbacks, report))
                clock.skip()
            if offenders.is_stopped(run.spec.non_finite, state):
                at = at._replace(ended=True)
            if keeper.is_due or at.ended or at.done == end:
                save()
                if keeper.must_stop and at.done < end and not at.ended:
                    raise keeper.stopped(at, end)
    return state, at
