"""The figure of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from fljax.metrics import over_seeds
from fljax.report.style import INK, Style, bare, fitted, head, panel, printable, styles, write_percents
from fljax.report.tables import is_share, title
from fljax.results.events import at_end
from fljax.results.records import is_lower
from fljax.results.sweeps import Best, axes_of, best, in_words, number, places_of, problem_axes


def sweep_picture(metrics: xr.Dataset, heading: str = "") -> Figure:
    """Draws the sweep's metric at the last evaluation over the grid.

    One axis of numbers gives lines, and one of texts a heat map of algorithms by texts. Two axes give a heat map for
    each algorithm. Of more axes, the first two with several values are drawn; on the others, each algorithm has its
    best value, and the heading says so.
    """
    metric = str(metrics.attrs["metric"])
    names = axes_of(metrics)
    drawn = sorted(names, key=lambda name: (metrics.sizes[name] < 2, names.index(name)))[:2]
    if len(drawn) == 2 and metrics.sizes[drawn[1]] < 2:
        drawn = drawn[:1]
    chosen: dict[str, list[Best]] = {}
    for choice in best(metrics, metric):
        if choice.criterion == metric and _is_drawn(metrics, choice, drawn):
            chosen.setdefault(choice.algorithm, []).append(choice)
    labels = [label for label in map(str, metrics["algorithm"].values) if label in chosen]
    last = at_end(metrics)[metric]
    tables = {label: _at_best(last, metrics, label, drawn, chosen[label]) for label in labels}
    if len(drawn) == 2:
        figure = _maps(metrics, drawn, tables, chosen)
    elif not np.issubdtype(metrics[drawn[0]].dtype, np.number):
        figure = _map_of_text(metrics, drawn[0], tables, chosen)
    else:
        beside = sum(1 + _legend_text(label).count("\n") for label in labels)  # lines of the legend
        figure = Figure(figsize=(8.6, max(4.8, 0.2 * beside + 1.0)), layout="constrained")
        _lines(panel(figure), metrics, drawn[0], tables, chosen, styles(labels))
    rest = [name for name in names if name not in drawn and metrics.sizes[name] > 1]
    first = {name: metrics[name].values[0].item() for name in rest if name in problem_axes(metrics)}
    words = [f"{name} = {number(value)}" for name, value in first.items()]
    others = ", ".join(name for name in rest if name not in first)
    note = ", ".join([*words, *([f"at each algorithm's best {others}"] if others else [])])
    head(figure, heading, note, size=14)
    return figure


def _legend_text(label: str) -> str:
    return fitted(printable(label, 400), 2.6, 10)


def _is_drawn(metrics: xr.Dataset, choice: Best, drawn: Sequence[str]) -> bool:
    """Whether a best cell has the first value on each axis of the data or the model that is not drawn."""
    apart = [name for name in problem_axes(metrics) if name not in drawn]
    return all(choice.cell[name] == metrics[name].values[0].item() for name in apart)


def _diverged(metrics: xr.Dataset, label: str, drawn: Sequence[str], chosen: Sequence[Best]) -> np.ndarray:
    """``[drawn axes]``: whether a seed diverged, at the best cell's value on every other axis."""
    if "diverged" not in metrics:
        return np.zeros([metrics.sizes[name] for name in drawn], bool)
    return np.asarray((_at_best(metrics["diverged"], metrics, label, drawn, chosen) >= 0).any(axis=-1))


def _at_best(
    values: xr.DataArray, metrics: xr.Dataset, label: str, drawn: Sequence[str], chosen: Sequence[Best]
) -> np.ndarray:
    """``[drawn axes, seed]``; each data set and model has its own best cell, NaN if it has none."""
    values, problems = values.sel(algorithm=label), problem_axes(metrics)
    found = np.full([*(metrics.sizes[name] for name in drawn), metrics.sizes["seed"]], np.nan)
    for choice in chosen:
        at = places_of(metrics, choice.cell)
        where = tuple(at[name] if name in problems else slice(None) for name in drawn)
        at |= dict.fromkeys(drawn, slice(None))
        found[where] = np.asarray(values.isel(at).transpose(*drawn, "seed").values, float)[where]
    return found


