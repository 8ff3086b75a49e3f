"""Blocks of rounds, each followed by an evaluation, the callbacks and, if it is due, a checkpoint.

With checkpoints, a block is run in pieces of about 5 seconds, between which the run may be saved or stopped. Every run
on several CPU devices has such pieces, since the heap grows until a program ends. They share one program and its bits.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.core import processes
from fljax.engine.callbacks import Block, Callback, call_all, diverged, is_called_at_start, replay
from fljax.engine.devices.layout import (
    Layout,
    default_platform,
    is_out_of_memory,
    of_this_process,
    out_of_memory_sentence,
    smaller,
)
from fljax.engine.loop import diagnosis
from fljax.engine.loop.checkpointing import CheckpointKeeper, Position, Resumed
from fljax.engine.loop.compilation import Programs, compiled, programs_of
from fljax.engine.loop.history import BestSoFar, History, OnMemory
from fljax.engine.loop.trained import Scoring, state_of
from fljax.engine.offload.run import OffloadRun
from fljax.engine.rounds.states import State, arrays_of, with_arrays
from fljax.protocol import Labelled


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


class LoopState(NamedTuple):
    """The state of all runs, the history of records and evaluations, and the position in the loop."""

    state: State
    history: History
    position: Position
    raised: BaseException | None = None  # by a callback, which ends the run


Judge = Callable[[dict[str, Labelled]], dict[str, np.ndarray]]


class Loop(NamedTuple):
    """The loop over blocks of rounds for all runs; it may begin anew with fewer clients side by side."""

    first: int  # the round in which the runs begin
    end: int  # the number of rounds done at their end
    stops: Sequence[int]  # numbers of rounds done after which runs are evaluated, after the first evaluation
    seeds: list[int]
    callbacks: Sequence[Callback]
    on_memory: OnMemory | None  # called once the programs are compiled
    judge: Judge
    best: BestSoFar
    keeper: CheckpointKeeper
    scoring: Scoring
    all_at: Collection[int]  # numbers of rounds done after which all clients are judged

    def start(self, run: Programs | OffloadRun, prepared: Programs, initial: State | None, clock: Clock) -> LoopState:
        """Compiles the programs, and evaluates the state before the first round."""
        memory = compiled(run, prepared.shapes, self.on_memory)
        state = run.start()
        if initial is not None:
            state = run.placed(_fit(initial, state, self.seeds))
        jax.block_until_ready(state)
        clock.lap("compile")
        history = self.keeper.history()
        scores = run.evaluate(state, self.first, self.first in self.all_at)
        scores |= self._scored(self.scoring.measured, run, state, self.first, not self.stops)
        history.measured(self.first, scores)
        self.best.begin()
        self.best.evaluated(self.first, scores, state)
        clock.lap("evaluate")
        if opening := [callback for callback in self.callbacks if is_called_at_start(callback)]:
            call_all(opening, self._block(self.first, 0, scores, state, 0.0))
            clock.skip()
        return LoopState(state, history, Position(self.first, self.first, False, clock.seconds, memory))

    def resume(self, run: Programs | OffloadRun, prepared: Programs, resumed: Resumed, clock: Clock) -> LoopState:
        """Goes on after a checkpoint: callbacks get the earlier blocks. Programs are compiled if rounds are left."""
        position, history = resumed.position, resumed.history
        self.best.resume(resumed.best)
        state = run.placed(state_of(resumed.state, prepared.spec, prepared.layout, prepared.inputs, prepared.seeds))
        if any(hasattr(callback, "replay") for callback in self.callbacks):
            blocks = self._earlier_blocks(history, of_this_process(state))
            over = processes.agreed(lambda: replay(self.callbacks, blocks))
            position = position._replace(ended=position.ended or over)
        if position.done < self.end and not position.ended:
            position = position._replace(memory=compiled(run, prepared.shapes, self.on_memory))
        clock.add(position.seconds)
        clock.lap("compile")
        return LoopState(state, history, position)

    def run(self, run: Programs | OffloadRun, progress: LoopState, clock: Clock) -> LoopState:
        """Runs block after block, each up to the next evaluation; raises Stopped, after a checkpoint, if asked to."""
        keeper, (state, history, at, _) = self.keeper, progress
        end = self.stops[-1] if self.stops else at.done
        ends = Exception if processes.are_several() else (Exception, KeyboardInterrupt)  # of which all processes hear

        def save() -> None:
            keeper.save(at._replace(seconds=dict(clock.seconds)), state, history, run.layout, self.best.saved())

        with keeper.watching():
            # Only where a block begins: a run that goes on inside a block ends it first, as it would have done.
            if at.done == at.first and diagnosis.is_stopped(run.spec.non_finite, state):
                at = at._replace(ended=True)
            while at.done < end and not at.ended:
                began = time.perf_counter()
                place = bisect.bisect_right(self.stops, at.done)
                target, before = self.stops[place], self.stops[place - 1] if place else at.first
                while at.done < target:
                    count = keeper.pace(min(target - at.done, run.capacity), run.layout)
                    state, block = run.rounds(state, at.done, count)
                    history.ran(block, count)
                    keeper.ran(count, clock.lap("train"), run.layout)
                    at = at._replace(done=at.done + count)
                    if at.done < target and keeper.is_due:
                        save()
                        if keeper.must_stop:
                            raise keeper.stopped(at, end)
                scores = run.evaluate(state, at.done, at.done in self.all_at)
                scores |= self._scored(self.scoring.measured, run, state, at.done, at.done == end)
                try:
                    self.best.evaluated(at.done, scores, state)
                    clock.lap("evaluate")
                    if self.callbacks:
                        seconds = time.perf_counter() - began
                        report = self._block(at.done, at.done - before, scores, state, seconds)
                        at = at._replace(ended=call_all(self.callbacks, report))
                        clock.skip()
                except (jax.errors.JaxRuntimeError, MemoryError):
                    raise
                except ends as error:  # a user's callback may raise anything
                    history.measured(at.done, self._at_end(run, state, at.done, scores))
                    return LoopState(state, history, at, error)
                if diagnosis.is_stopped(run.spec.non_finite, state):
                    at = at._replace(ended=True)
                if at.ended and at.done < end:
                    scores = self._at_end(run, state, at.done, scores)
                    clock.lap("evaluate")
                history.measured(at.done, scores)
                if keeper.is_due or at.ended or at.done == end:
                    save()
                    if keeper.must_stop and at.done < end and not at.ended:
                        raise keeper.stopped(at, end)
        return LoopState(state, history, at)

    def _at_end(
        self, run: Programs | OffloadRun, state: State, done: int, scores: dict[str, Labelled]
    ) -> dict[str, Labelled]:
        """The evaluation ``scores`` of a run that was stopped after it, of all clients and with its scores."""
        if run.spec.judged and done not in self.all_at:
            scores = scores | run.evaluate(state, done, True)
        return self._scored(self.scoring.at_end, run, state, done, scores)

    def _scored(self, measured: Callable[..., dict[str, Labelled]], *arguments: Any) -> dict[str, Labelled]:
        """The scores of an evaluation; the user is told of clients for which a function of one's own has failed."""
        known, scores = len(self.scoring.failed), measured(*arguments)
        for words in self.scoring.notes(known).values():
            self.keeper.warn(words)
        return scores

    def _block(self, done: int, ran: int, scores: dict[str, Labelled], state: State, seconds: float) -> Block:
        local = of_this_process(state)
        return Block(done, self.end, ran, self.judge(scores), local, seconds, diverged(self.seeds, state))

    def _earlier_blocks(self, history: History, state: State) -> list[Block]:
        """The blocks of all evaluations so far; their ``state`` is that of now, of which the seeds alone hold."""
        evaluations = history.evaluations()
        befores = [done for done, _ in (*evaluations[:1], *evaluations[:-1])]
        return [
            Block(done, self.end, done - before, self.judge(scores), state, 0.0, ())
            for before, (done, scores) in zip(befores, evaluations, strict=True)
        ]


