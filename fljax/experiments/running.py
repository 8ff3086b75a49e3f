"""Output of a running experiment: evaluations to its callbacks, and unfinished work to its folder.

In the run folder, while an algorithm is unfinished (``contribution_correlation`` needs records, so no block has it):

checkpoints/origin.json       the config and fljax's version
checkpoints/standalone.npz    scores of the standalone models, which are trained once
checkpoints/LABEL/            checkpoints of an algorithm; of a sweep: of each of its programs
checkpoints/LABEL/begin.npz   the models from which it goes on for more rounds
"""

from __future__ import annotations

import functools
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core import processes
from fljax.core.files import read_npz, write_npz
from fljax.core.sameness.record import WENT_ON
from fljax.core.signatures import arguments_for
from fljax.engine import Block, StopEarly, replay
from fljax.engine.callbacks import scalars_of
from fljax.engine.callbacks.contract import Callback, is_called_at_start
from fljax.engine.checkpoints import Checkpoint, StopRequest
from fljax.experiments.inputs.setup import CallbackSetup, OptOut, Setup
from fljax.metrics.registry import of_gains
from fljax.results import Reference, folders
from fljax.results.endings import Parts
from fljax.results.events import STOPPED, EventLog, Line, append
from fljax.results.identity import begin_checkpoints

_STANDALONE = "standalone.npz"


