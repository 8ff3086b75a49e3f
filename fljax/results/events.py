"""The two files of lines in a run folder, appended while a run goes on: ``log.jsonl`` and ``metrics.jsonl``.

A line of the metrics is one evaluation of all seeds (in a sweep, of all cells that run together), with null for NaN and
infinities; readers of events need not parse these long lines. A resumed run appends: later lines replace earlier ones.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core import processes
from fljax.core.files import open_appending
from fljax.core.sameness.record import WENT_ON, forced_in

LOG, EVALUATIONS = "log.jsonl", "metrics.jsonl"
# How messages begin that say what became of an algorithm; the state of a run is read from them, also in old folders.
DONE, STOPPED = "already in the results", "stopped after round"


class Event(NamedTuple):
    """A step of a run, for progress bars and the log."""

    stage: str  # "data", "standalone", "train", "note" or "saved"
    label: str  # of the algorithm, or ""
    round: int  # number of rounds done
    rounds: int  # number of rounds of the run
    seconds: float  # since the run began
    message: str  # one sentence, or ""
    unit: str = "rounds"  # what ``round`` and ``rounds`` count: "rounds", or "runs" of ``fljax worth``


OnEvent = Callable[[Event], None]


class EventLog:
    """Tells the steps of a run: process 0 appends them to a folder's log, if it can; a listener gets each ``Event``.

    ``forced`` has the sentences about what differed where the run went on by force; its results say them, too.
    """

    def __init__(
        self, folder: pathlib.Path | None = None, on_event: OnEvent | None = None, unit: str = "rounds"
    ) -> None:
        self._path = None if folder is None else folder / LOG
        self._on_event = _ignore if on_event is None else on_event
        self._began = time.perf_counter()
        self._unit, self.forced = unit, ""

    def tell(self, stage: str, label: str, round: int, rounds: int, message: str) -> None:
        """Tells one event; the arguments are attributes of ``Event``."""
        seconds = float(np.round(time.perf_counter() - self._began, 3))
        event = Event(stage, label, round, rounds, seconds, message, self._unit)
        if self._path is not None and processes.is_first():
            try:
                append_line(self._path, json.dumps(event._asdict()))
            except OSError as error:
                words = f"{self._path} cannot be written ({error.strerror}); the run goes on without a log"
                self._path = None
                self._on_event(event._replace(stage="note", label="", message=words))
        self._on_event(event)

    def note(self, words: str, label: str = "", round: int = 0, rounds: int = 0) -> None:
        """A sentence about the run, or about the algorithm ``label`` after so many rounds."""
        self.forced = forced_in(self.forced, words if words.startswith(WENT_ON) else "")
        self.tell("note", label, round, rounds, words)

    def train(self, label: str, round: int, rounds: int, words: str = "") -> None:
        """The algorithm ``label`` has done so many of its rounds."""
        self.tell("train", label, round, rounds, words)


def _ignore(_: Event) -> None:
    """The listener of a run to which nobody listens."""


def append_line(path: pathlib.Path, line: str) -> None:
    """Appends a line. An incomplete last line (of a process that died) is ended first."""
    with open_appending(path) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


class Line(NamedTuple):
    """One evaluation.

    Attributes:
      label: of the algorithm.
      round: number of rounds done; 0 before training.
      rounds: number of rounds of the run.
      seconds: seconds since the process began with the experiment.
      seeds: the seed of every run.
      cells: the number of each run's cell in a sweep; empty in a run.
      diverged: ``(seed, round)`` of the runs in which a NaN or infinity has appeared so far.
      metrics: a value for each run by the name of the metric; None where it is NaN or infinite.
    """

    label: str
    round: int
    rounds: int
    seconds: float
    seeds: tuple[int, ...]
    cells: tuple[int, ...]
    diverged: tuple[tuple[int, int], ...]
    metrics: Mapping[str, Sequence[float | None]]


def append(folder: pathlib.Path, line: Line) -> None:
    """Appends a line to the folder's ``metrics.jsonl``.

    Raises:
      OSError: if the file cannot be written.
    """
    append_line(folder / EVALUATIONS, json.dumps(line._asdict(), allow_nan=False))


def read_lines(folder: pathlib.Path) -> list[Line]:
    """The evaluations of a folder, by algorithm (and group of cells), each in the order of rounds.

    An algorithm that a resumed run repeats, or continues from an earlier round, replaces its later evaluations. Lines
    that are incomplete are left out; a folder without the file has no evaluations.
    """
    try:
        text = (folder / EVALUATIONS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    groups: dict[tuple[str, tuple[int, ...]], list[Line]] = {}
    for line in map(_parsed, text.splitlines()):
        if line is None:
            continue
        lines = groups.setdefault((line.label, line.cells), [])
        while lines and lines[-1].round >= line.round:
            lines.pop()
        lines.append(line)
    return [line for lines in groups.values() for line in lines]


def _parsed(text: str) -> Line | None:
    try:
        raw: Any = json.loads(text)
        seeds, cells = tuple(raw["seeds"]), tuple(raw["cells"])
        diverged = tuple((seed, round) for seed, round in raw["diverged"])
        others = {name: raw[name] for name in ("label", "round", "rounds", "seconds", "metrics")}
        numbers = [raw["round"], raw["rounds"], raw["seconds"], *seeds, *cells]
        numbers += [number for pair in diverged for number in pair]
        numbers += [value for values in raw["metrics"].values() for value in values if value is not None]
        if not isinstance(raw["label"], str) or not all(isinstance(number, int | float) for number in numbers):
            return None
        return Line(**others, seeds=seeds, cells=cells, diverged=diverged)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