def completed(
    loop: Loop, prepared: Programs, initial: State | None, resumed: Resumed | None, clock: Clock
) -> tuple[LoopState, Layout, Clock]:
    """Runs all blocks, after ``resumed`` if there is one; where memory does not suffice, anew with a smaller layout."""
    while True:
        run = programs_of(prepared)
        try:
            if resumed is None:
                progress = loop.start(run, prepared, initial, clock)
            else:
                progress = loop.resume(run, prepared, resumed, clock)
            return loop.run(run, progress, clock), prepared.layout, clock
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            fewer = smaller(prepared.layout)
            if fewer is None or not is_out_of_memory(error):
                raise
            prepared = prepared._replace(layout=fewer)
        # The state was given to the program that failed, so the run goes on after its newest checkpoint.
        resumed, clock = loop.keeper.newest(default_platform()), Clock()
        if resumed is None:
            replay(loop.callbacks, [])  # they forget what begins anew
        loop.keeper.warn(out_of_memory_sentence(fewer, loop.first if resumed is None else resumed.position.done))


def _fit(initial: State, fresh: State, seeds: list[int]) -> State:
    """A copy of ``initial`` (the program donates its argument); raises a ValueError if its shapes do not fit."""
    structure, expected = jax.tree.structure(initial), jax.tree.structure(fresh)
    if structure != expected:
        raise ValueError(f"expected initial to be a state of this algorithm, {expected}, got {structure}")
    for got, want in zip(jax.tree.leaves(initial), jax.tree.leaves(fresh), strict=True):
        if np.shape(got) != want.shape or got.dtype != want.dtype:
            raise ValueError(
                f"expected initial to have the shapes of this run, {want.dtype}{list(want.shape)}, "
                f"got {got.dtype}{list(np.shape(got))}"
            )
    if np.asarray(initial.seed).tolist() != seeds:
        raise ValueError(f"expected the seeds of initial, {np.asarray(initial.seed).tolist()}, got {seeds}")
    rounds = np.unique(np.asarray(initial.round))
    if rounds.size > 1:
        raise ValueError(f"expected all seeds of initial at the same round, got {rounds.tolist()}")
    # Through the host, since ``initial`` may be on other devices than those of this run.
    return with_arrays(fresh, {name: np.array(values) for name, values in arrays_of(initial).items()})
