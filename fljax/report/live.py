"""The page of a run that goes on: its progress, its metrics and their curves so far, reloaded by the browser."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Sequence

import numpy as np
import xarray as xr

from fljax.core.files import replace
from fljax.core.names import duration
from fljax.core.texts import pages
from fljax.report.drawing import curves
from fljax.report.page import attached_to, metric_table, note, png, write
from fljax.report.style import fonts_for, texts_of
from fljax.report.tables import summary, title
from fljax.results import Line, RunState, best_cell, is_running, read_lines, read_state
from fljax.results.folders import RESULTS

PAGE = "report.html"
PAUSE = 5.0  # least seconds between two pages
SHARE = 0.2  # of one core at most is spent on pages, since the run needs the cores
LONGEST = 60.0  # seconds between two pages, however long one takes


def follow(run_folder: pathlib.Path, pause: float = PAUSE) -> pathlib.Path:
    """Writes ``report.html`` anew every few seconds until the run ends, and then the usual report; returns its path.

    The browser reloads the page by itself. Drawing takes at most a fifth of one core, unless a page takes longer than
    ``LONGEST`` allows.

    Raises:
      ValueError: if the folder is none of a run.
    """
    folder = pathlib.Path(run_folder)
    state = read_state(folder)
    while state.running:
        began = time.perf_counter()
        wait = math.ceil(pause)
        _replace(folder / PAGE, live_page(folder, state, wait))
        needed = (time.perf_counter() - began) / SHARE
        until = time.monotonic() + max(pause, min(needed, LONGEST))
        while time.monotonic() < until and is_running(folder):
            time.sleep(0.5)
        state = read_state(folder)
    if (folder / RESULTS).exists():
        write(folder)
    else:
        _replace(folder / PAGE, live_page(folder, state))
    return folder / PAGE


def live_page(folder: pathlib.Path, state: RunState, reload: int | None = None) -> str:
    """The page as HTML; ``reload`` is the number of seconds after which the browser asks for it again, None: never."""
    lines = read_lines(folder) if state.unit == "rounds" else []
    parts: list[str] = [pages.note(_words(state)), _progress(state)]
    if lines:
        metrics = as_dataset(lines, state)
        rows = summary(metrics)
        parts += [pages.note(note(rows))]
        words = {each.label: each.diverged for each in state.algorithms}
        names = zip(map(str, metrics["algorithm"].values), dict.fromkeys(line.label for line in lines), strict=False)
        marks = {name: words[label] for name, label in names if words.get(label)}
        parts += [metric_table(f"{kind} clients", rows, marks, unseen=kind == "Unseen") for kind in ("Seen", "Unseen")]
        with fonts_for(texts_of(metrics)):
            drawn = [pages.image(png(figure, dpi=80), title(name)) for name, figure in curves(metrics).items()]
        parts += [pages.section("So far", pages.figures(drawn))] if drawn else []
    return pages.page(state.name, parts, attached_to(folder), reload)


def as_dataset(lines: Sequence[Line], state: RunState) -> xr.Dataset:
    """Evaluations as the Dataset of a run, over ``algorithm, seed, evaluated_round``; of a sweep, the best cells."""
    chosen: dict[str, list[Line]] = {}
    runs: dict[str, list[int]] = {}
    for label in dict.fromkeys(line.label for line in lines):
        own = [line for line in lines if line.label == label]
        cell = best_cell(own, state.metric)
        name = label if cell is None else f"{label}, cell {cell}"
        chosen[name] = [line for line in own if cell is None or cell in line.cells]
        first = chosen[name][0]
        runs[name] = [at for at in range(len(first.seeds)) if cell is None or first.cells[at] == cell]
    first = next(iter(chosen))
    seeds = [chosen[first][0].seeds[at] for at in runs[first]]
    rounds = sorted({line.round for own in chosen.values() for line in own})
    names = list(dict.fromkeys(name for own in chosen.values() for line in own for name in line.metrics))
    values = {name: np.full((len(chosen), len(seeds), len(rounds)), np.nan) for name in names}
    for place, (label, own) in enumerate(chosen.items()):
        for line in own:
            for name, each in line.metrics.items():
                found = [np.nan if each[at] is None else each[at] for at in runs[label]]
                values[name][place, :, rounds.index(line.round)] = found
    dims = ("algorithm", "seed", "evaluated_round")
    coordinates = {"algorithm": list(chosen), "seed": seeds, "evaluated_round": rounds}
    metrics = xr.Dataset({name: (dims, each) for name, each in values.items()}, coordinates)
    metrics["rounds_done"] = (("algorithm",), [own[-1].round for own in chosen.values()])
    return metrics


def _words(state: RunState) -> str:
    if not state.running:
        return "Finished." if state.finished else "The run ended before it was finished."
    left = "" if state.left is None else f" About {duration(state.left)} left, if the algorithms that wait are as fast."
    stage = f" Now: {state.stage}." if state.stage else ""
    return f"Running for {duration(state.seconds)}.{stage}{left} This page reloads by itself."


def _progress(state: RunState) -> str:
    unit = state.unit.capitalize()
    lines: list[tuple[str, ...]] = [("Algorithm", "State", "", unit, f"{unit} per second", "Time left")]
    for each in state.algorithms:
        bar = pages.bar(min(1.0, each.round / each.rounds) if each.rounds else 0.0)
        rate = "–" if each.rate is None else f"{each.rate:.3g}"
        left = "–" if each.left is None or each.state != "training" else duration(each.left)
        lines.append((each.label, each.state, bar, f"{each.round} of {each.rounds}", rate, left))
    return pages.wide(pages.table(lines))


def _replace(path: pathlib.Path, text: str) -> None:
    """Writes a file that a browser may read at any time, and that the run may write at the same time."""
    replace(path, text.encode(), ".live")
