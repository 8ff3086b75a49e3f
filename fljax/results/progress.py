"""The state of a run, read from its folder while another process goes on with it, or afterwards.

Whoever watches a run reads its files only. Whether it goes on is asked of its lock, which is taken for an instant.
"""

from __future__ import annotations

import json
import pathlib
import time
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.core.files import check_links, is_locked
from fljax.core.names import duration
from fljax.metrics import mean
from fljax.metrics.registry import is_lower_better
from fljax.results.events import DONE, EVALUATIONS, LOG, STOPPED, Event, Line, read_lines
from fljax.results.folders import CONFIG, LOCK, config_of
from fljax.results.identity import labels_in
from fljax.results.non_finite import diverged_words


class Progress(NamedTuple):
    """One algorithm.

    Attributes:
      label: of the algorithm.
      state: "waiting", "training", "done", "stopped early", or "unfinished" of a run that has ended.
      round: number of rounds done; of ``fljax worth``, of runs.
      rounds: number of rounds of the run; in a sweep of all programs together; of ``fljax worth``, of runs.
      rate: rounds, or runs, per second; None where it is not known.
      left: estimated seconds to its end; None where it is not known.
      evaluated: the round of its last evaluation; None if there is none.
      metrics: means over seeds at that evaluation (in a sweep, of its best cell); None where there is no value.
      diverged: which of its seeds (in a sweep: of its runs) have diverged so far, in words; may be empty.
    """

    label: str
    state: str
    round: int
    rounds: int
    rate: float | None
    left: float | None
    evaluated: int | None
    metrics: Mapping[str, float | None]
    diverged: str = ""

    @property
    def in_words(self) -> tuple[str, str, str]:
        """What is done, the rate, and the time that is left."""
        rate = "–" if self.rate is None else f"{self.rate:.3g}"
        left = "–" if self.left is None or self.state != "training" else duration(self.left)
        return f"{self.round} of {self.rounds}", rate, left


class RunState(NamedTuple):
    """A run.

    Attributes:
      name: of the experiment.
      running: whether a process holds the folder.
      stage: what the process does outside of training, or what was done last; may be empty.
      seconds: seconds of the run so far, as its log has them.
      silent: seconds since the log was written.
      left: estimated seconds to the end of the last algorithm; None where it is not known.
      metric: by which the best cells of a sweep are chosen.
      algorithms: in the order of the config.
      unit: what the last process counts: "rounds", or "runs" of ``fljax worth``.
    """

    name: str
    running: bool
    stage: str
    seconds: float
    silent: float
    left: float | None
    metric: str
    algorithms: tuple[Progress, ...]
    unit: str = "rounds"

    @property
    def finished(self) -> bool:
        """Whether all algorithms are done."""
        return all(algorithm.state in ("done", "stopped early") for algorithm in self.algorithms)


def read_state(folder: pathlib.Path) -> RunState:
    """The state of the run in a folder.

    Raises:
      ValueError: if the folder is none of a run.
    """
    check_links(folder, (CONFIG, LOG, EVALUATIONS, LOCK))
    config, events = tomllib.loads(config_of(folder) or ""), _events(folder)
    if not {"name", "rounds", "algorithms"} <= config.keys() or not (folder / LOG).is_file():
        raise ValueError(f"expected the folder of a run, with {CONFIG} and {LOG}, got {str(folder)!r}")
    running = is_running(folder)
    silent = max(0.0, time.time() - (folder / LOG).stat().st_mtime)
    metric = (config.get("sweep") or {}).get("metric", "average_accuracy")
    now = _last_process(events)
    unit = now[-1].unit if now else "rounds"
    events = [event for event in events if event.unit == unit]  # a run and fljax worth may share a folder
    lines = read_lines(folder) if unit == "rounds" else []
    rounds = int(config["rounds"])
    algorithms = [
        _progress(label, rounds, events, now, [line for line in lines if line.label == label], metric, running, silent)
        for label in labels_in(config)
    ]
    seconds = (now[-1].seconds if now else 0.0) + (silent if running else 0.0)
    left = _left(algorithms) if running else None
    return RunState(str(config["name"]), running, _stage(now), seconds, silent, left, metric, tuple(algorithms), unit)


def is_running(folder: pathlib.Path) -> bool:
    """Whether a process holds the lock of the folder."""
    return is_locked(folder / LOCK)


def best_cell(lines: Sequence[Line], metric: str) -> int | None:
    """The cell of a sweep with the best mean over seeds at its last evaluation; None in a run, or without a value."""
    values: dict[int, float] = {}
    for line in lines:  # of a cell, later lines replace earlier ones
        for cell in dict.fromkeys(line.cells):
            value = means(line, cell).get(metric)
            if value is not None:
                values[cell] = value
    if not values:
        return None
    return (min if is_lower_better(metric) else max)(values, key=lambda cell: values[cell])


