"""The callbacks of an experiment's algorithms: what follows a run, evaluation by evaluation.

An experiment gives ``simulate`` one callback for each algorithm, which calls all others. Its blocks also have the gains
over the first algorithm. ``contribution_correlation`` needs records, so no block has it.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fljax.core import processes
from fljax.core.signatures import arguments_for
from fljax.engine import Block, StopEarly, replay
from fljax.engine.callbacks import scalars_of
from fljax.engine.callbacks.contract import Callback, is_called_at_start
from fljax.experiments.inputs.setup import CallbackSetup, OptOut, Setup, Tell
from fljax.metrics.registry import of_gains
from fljax.results.evaluations import Line, append
from fljax.results.folders import Parts


class Watch:
    """Makes the callback of each algorithm of an experiment.

    Args:
      directory: the run folder, whose ``metrics.jsonl`` gets a line for each evaluation; None: there is none.
      tell: ``(stage, label, round, rounds, message)``, for notes.
      stop: makes the callback that may stop an algorithm early; None: all run to the end.
      callbacks: builders of further callbacks; of each, an attribute ``ready`` is called first.
      seeds: of the experiment, for builders.
      rounds: of the experiment, for builders.
      opt_out_threshold: of the experiment, as in its results.

    Raises:
      ValueError: if a builder is not ready, for example because a package is missing.
    """

    def __init__(
        self,
        directory: pathlib.Path | None,
        tell: Tell,
        stop: Callable[[], StopEarly] | None = None,
        callbacks: Sequence[CallbackSetup] = (),
        seeds: tuple[int, ...] = (),
        rounds: int = 0,
        opt_out_threshold: OptOut = 0.0,
    ) -> None:
        self._offered = {"folder": directory, "seeds": seeds, "rounds": rounds}
        self._directory, self._tell, self._stop, self._builders = directory, tell, stop, callbacks
        for each in callbacks:
            getattr(each.build, "ready", lambda: None)()
        self._opt_out_threshold = opt_out_threshold
        self._began = time.perf_counter()
        self._failed = False

    @classmethod
    def of(
        cls, setup: Setup, directory: pathlib.Path | None, tell: Tell, callbacks: Sequence[CallbackSetup] = ()
    ) -> Watch:
        """That of an experiment; in a sweep, ``setup`` is any of its cells. ``callbacks`` are added to its own."""
        builders = (*setup.callbacks, *callbacks)
        return cls(directory, tell, setup.stop, builders, setup.seeds, setup.rounds, setup.opt_out_threshold)

    def callback(self, label: str, parts: Parts | None = None, cells: Sequence[int] = ()) -> Following:
        """The callback of one algorithm.

        Args:
          label: of the algorithm.
          parts: results of the algorithms that are finished. The first one is the baseline of the metrics that compare
            with another algorithm; None: there are no such metrics.
          cells: numbers of the cells of a sweep that run together.
        """

        def record(block: Block) -> None:
            scalars = scalars_of(block)
            each = tuple(cell for cell in cells for _ in range(len(scalars.seeds) // len(cells)))
            seconds = round(time.perf_counter() - self._began, 3)
            line = (label, block.round, block.rounds, seconds, scalars.seeds, each, block.diverged, scalars.values)
            self._append(Line(*line))

        record.at_start = True
        builders = self._builders if processes.is_first() else ()  # only process 0 calls callbacks
        callbacks: list[Callback] = [record, *(self._built(each, label, tuple(cells)) for each in builders)]
        if self._stop is not None:
            callbacks.append(_Stop(label, self._stop(), self._tell))
        return Following(callbacks, None if parts is None else _baseline(parts), self._opt_out_threshold)

    def _built(self, entry: CallbackSetup, label: str, cells: tuple[int, ...]) -> Callback:
        found = entry.build(
            **arguments_for(entry.build, {**self._offered, "label": label, "cells": cells}, entry.options)
        )
        if not callable(found):
            name = getattr(entry.build, "__name__", entry.build)
            raise ValueError(f"expected {name} to make a callback, a function of a Block, got {found!r}")
        return found

    def _append(self, line: Line) -> None:
        """Appends a line. If that fails, the run goes on without, and this is reported once."""
        if self._directory is None or self._failed:
            return
        try:
            append(self._directory, line)
        except OSError as error:
            self._failed = True
            words = f"metrics.jsonl cannot be written ({error.strerror}); the run goes on without it"
            self._tell("note", line.label, line.round, line.rounds, words)


class Following:
    """Several callbacks as one; their blocks also have the metrics that compare with the baseline.

    It is called at the start for those of its callbacks that are, and ``replay`` is for those that have it.
    """

    at_start = True

    def __init__(
        self, callbacks: Sequence[Callback], baseline: Mapping[str, Any] | None, opt_out_threshold: OptOut = 0.0
    ) -> None:
        self._callbacks, self._baseline, self._threshold = list(callbacks), baseline, opt_out_threshold

    def __call__(self, block: Block) -> bool:
        block = self._compared(block)
        due = [each for each in self._callbacks if block.ran or is_called_at_start(each)]
        answers = [each(block) for each in due]  # all are called, even if one stops the run
        return any(answers)

    def replay(self, blocks: Sequence[Block]) -> bool:
        """Gives callbacks with a history that of a run that goes on; whether the run had stopped."""
        return replay(self._callbacks, [self._compared(block) for block in blocks])

    def _compared(self, block: Block) -> Block:
        """The block with gains over the baseline's model after as many rounds, or after its last one."""
        if self._baseline is None:
            return block
        found = dict(block.metrics)
        for prefix in ("", "unseen_"):
            name = f"{prefix}test_accuracy"
            if name not in found:
                continue
            other = self._baseline.get(name, {block.round: found[name]})
            at = max((round for round in other if round <= block.round), default=None)
            if at is None:
                continue
            gain = np.asarray(found[name]) - np.asarray(other[at])
            gains = of_gains(gain, self._threshold, unseen=bool(prefix))[1]
            found |= {prefix + scalar: np.asarray(values) for scalar, values in gains.items()}
        return block._replace(metrics=found)


