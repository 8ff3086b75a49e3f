"""Writes one picture and one self-contained HTML page beside the results of a run.

The page of a run that goes on has its progress, its metrics and their curves so far, reloaded by the browser.
"""

from __future__ import annotations

import io
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from fljax.core import pages
from fljax.core.files import replace
from fljax.core.names import duration
from fljax.core.sameness import forced_in
from fljax.report.clients import MOST_CLIENTS, gains_picture, gains_table
from fljax.report.clusters import client_clusters
from fljax.report.drawing import curves, picture
from fljax.report.kinds.registry import KINDS, Asked, draw_kinds
from fljax.report.kinds.sources import Source, read
from fljax.report.style import font_note, fonts_for, texts_of
from fljax.report.sweeps import sweep_picture
from fljax.report.tables import Row, cell, main_table, pivot, summary, target_lines, title, to_target, when
from fljax.results import Line, RunState, best_cell, is_running, read_lines, read_state
from fljax.results.events import Results, weights_in_words
from fljax.results.folders import COMPARISON, CONFIG, ENVIRONMENT, RESULTS, load_results
from fljax.results.non_finite import diverged_seeds, in_which, senders_of
from fljax.results.records import directions, is_lower
from fljax.results.sweeps import axes_of, divergences_in

DPI = 110  # of pictures: 1540 pixels across, where a page is 1180 wide


class Pictures(NamedTuple):
    """Kinds of figure as PNG files, by name, and a sentence for every one that was left out."""

    content: dict[str, bytes]
    missing: tuple[str, ...] = ()


def pictures(source: Source, asked: Asked) -> Pictures:
    """Draws kinds of figure for pages; raises a ValueError as ``fljax.report.draw_kinds``."""
    material = read(source)
    with fonts_for(texts_of(material.metrics)):
        drawn = draw_kinds(material, asked.names, clients=asked.clients, metrics=asked.metrics)
        return Pictures({name: png(figure) for name, figure in drawn.figures.items()}, drawn.missing)