def means(line: Line, cell: int | None = None) -> dict[str, float | None]:
    """Means over the seeds with a value; in a sweep, of one cell."""
    places = [place for place in range(len(line.seeds)) if cell is None or line.cells[place] == cell]
    return {name: mean([values[place] for place in places]) for name, values in line.metrics.items()}


def _events(folder: pathlib.Path) -> list[Event]:
    try:
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    events = []
    for line in text.splitlines():
        try:
            raw: Any = json.loads(line)
            event = Event(**({"kind": _kind_of(raw)} | raw))
        except (ValueError, TypeError, AttributeError):  # the last line of a process that died
            continue
        numbers = "round", "rounds", "seconds"
        if all(isinstance(each, int | float if name in numbers else str) for name, each in event._asdict().items()):
            events.append(event)
    return events


def _kind_of(raw: Mapping[str, Any]) -> str:
    """The kind of an event in the log of an older fljax, whose messages alone say it."""
    beginnings = {"already in the results": DONE, "stopped after round": STOPPED}
    return next((kind for begin, kind in beginnings.items() if str(raw.get("message")).startswith(begin)), "")


def _last_process(events: Sequence[Event]) -> list[Event]:
    """The events of the last process: each begins to count seconds anew."""
    start = 0
    for place in range(1, len(events)):
        if events[place].seconds < events[place - 1].seconds:
            start = place
    return list(events[start:])


def _stage(now: Sequence[Event]) -> str:
    """The last message about the experiment as a whole, unless an algorithm has trained since."""
    last = next((event for event in reversed(now) if event.stage in ("data", "standalone", "train")), None)
    return last.message if last is not None and last.stage != "train" else ""


def _progress(
    label: str,
    rounds: int,
    events: Sequence[Event],
    now: Sequence[Event],
    lines: Sequence[Line],
    metric: str,
    running: bool,
    silent: float,
) -> Progress:
    of_label = [event for event in events if event.label == label]
    trained = [event for event in now if event.label == label and event.stage == "train"]
    # Of runs, other commands may have finished others in the same folder; the last process names what is finished.
    told_of = [event for event in now if event.label == label] if now and now[-1].unit == "runs" else of_label
    saved = any(event.stage == "saved" or event.kind == DONE for event in told_of)
    early = any(event.kind == STOPPED for event in of_label)
    last = trained[-1] if trained else None
    told = next((event.rounds for event in reversed(of_label) if event.rounds), rounds)
    done, total = (0, told) if last is None else (last.round, last.rounds)
    rate = _rate(trained)
    left = None if rate is None else max(0.0, (total - done) / rate - silent)
    if saved:
        state, left = ("stopped early" if early else "done"), 0.0
        done = done if early and last is not None else total
    elif not running:
        state, left = "unfinished", None
    else:
        state = "waiting" if last is None else "training"
    cell = best_cell(lines, metric)
    own_lines = [line for line in lines if cell is None or cell in line.cells]
    evaluated = own_lines[-1] if own_lines else None
    return Progress(
        label,
        state,
        done,
        total,
        rate,
        left,
        None if evaluated is None else evaluated.round,
        {} if evaluated is None else means(evaluated, cell),
        _diverged(lines),
    )


def _diverged(lines: Sequence[Line]) -> str:
    """Which runs of an algorithm have diverged so far, in words; may be empty."""
    last = {line.cells: line for line in lines}  # of each group of cells
    rounds = [round for line in last.values() for _, round in line.diverged]
    return diverged_words(rounds, sum(len(line.seeds) for line in last.values()), "run" if any(last) else "seed")


def _rate(trained: Sequence[Event]) -> float | None:
    """Rounds, or runs, per second after the first of them, which wait for programs; until then, from the start."""
    after = [event for event in trained if event.round > 0]
    first, last = (after if len(after) > 1 else trained)[:1], trained[-1:]
    if not first or last[0].round <= first[0].round or last[0].seconds <= first[0].seconds:
        return None
    return (last[0].round - first[0].round) / (last[0].seconds - first[0].seconds)


def _left(algorithms: Sequence[Progress]) -> float | None:
    """Seconds to the end, if algorithms that wait are as fast as the one that trains."""
    training = next((algorithm for algorithm in algorithms if algorithm.state == "training"), None)
    if training is None or training.rate is None or training.left is None:
        return None
    waiting = sum(algorithm.state == "waiting" for algorithm in algorithms)
    return training.left + waiting * training.rounds / training.rate