def _place(axes: Axes, values: np.ndarray, name: str) -> np.ndarray:
    """Positions of an axis's values; sets a logarithmic scale if ``is_logarithmic``."""
    axes.set_xlabel(name)
    if is_logarithmic(values):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    if len(values) <= 8:
        axes.set_xticks(values, [f"{value:g}" for value in values])
    elif is_logarithmic(values):
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return values


def is_logarithmic(values: np.ndarray) -> bool:
    """Whether positive values are spaced more evenly by their ratios than by their differences."""
    ordered = np.sort(np.asarray(values, float))
    if len(ordered) < 3 or ordered[0] <= 0:
        return False
    ratios, differences = np.diff(np.log(ordered)), np.diff(ordered)
    return bool(np.std(ratios) / np.mean(ratios) < np.std(differences) / np.mean(differences))


def _lines(
    axes: Axes,
    metrics: xr.Dataset,
    name: str,
    tables: dict[str, np.ndarray],
    chosen: Mapping[str, Sequence[Best]],
    looks: dict[str, Style],
) -> None:
    """Draws means over seeds with bars of one standard deviation, and a star at the best cell."""
    metric = str(metrics.attrs["metric"])
    place = _place(axes, metrics[name].values, name)
    order = np.argsort(place)
    seeds, crossed, starred = metrics.sizes["seed"], False, False
    for label, values in tables.items():
        look = looks[label]
        mean, std, _ = over_seeds(values, axis=-1)
        spread = np.nan_to_num(std, posinf=np.inf)[order] if seeds > 1 else None
        shown: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "elinewidth": 1, **look.line}
        axes.errorbar(place[order], mean[order], spread, label=_legend_text(label), **shown)
        gone = _diverged(metrics, label, [name], chosen[label]) & np.isfinite(mean)
        if gone.any():
            axes.plot(place[gone], mean[gone], marker="x", markersize=11, linestyle="none", color=look.colour, zorder=4)
            crossed = True
        for choice in [] if name in problem_axes(metrics) else chosen[label]:
            at, starred = places_of(metrics, choice.cell)[name], True
            star = {"marker": "*", "markersize": 17, "markeredgecolor": "white", "zorder": 5}
            axes.plot(place[at], mean[at], color=look.colour, **star)
    band = f"; bars: ± 1 std over {seeds} seeds" if seeds > 1 else ""
    marks = ["; star: best"] * starred + ["; cross: a seed diverged"] * crossed
    axes.set_xlabel(f"{name}{band}{''.join(marks)}")
    axes.set_ylabel(title(metric))
    if is_share(metric):
        write_percents(axes.yaxis)
    axes.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(1.01, 1.0))  # beside, never over lines


class _Map(NamedTuple):
    """A heat map: means over seeds, where a seed diverged, and the places of best cells."""

    heading: str
    mean: np.ndarray  # [row, column]
    gone: np.ndarray
    best: Sequence[tuple[int, int]]


def _maps(
    metrics: xr.Dataset, drawn: Sequence[str], tables: dict[str, np.ndarray], chosen: Mapping[str, Sequence[Best]]
) -> Figure:
    """Draws a heat map for each algorithm, with a frame at the best cell."""
    framed, found = not set(drawn) <= set(problem_axes(metrics)), list[_Map]()
    for label, values in tables.items():
        places = [places_of(metrics, choice.cell) for choice in chosen[label]] if framed else []
        best_cells = [(int(place[drawn[0]]), int(place[drawn[1]])) for place in places]
        gone = _diverged(metrics, label, drawn, chosen[label])
        found.append(_Map(label, over_seeds(values, axis=-1).mean, gone, best_cells))
    rows, columns = ([number(value) for value in metrics[name].values.tolist()] for name in drawn)
    return _drawn_maps(found, rows, columns, str(metrics.attrs["metric"]), drawn, 1.5)