def write(
    run_folder: pathlib.Path,
    results: Results | None = None,
    more: Pictures | None = None,
    targets: Mapping[str, float] | None = None,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes ``report.png`` (for a sweep ``sweep.png``) and ``report.html`` into a run's folder; returns their paths.

    The page shows the same picture, which is drawn once.

    Args:
      run_folder: the folder.
      results: of the run, if the caller has them; None: they are read.
      more: pictures that the page of a run shows, too, from ``pictures``.
      targets: values by metric: the page also says after how many rounds they were reached.

    Raises:
      ValueError: if the folder has no results, or ``to_target`` refuses a target.
    """
    folder = pathlib.Path(run_folder)
    metrics, records = load_results(folder) if results is None else results
    heading = str(metrics.attrs.get("name", folder.resolve().name))
    reached = [
        target_table(to_target(metrics, name, value), value, is_lower(metrics[name]))
        for name, value in (targets or {}).items()
    ]
    path, page = folder / ("sweep.png" if axes_of(metrics) else "report.png"), folder / "report.html"
    content, panels = _picture(metrics, records, heading)
    replace(path, content)
    shown = [*reached, panels, _more(more), _clusters(metrics, records)]
    replace(page, _page(heading, metrics, shown, attached_to(folder)).encode())
    return path, page


def _picture(metrics: xr.Dataset, records: xr.Dataset, heading: str = "") -> tuple[bytes, str]:
    """The picture of all panels, or of the grid of a sweep, and its section of a page; nothing without panels."""
    swept = bool(axes_of(metrics))
    with fonts_for(texts_of(metrics, heading)):
        figure = sweep_picture(metrics, heading) if swept else picture(metrics, records, heading)
        content = png(figure)
    if swept:
        return content, pages.section("Grid", pages.image(content, title(str(metrics.attrs["metric"]))))
    titles = [axes.get_title().replace("\n", ", ").replace(r"\$", "$") for axes in figure.axes]
    words = "; ".join(titles)
    return content, pages.section("Picture", pages.wide(pages.image(content, words))) if titles else ""


def write_page(
    path: pathlib.Path, metrics: xr.Dataset, records: xr.Dataset, heading: str, attached: Mapping[str, str]
) -> None:
    """Writes a page of its own with the tables and the picture of a run.

    Args:
      path: the file.
      metrics: over algorithm, seed and evaluated_round.
      records: over algorithm, seed and round.
      heading: of the page.
      attached: texts at the end of the page, by title.
    """
    shown = [_picture(metrics, records)[1], _clusters(metrics, records)]
    replace(path, _page(heading, metrics, shown, attached).encode())


def attached_to(folder: pathlib.Path) -> dict[str, str]:
    """The texts of a run folder that say how it was run, by the name of the file."""
    names = (CONFIG, COMPARISON, ENVIRONMENT)
    return {name: (folder / name).read_text(encoding="utf-8") for name in names if (folder / name).is_file()}


def _page(heading: str, metrics: xr.Dataset, drawn: Sequence[str], attached: Mapping[str, str]) -> str:
    tables = _best_cells(metrics) if axes_of(metrics) else _tables(metrics)
    said = font_note(texts_of(metrics)) if any(drawn) else None
    forced = [pages.note(f"The run {line}.", kind="warning") for line in forced_in(metrics).splitlines()]
    parts = [*forced, *tables, *([pages.note(said)] if said else []), *drawn, _clients(metrics)]
    return pages.page(heading, parts, attached)


def _tables(metrics: xr.Dataset) -> list[str]:
    """What the numbers of a run are, who diverged, and the tables of seen and unseen clients."""
    rows, marks = summary(metrics), diverged_seeds(metrics)
    told = [note(rows), *(f"{words[0].upper()}{words[1:]}." for words in [directions(metrics)] if words)]
    return [pages.note(" ".join(told)), *_diverged(metrics), *metric_tables(rows, marks)]


def _best_cells(metrics: xr.Dataset) -> list[str]:
    """The best cells of a sweep."""
    table = pages.table(main_table(metrics)[0])
    told = ["At the last evaluation. (edge): edge of the grid; any: makes no difference", weights_in_words(metrics)]
    words = pages.note(f"{'; '.join(filter(None, told))}.")
    return [pages.section("Best cells", words, pages.wide(table))]


def _clients(metrics: xr.Dataset) -> str:
    """The section about which clients gain; nothing without standalone models."""
    with fonts_for(texts_of(metrics)):
        figure = gains_picture(metrics)
        if figure is None:
            return ""
        content = png(figure)
    words, about = "The gain of each client over its standalone model", ""
    if axes_of(metrics):
        told = (
            "Accuracies and gains are those in each algorithm's best cell by the sweep's metric; along an axis that "
            "makes no difference to it, in the first cell. A client gains in a cell and seed if it is better "
            "off there than with its standalone model; fljax export --gains has all cells."
        )
        about = pages.note(told)
    return pages.section("Clients", about, pages.wide(pages.image(content, words)), gains_table(metrics))


def _clusters(metrics: xr.Dataset, records: xr.Dataset) -> str:
    """The section with the cluster of each client; nothing of a sweep, or without clusters."""
    if axes_of(metrics) or "client" not in metrics.dims:
        return ""
    found = client_clusters(Results(metrics, records))
    heads = ["Client", *(f"{label}, seed {seed}" for label, seed in found)]
    lines = [[name, *map(str, numbers)] for name, *numbers in found.astype(object).fillna("–").itertuples()]
    table = pages.long_table([heads, *lines], "All clients", MOST_CLIENTS)
    return pages.section("Clusters", table) if found.size else ""


def _more(more: Pictures | None) -> str:
    """The section of a page with kinds of figure, and what is missing for others."""
    if more is None:
        return ""
    drawn = [pages.wide(pages.image(content, KINDS[name].sentence)) for name, content in more.content.items()]
    return pages.section("Figures", *drawn, *(pages.note(f"{sentence}.") for sentence in more.missing))


def note(rows: list[Row]) -> str:
    """What the numbers of a table are."""
    if not rows:
        return "No evaluation yet."
    seeds = rows[0].of
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    last = when(rows)
    return (
        f"{last[0].upper()}{last[1:]}: {spread}. Rates and accuracies are shares of 1, numbers of clients are counts."
    )


def _diverged(metrics: xr.Dataset) -> list[str]:
    notes = list[str]()
    for algorithm, seed, round_ in divergences_in(metrics):
        who = in_which(senders_of(metrics, {"algorithm": algorithm, "seed": seed}) or None)
        notes.append(pages.note(f"{algorithm}, seed {seed}: diverged in round {round_}{who}.", kind="warning"))
    return notes


def metric_tables(rows: list[Row], diverged: Mapping[str, str]) -> list[str]:
    """All metrics of seen clients, and of unseen ones."""
    return [_metric_table(f"{kind} clients", rows, diverged, kind == "Unseen") for kind in ("Seen", "Unseen")]


def _metric_table(heading: str, rows: list[Row], diverged: Mapping[str, str], unseen: bool) -> str:
    """A column or, with fewer metrics, a line for each algorithm."""
    chosen = [row for row in rows if row.metric.startswith("unseen_") == unseen and row.seeds]
    names = list(dict.fromkeys(row.metric for row in chosen))
    if not names:
        return ""
    lines = [["Algorithm", *(title(name).removesuffix(" (unseen)") for name in names), *["Diverged"] * bool(diverged)]]
    for algorithm, line in pivot(rows, names).items():
        marks = [diverged.get(algorithm, "")] if diverged else []
        lines.append([algorithm, *map(cell, line), *marks])
    if len(lines) - 1 <= len(names):
        lines = [list(column) for column in zip(*lines, strict=True)]
    return pages.section(heading, pages.wide(pages.table(lines)))


def target_table(rows: list[Row], target: float, lower: bool) -> str:
    """The rounds to a target of each algorithm, as a section of a page."""
    table = pages.wide(pages.table(target_lines(rows, target, lower=lower)))
    words = "At the first evaluation that reaches the target; mean ± standard deviation over the seeds that do."
    return pages.section("Rounds to a target", pages.note(words), table)


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """A figure as a PNG file. ``Figure.savefig`` would draw it twice, the first time for its layout alone."""
    figure.set_dpi(dpi)
    figure.set_facecolor("white")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    buffer = io.BytesIO()
    imsave(buffer, canvas.buffer_rgba(), format="png", dpi=dpi)
    return buffer.getvalue()


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
        parts += metric_tables(rows, marks)
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
        lines.append((each.label, each.state, bar, *each.in_words))
    return pages.wide(pages.table(lines))


def _replace(path: pathlib.Path, text: str) -> None:
    """Writes a file that a browser may read at any time, and that the run may write at the same time."""
    replace(path, text.encode(), ".live")