class _Stop:
    """Early stopping, which is told when it happens, and does nothing for an algorithm without the metric."""

    def __init__(self, label: str, stop: StopEarly, tell: Tell) -> None:
        self._label, self._stop, self._tell = label, stop, tell
        self._absent = False

    def __call__(self, block: Block) -> bool:
        if self._stop.metric not in block.metrics:
            if not self._absent:
                self._absent = True
                words = f"not stopped early: it has no {self._stop.metric}"
                self._tell("note", self._label, block.round, block.rounds, words)
            return False
        if not self._stop(block) or block.round >= block.rounds:
            return False
        words = f"stopped after round {block.round} of {block.rounds}: {self._stop.reason}"
        self._tell("note", self._label, block.round, block.rounds, words)
        return True

    def replay(self, blocks: Sequence[Block]) -> bool:
        return self._stop.replay([block for block in blocks if self._stop.metric in block.metrics])


def _baseline(parts: Parts) -> dict[str, dict[int, np.ndarray]]:
    """The accuracies ``[seeds, clients]`` of the first finished algorithm by metric and round; empty before it is."""
    if not parts:
        return {}
    metrics = next(iter(parts.values()))[0]
    found: dict[str, dict[int, np.ndarray]] = {}
    for name, axis in (("test_accuracy", "client"), ("unseen_test_accuracy", "unseen")):
        if name in metrics:
            values = metrics[name].transpose("evaluated_round", "seed", axis).values
            rounds = metrics["evaluated_round"].values.tolist()
            # After the algorithm has ended, joined results have NaN.
            known = [(at, each) for at, each in zip(rounds, values, strict=True) if np.isfinite(each).any()]
            found[name] = dict(known)
    return found