class CallbackBuilder:
    """Makes the callback of each algorithm; of builders with an attribute ``ready``, it is called first."""

    def __init__(
        self,
        directory: pathlib.Path | None,
        log: EventLog,
        stop: Callable[[], StopEarly] | None = None,
        callbacks: Sequence[CallbackSetup] = (),
        seeds: tuple[int, ...] = (),
        rounds: int = 0,
        opt_out_threshold: OptOut = 0.0,
    ) -> None:
        self._offered = {"folder": directory, "seeds": seeds, "rounds": rounds}
        self._directory, self._log, self._stop, self._builders = directory, log, stop, callbacks
        for entry in callbacks:
            getattr(entry.build, "ready", lambda: None)()
        self._opt_out_threshold = opt_out_threshold
        self._began = time.perf_counter()
        self._failed = False

    @classmethod
    def of(
        cls, setup: Setup, directory: pathlib.Path | None, log: EventLog, callbacks: Sequence[CallbackSetup] = ()
    ) -> CallbackBuilder:
        """For an experiment; in a sweep, ``setup`` is any of its cells. ``callbacks`` are added to its own."""
        builders = (*setup.callbacks, *callbacks)
        return cls(directory, log, setup.stop, builders, setup.seeds, setup.rounds, setup.opt_out_threshold)

    def callback(self, label: str, parts: Parts | None = None, cells: Sequence[int] = ()) -> Callbacks:
        """The callback of an algorithm, in ``cells`` that run together; it compares with the first of ``parts``."""

        def record(block: Block) -> None:
            scalars = scalars_of(block)
            of_runs = tuple(cell for cell in cells for _ in range(len(scalars.seeds) // len(cells)))
            seconds = round(time.perf_counter() - self._began, 3)
            line = (label, block.round, block.rounds, seconds, scalars.seeds, of_runs, block.diverged, scalars.values)
            self._append(Line(*line))

        record.at_start = True
        builders = self._builders if processes.is_first() else ()  # only process 0 calls callbacks
        callbacks: list[Callback] = [record, *(self._built(entry, label, tuple(cells)) for entry in builders)]
        if self._stop is not None:
            callbacks.append(EarlyStop(label, self._stop(), self._log))
        baseline = None if parts is None else _baseline(parts)
        return Callbacks(callbacks, baseline, self._opt_out_threshold, label, tuple(cells))

    def _built(self, entry: CallbackSetup, label: str, cells: tuple[int, ...]) -> Callback:
        callback = entry.build(
            **arguments_for(entry.build, {**self._offered, "label": label, "cells": cells}, entry.options)
        )
        if not callable(callback):
            name = getattr(entry.build, "__name__", entry.build)
            raise ValueError(f"expected {name} to make a callback, a function of a Block, got {callback!r}")
        return callback

    def _append(self, line: Line) -> None:
        """Appends a line. If that fails, the run goes on without, and this is reported once."""
        if self._directory is None or self._failed:
            return
        try:
            append(self._directory, line)
        except OSError as error:
            self._failed = True
            words = f"metrics.jsonl cannot be written ({error.strerror}); the run goes on without it"
            self._log.note(words, line.label, line.round, line.rounds)


class Callbacks:
    """Several callbacks as one; their blocks say whose they are, and have metrics that compare with the baseline."""

    at_start = True

    def __init__(
        self,
        callbacks: Sequence[Callback],
        baseline: Mapping[str, Any] | None,
        opt_out_threshold: OptOut = 0.0,
        label: str = "",
        cells: tuple[int, ...] = (),
    ) -> None:
        self._whose = {"label": label, "cells": cells}
        self._callbacks, self._baseline, self._threshold = list(callbacks), baseline, opt_out_threshold

    def __call__(self, block: Block) -> bool:
        block = self._compared(block)
        due = [callback for callback in self._callbacks if block.ran or is_called_at_start(callback)]
        answers = [callback(block) for callback in due]  # all are called, even if one stops the run
        return any(answers)

    def replay(self, blocks: Sequence[Block]) -> bool:
        """Replays the history of a resumed run to callbacks that keep one; whether the run had stopped."""
        return replay(self._callbacks, [self._compared(block) for block in blocks])

    def _compared(self, block: Block) -> Block:
        """The block with gains over the baseline's model after as many rounds, or after its last one."""
        block = block._replace(**self._whose)
        if self._baseline is None:
            return block
        metrics = dict(block.metrics)
        for prefix in ("", "unseen_"):
            name = f"{prefix}test_accuracy"
            if name not in metrics:
                continue
            other = self._baseline.get(name, {block.round: metrics[name]})
            at = max((round for round in other if round <= block.round), default=None)
            if at is None:
                continue
            gain = np.asarray(metrics[name]) - np.asarray(other[at])
            gains = of_gains(gain, self._threshold, unseen=bool(prefix))[1]
            metrics |= {prefix + scalar: np.asarray(values) for scalar, values in gains.items()}
        return block._replace(metrics=metrics)


class EarlyStop:
    """Early stopping, which is told when it happens, and does nothing for an algorithm without the metric."""

    def __init__(self, label: str, stop: StopEarly, log: EventLog) -> None:
        self._label, self._stop, self._log = label, stop, log
        self._absent = False

    def __call__(self, block: Block) -> bool:
        if self._stop.metric not in block.metrics:
            if not self._absent:
                self._absent = True
                words = f"not stopped early: it has no {self._stop.metric}"
                self._log.note(words, self._label, block.round, block.rounds)
            return False
        if not self._stop(block) or block.round >= block.rounds:
            return False
        words = f"{STOPPED} {block.round} of {block.rounds}: {self._stop.reason}"
        self._log.note(words, self._label, block.round, block.rounds)
        return True

    def replay(self, blocks: Sequence[Block]) -> bool:
        return self._stop.replay([block for block in blocks if self._stop.metric in block.metrics])


def _baseline(parts: Parts) -> dict[str, dict[int, np.ndarray]]:
    """The accuracies ``[seeds, clients]`` of the first finished algorithm by metric and round; empty before it is."""
    if not parts:
        return {}
    metrics = next(iter(parts.values())).metrics
    accuracies: dict[str, dict[int, np.ndarray]] = {}
    for name, axis in (("test_accuracy", "client"), ("unseen_test_accuracy", "unseen")):
        if name in metrics:
            values = metrics[name].transpose("evaluated_round", "seed", axis).values
            rounds = metrics["evaluated_round"].values.tolist()
            # After the algorithm has ended, joined results have NaN.
            by_round = zip(rounds, values, strict=True)
            accuracies[name] = {round: of_round for round, of_round in by_round if np.isfinite(of_round).any()}
    return accuracies


class Saving(NamedTuple):
    """How a run saves what it has computed."""

    every: float | None = 30.0  # seconds between two checkpoints of an algorithm; None: no checkpoints
    keep: int = 2  # number of checkpoints
    stop: StopRequest | None = None  # asks to stop after the block that is computed
    force: bool = False  # goes on with results of other settings of JAX, code or data, and says what differs


class ProgressFiles(NamedTuple):
    """The folder ``checkpoints`` of a run. With several processes, only process 0 reads and writes it."""

    directory: pathlib.Path | None  # the run folder, which this process has locked; None: nothing is saved
    text: str
    grid: str | None
    saving: Saving
    log: EventLog
    lasting: bool = False  # whether the files stay after the run

    @property
    def is_on(self) -> bool:
        """Whether anything is saved."""
        return self.directory is not None and self.saving.every is not None

    def checkpoint(self, label: str, *parts: str) -> Checkpoint | None:
        """Checkpoints of an algorithm, or of one ``part`` of it."""
        if self.directory is None or self.saving.every is None:
            return None
        refused = processes.agreed(self._refused)
        if refused is not None:
            self.log.note(f"checkpoints cannot be written; the run goes on without ({refused})", label)
            return None
        place = folders.checkpoints_of(self.directory, label).joinpath(*parts)
        note = functools.partial(self.log.note, label=label)
        long = folders.records_of(self.directory, label)
        return Checkpoint(place, self.saving.every, self.saving.keep, note, self.saving.stop, long, self.saving.force)

    def begin(self) -> None:
        """Makes the folder of checkpoints, which names the config."""
        if self.directory is not None and processes.is_first():
            self._begin()

    def references(self, data: int, make: Callable[[], Sequence[Reference]]) -> list[Reference]:
        """The scores of standalone models: of an earlier process on data of this checksum, or made and then saved."""
        if self.directory is None or self.saving.every is None:
            return list(make())
        path = self.directory / folders.CHECKPOINTS / _STANDALONE
        earlier = processes.agreed(lambda: self._read(path, data))
        if earlier is not None:
            self.log.note("standalone models are those of the earlier process")
            return earlier
        made = list(make())
        if not processes.is_first():
            return made
        try:
            self._begin()
            write_npz(path, _arrays(made, data))
        except OSError as error:
            self.log.note(f"standalone models could not be saved; the run goes on ({error})")
        return made

    def forget_records(self, label: str) -> None:
        """Removes the long records of an earlier process; short records replace them now."""
        if self.directory is not None and processes.is_first():
            shutil.rmtree(folders.records_of(self.directory, label), ignore_errors=True)

    def finished(self, label: str) -> None:
        """Removes the checkpoints of an algorithm, whose results are saved."""
        if self.directory is not None and not self.lasting and processes.is_first():
            shutil.rmtree(folders.checkpoints_of(self.directory, label), ignore_errors=True)

    def all_finished(self) -> None:
        """Removes everything."""
        if self.directory is not None and not self.lasting and processes.is_first():
            shutil.rmtree(self.directory / folders.CHECKPOINTS, ignore_errors=True)

    def _begin(self) -> None:
        assert self.directory is not None
        begin_checkpoints(self.directory, self.text, self.grid)

    def _refused(self) -> str | None:
        """Why the folder cannot be made; None if it can."""
        try:
            self._begin()
        except OSError as error:
            return str(error)
        return None

    def _read(self, path: pathlib.Path, data: int) -> list[Reference] | None:
        if not path.is_file():
            return None
        try:
            stored = read_npz(path, "scores of standalone models")
            checksum, count = int(stored.pop("data")), int(stored.pop("count"))
            references = [_reference(stored, place) for place in range(count)]
        except (ValueError, KeyError, TypeError):
            self.log.note(f"{_STANDALONE} is damaged; standalone models are trained again")
            return None
        if checksum != data and self.saving.force:
            self.log.note(f"{WENT_ON}the data differ; standalone models are trained again")
            return None
        if checksum != data:
            raise ValueError(
                f"expected the data of the run in {str(self.directory)!r} to resume it, got other data "
                "(with another folder a run begins anew; --force or force=True goes on, and the results say so)"
            )
        return references


def _reference(stored: Mapping[str, np.ndarray], place: int) -> Reference:
    start = f"{place}/"
    fields: dict[str, Any] = {
        name.removeprefix(start): array for name, array in stored.items() if name.startswith(start)
    }
    fields.setdefault("test_accuracy", None)  # absent without a score
    return Reference(**fields)


def _arrays(references: Sequence[Reference], data: int) -> dict[str, np.ndarray]:
    """The scores of standalone models by name; ``data`` is the checksum of what they were trained on."""
    arrays: dict[str, Any] = {"data": np.asarray(data), "count": np.asarray(len(references))}
    for place, reference in enumerate(references):
        fields = reference._replace(params=None)._asdict()
        arrays |= {f"{place}/{name}": values for name, values in fields.items() if values is not None}
    return arrays