def _map_of_text(
    metrics: xr.Dataset, name: str, tables: dict[str, np.ndarray], chosen: Mapping[str, Sequence[Best]]
) -> Figure:
    """Draws one heat map, whose rows are all algorithms, with a frame at the best one for each text."""
    labels = list(map(str, metrics["algorithm"].values))
    empty = np.full(metrics.sizes[name], np.nan)
    mean = np.stack([over_seeds(tables[label], axis=-1).mean if label in tables else empty for label in labels])
    gone = np.stack([_diverged(metrics, label, [name], chosen.get(label, ())) for label in labels])
    columns = [fitted(printable(in_words(value), 400), 1.1, 10) for value in metrics[name].values.tolist()]
    score = -mean if is_lower(metrics[str(metrics.attrs["metric"])]) else mean
    # A cell of which a seed diverged is the best one only if there is no other.
    score = np.where(np.isfinite(score), score - 1e6 * gone, -np.inf)
    best_cells = [(int(of.argmax()), place) for place, of in enumerate(score.T) if np.isfinite(of).any()]
    found = _Map("", mean, gone, best_cells)
    rows = [fitted(printable(label, 400), 2.6, 10) for label in labels]
    return _drawn_maps([found], rows, columns, str(metrics.attrs["metric"]), ("", name), 3.0)


def _drawn_maps(
    maps: Sequence[_Map], rows: Sequence[str], columns: Sequence[str], metric: str, names: Sequence[str], beside: float
) -> Figure:
    """Draws heat maps with one colour scale; ``beside`` inches are for their rows' labels."""
    lines = max(label.count("\n") for label in columns)
    width = max(3.4, (1.2 if lines else 0.75) * len(columns) + beside)
    height = max(2.8, 0.45 * len(rows) + 1.5 + 0.2 * lines)
    across = max(1, min(3, len(maps)))
    down = max(1, -(-len(maps) // across))
    heads = [fitted(printable(each.heading, 400), 0.85 * width, 11, bold=True) for each in maps]
    height += 0.2 * max((head.count("\n") for head in heads), default=0)
    figure = Figure(figsize=(width * across + 1, height * down + 0.8), layout="constrained")
    finite = [float(value) for each in maps for value in each.mean[np.isfinite(each.mean)]]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    image: Any = None
    panels, marked, framed = [], False, any(each.best for each in maps)
    for place, (heading, (_, mean, gone, best_cells)) in enumerate(zip(heads, maps, strict=True)):
        axes = panel(figure, down, across, place)
        bare(axes)
        panels.append(axes)
        image = axes.imshow(mean, cmap="viridis", vmin=low, vmax=high, aspect="auto")
        axes.set_title(heading, fontsize=11, fontweight="bold", color=INK)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel=names[1], ylabel=names[0])
        gone = gone & np.isfinite(mean)
        marked = marked or bool(gone.any())
        for row, column in np.argwhere(np.isfinite(mean)):
            value = float(mean[row, column])
            bright = value > (low + high) / 2
            text = (f"{100 * value:.1f}" if is_share(metric) else f"{value:.3g}") + "†" * bool(gone[row, column])
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if bright else "white")
        for row, column in best_cells:
            corner = (float(column) - 0.47, float(row) - 0.47)
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor="#D55E00", linewidth=3))
    if image is not None:
        marks = ["frame: best"] * framed + ["†: a seed diverged"] * marked
        said = f"{chr(10) if marked else ' '}({'; '.join(marks)})" if marks else ""
        bar = figure.colorbar(image, ax=panels, shrink=0.9, label=f"{title(metric)}{said}")
        bar.outline.set_visible(False)  # type: ignore[operator]
        if is_share(metric):
            write_percents(bar.ax.yaxis)
    return figure
