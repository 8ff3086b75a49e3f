"""The two files of lines in a run folder, appended while a run goes on: ``log.jsonl`` and ``metrics.jsonl``.

A line of the metrics is one evaluation of all seeds (in a sweep, of all cells that run together), with null for NaN and
infinities; readers of events need not parse these long lines. A resumed run appends: later lines replace earlier ones.

Metrics and records of several algorithms are joined here, after any number of rounds. Joined results have NaN after the
end of a run that stopped early. A value may be NaN for other reasons, so ``rounds_done`` says where the end is. A
baseline that ended earlier is held at its last evaluation.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.core import processes
from fljax.core.files import open_appending
from fljax.core.sameness import WENT_ON, forced_in


class Results(NamedTuple):
    """What is saved of an algorithm, or of several along ``algorithm``.

    Attributes:
      metrics: over ``seed, evaluated_round, client | unseen``.
      records: over ``seed, round, row``.
    """

    metrics: xr.Dataset
    records: xr.Dataset


# The results of finished algorithms, by label.
Parts = Mapping[str, Results]
# Attribute of metrics: how the clients of each algorithm count that has such an option, as JSON by label.
WEIGHTS = "weights"


def joined_weights(parts: Parts) -> dict[str, str]:
    """The attribute ``WEIGHTS`` of joined metrics."""
    found: dict[str, str] = {}
    for part in parts.values():
        found |= json.loads(part.metrics.attrs.get(WEIGHTS, "{}"))
    return {WEIGHTS: json.dumps(found)} if found else {}


def weights_in_words(metrics: xr.Dataset) -> str:
    """``weights of clients differ: size (fedavg), uniform (scaffold)``; empty if they do not differ."""
    by_kind: dict[str, list[str]] = {}
    for label, kind in json.loads(metrics.attrs.get(WEIGHTS, "{}")).items():
        by_kind.setdefault(kind, []).append(label)
    told = ", ".join(f"{kind} ({', '.join(labels)})" for kind, labels in by_kind.items())
    return f"weights of clients differ: {told}" if len(by_kind) > 1 else ""


def ends(metrics: xr.Dataset) -> xr.DataArray:
    """The position of the last evaluation along ``evaluated_round``, over the dimensions of ``rounds_done``."""
    rounds = metrics["evaluated_round"].values
    # Results of an earlier version, without it, end at the last position.
    if "rounds_done" not in metrics:
        return xr.DataArray(len(rounds) - 1)
    done = metrics["rounds_done"]
    known = np.where(np.isnan(done.values), np.inf, done.values)
    return done.copy(data=np.maximum(np.searchsorted(rounds, known, side="right") - 1, 0))


def end_of(metrics: xr.Dataset, algorithm: str) -> int:
    """The position of one algorithm's last evaluation; of results without axes of a sweep."""
    place = ends(metrics)
    return int(place.sel(algorithm=algorithm) if "algorithm" in place.dims else place)


def at_end(metrics: xr.Dataset) -> xr.Dataset:
    """The metrics at the last evaluation of every run, without the dimension ``evaluated_round``."""
    place = ends(metrics)
    return metrics.isel(evaluated_round=xr.DataArray(place.values, dims=place.dims))


def array_of(dataset: xr.Dataset, name: str, *dims: str, **at: str) -> np.ndarray | None:
    """``[*dims]`` of a variable over these dimensions and those of ``at``; None if there is none, or no value."""
    if name not in dataset or set(dataset[name].dims) != {*dims, *at} or not dataset[name].size:
        return None
    return np.asarray(dataset[name].sel(at).transpose(*dims).values, float)


def held_after_end(values: xr.DataArray, place: xr.DataArray) -> np.ndarray:
    """``[..., evaluated_round, x]``: the values, and after the end of a run (by ``ends``) those at its end."""
    count = values.sizes["evaluated_round"]
    end = place.broadcast_like(values.isel(dict.fromkeys(values.dims[-2:], 0)))
    end = end.transpose(*values.dims[:-2]).values
    at = np.minimum(np.arange(count), end[..., None])[..., None]
    return np.take_along_axis(values.values, at, axis=-2)


LOG, EVALUATIONS = "log.jsonl", "metrics.jsonl"
# Kinds of events that say what became of an algorithm.
DONE, STOPPED = "done", "stopped"


class Event(NamedTuple):
    """A step of a run, for progress bars and the log."""

    stage: str  # "data", "standalone", "train", "note" or "saved"
    label: str  # of the algorithm, or ""
    round: int  # number of rounds done
    rounds: int  # number of rounds of the run
    seconds: float  # since the run began
    message: str  # one sentence, or ""
    unit: str = "rounds"  # what ``round`` and ``rounds`` count: "rounds", or "runs" of ``fljax worth``
    kind: str = ""  # what became of the algorithm: ``DONE`` earlier, ``STOPPED`` early, or ""


OnEvent = Callable[[Event], None]


class EventLog:
    """Tells the steps of a run: process 0 appends them to a folder's log, if it can; a listener gets each ``Event``.

    ``forced`` has the sentences about what differed where the run went on by force; its results say them, too.
    """

    def __init__(
        self, folder: pathlib.Path | None = None, on_event: OnEvent | None = None, unit: str = "rounds"
    ) -> None:
        self._path = None if folder is None else folder / LOG
        self._on_event = on_event if on_event is not None else lambda _: None  # a listener may be empty, as a list
        self._began = time.perf_counter()
        self._unit, self.forced = unit, ""

    def tell(self, stage: str, label: str, round: int, rounds: int, message: str, kind: str = "") -> None:
        """Tells one event; the arguments are attributes of ``Event``."""
        seconds = float(np.round(time.perf_counter() - self._began, 3))
        event = Event(stage, label, round, rounds, seconds, message, self._unit, kind)
        if self._path is not None and processes.is_first():
            try:
                append_line(self._path, json.dumps(event._asdict()))
            except OSError as error:
                words = f"{self._path} cannot be written ({error.strerror}); the run goes on without a log"
                self._path = None
                self._on_event(event._replace(stage="note", label="", message=words))
        self._on_event(event)

    def note(self, words: str, label: str = "", round: int = 0, rounds: int = 0, kind: str = "") -> None:
        """A sentence about the run, or about the algorithm ``label`` after so many rounds."""
        self.forced = forced_in(self.forced, words if words.startswith(WENT_ON) else "")
        self.tell("note", label, round, rounds, words, kind)

    def done(self, label: str, rounds: int = 0) -> None:
        """The results have the algorithm ``label`` already."""
        self.note("already in the results, not repeated", label, rounds, rounds, DONE)

    def train(self, label: str, round: int, rounds: int, words: str = "") -> None:
        """The algorithm ``label`` has done so many of its rounds."""
        self.tell("train", label, round, rounds, words)


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
