"""``metrics.jsonl``: one evaluation a line, appended while a run goes on.

The file is beside ``log.jsonl``: its lines are long, and who reads events need not parse them. One line has all seeds
(in a sweep all cells that run together). NaN and infinities are null. A resumed run appends; who reads drops the
evaluations that a later line repeats.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.results.folders import EVALUATIONS, append_line


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
    found: dict[tuple[str, tuple[int, ...]], list[Line]] = {}
    for each in text.splitlines():
        line = _parsed(each)
        if line is None:
            continue
        own = found.setdefault((line.label, line.cells), [])
        while own and own[-1].round >= line.round:
            own.pop()
        own.append(line)
    return [line for own in found.values() for line in own]


def _parsed(text: str) -> Line | None:
    try:
        raw: Any = json.loads(text)
        seeds, cells = tuple(raw["seeds"]), tuple(raw["cells"])
        diverged = tuple((seed, round) for seed, round in raw["diverged"])
        own = {name: raw[name] for name in ("label", "round", "rounds", "seconds", "metrics")}
        return Line(**own, seeds=seeds, cells=cells, diverged=diverged)
    except (ValueError, KeyError, TypeError):
        return None
