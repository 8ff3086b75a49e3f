"""What ``scaling.py`` shows and saves: tables in the terminal and in Markdown, a JSON file, a picture of all curves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from rich.console import Console
from rich.table import Table
from tables import FLJAX, INK, OTHERS

HEADINGS = (
    "client-steps/s",
    "min to max",
    "ms per round",
    "evaluation ms",
    "peak MiB",
    "growth",
    "above floor",
    "data",
    "estimate",
    "at a time",
)
MEBIBYTE = 2**20
UNSURE = 20 * MEBIBYTE  # imports and compiler vary by so much
ABOVE, ESTIMATE = FLJAX, "#0072B2"


def _label(point: dict[str, Any]) -> str:
    return f"{point['x']:,}" + ("" if point["series"] == "auto" else f" ({point['series']})")


def _median(point: dict[str, Any]) -> float:
    return statistics.median(point["client_steps_per_second"])


def _above(point: dict[str, Any], floor: float | None) -> float | None:
    """How far the peak is above that of the same program with next to no data."""
    return None if floor is None else max(0.0, point["peak_bytes"] - floor)


def _size(count: float | None) -> str:
    return "-" if count is None else f"{count / MEBIBYTE:,.1f}" if count < 10 * MEBIBYTE else f"{count / MEBIBYTE:,.0f}"


def _cells(point: dict[str, Any], floor: float | None) -> list[str]:
    """One row, or a row with a reason."""
    if "failed" in point:
        return [f"failed: {point['failed']}"]
    rates, lanes = point["client_steps_per_second"], point["execution"].get("clients")
    return [
        f"{_median(point):,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{1000 * point['client_steps_per_round'] / _median(point):,.2f}",
        f"{1000 * point['seconds_evaluate']:,.1f}",
        _size(point["peak_bytes"]),
        _size(point["peak_bytes"] - point["resident_before_bytes"]),
        _size(_above(point, floor)),
        _size(point["data_bytes"]),
        _size(point["estimate_bytes"]),
        "-" if lanes is None else f"{int(lanes):,}" + (f" x {point['devices']}" if point["devices"] > 1 else ""),
    ]


def show(console: Console, curve: dict[str, Any]) -> None:
    """Prints one curve."""
    table = Table(title=curve["title"], title_justify="left")
    for heading in (curve["axis"], *HEADINGS):
        table.add_column(heading, justify="right")
    for point in curve["points"]:
        if "failed" in point:
            console.print(f"{_label(point)}: {_cells(point, None)[0]}", markup=False)
        else:
            table.add_row(_label(point), *_cells(point, curve["floor_peak_bytes"]))
    console.print(table)


def save(report: dict[str, Any], out: Path) -> None:
    """Writes JSON, Markdown and picture, all with one stem."""
    out.write_text(json.dumps(report, indent=1) + "\n")
    drawn = picture(report, out.with_suffix(".png"))
    out.with_suffix(".md").write_text(markdown(report, out.with_suffix(".png").name if drawn else None))


def markdown(report: dict[str, Any], image: str | None) -> str:
    """The whole report as Markdown."""
    hardware = report["hardware"]
    lines = [
        f"# Scaling, {report['date'][:10]}",
        "",
        f"    {report['command']}",
        "",
        f"{hardware['cores']} cores of {hardware['cpu']}, {hardware['memory_gibibytes']} GiB, {hardware['system']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        + f". It took {report['seconds']:.0f} s.",
        "",
        "Medians over blocks of rounds, each point in a process of its own. Memory in MiB: *peak* is the process,",
        "*growth* what that is above imports and data, the compiler included; *above floor* what it is above the peak",
        "of the same program with next to no data, hence without imports and compiler (which vary by some 20 MiB);",
        "*data* the federation; *estimate* what fljax says that rounds hold at once on each device, with data, or a",
        "dash. *At a time*: clients side by side (x devices), as `auto` chose them.",
        "",
        *([] if image is None else [f"![client-steps per second and memory]({image})", ""]),
    ]
    for name, curve in report["curves"].items():
        lines += [
            f"## {name.capitalize()}",
            "",
            curve["title"].partition(": ")[2] + ".",
            "",
            f"| {curve['axis']} | " + " | ".join(HEADINGS) + " |",
            "|---:|" + "---:|" * len(HEADINGS),
        ]
        for point in curve["points"]:
            cells = _cells(point, curve["floor_peak_bytes"])
            lines.append(f"| {_label(point)} | " + " | ".join(cells + [""] * (len(HEADINGS) - len(cells))) + " |")
        lines.append("")
    return "\n".join(lines)


def _short(value: float, _: Any = None) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _series(points: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        found.setdefault(point["series"], []).append(point)
    return found


def _line(axes: Axes, xs: list[float], ys: list[float], label: str, color: str, style: str = "-") -> None:
    axes.plot(xs, ys, style, color=color, marker="o", markersize=4.5, linewidth=1.8, label=label)


def _speed(axes: Axes, points: list[dict[str, Any]]) -> None:
    """Medians, with the range of the blocks as bars."""
    series = _series(points)
    for (name, own), color in zip(series.items(), (FLJAX, ESTIMATE, OTHERS), strict=False):
        xs, rates = [point["x"] for point in own], [point["client_steps_per_second"] for point in own]
        middle = [statistics.median(each) for each in rates]
        _line(axes, xs, middle, name, color)
        axes.vlines(xs, [min(each) for each in rates], [max(each) for each in rates], color=color, linewidth=1.2)
    if len(series) > 1:
        axes.legend(fontsize=9, frameon=False, loc="upper left")


def _memory(axes: Axes, points: list[dict[str, Any]], floor: float | None, first: bool) -> None:
    """Peak, what of it is above the floor (if it can be told), estimate; of several series ``auto`` only."""
    own = _series(points).get("auto", points)
    xs = [point["x"] for point in own]
    _line(axes, xs, [point["peak_bytes"] / MEBIBYTE for point in own], "peak of the process", INK)
    above = [(point["x"], _above(point, floor) or 0.0) for point in own]
    above = [(x, size / MEBIBYTE) for x, size in above if size > UNSURE]
    _line(axes, [x for x, _ in above], [size for _, size in above], "of it data and rounds", ABOVE)
    told = [point for point in own if point["estimate_bytes"]]
    if told:
        sizes = [point["estimate_bytes"] / MEBIBYTE for point in told]
        _line(axes, [point["x"] for point in told], sizes, "fljax's estimate of that", ESTIMATE, "--")
    if first:
        axes.legend(fontsize=9, frameon=False, loc="upper left", borderaxespad=0.1)


def _dress(axes: Axes, points: list[dict[str, Any]]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 12 * low:  # room for two ticks at least
        centre = (low * high) ** 0.5
        axes.set_ylim(centre / 3.5, centre * 3.5)
    xs = sorted({point["x"] for point in points})
    if len(xs) == 2:
        axes.set_xlim(xs[0] / (xs[1] / xs[0]) ** 0.5, xs[1] * (xs[1] / xs[0]) ** 0.5)
    axes.xaxis.set_major_locator(FixedLocator(xs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(float(f"{value:.1g}"))))
    axes.yaxis.set_major_locator(LogLocator(10, (1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(_short))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=9, colors=INK)
    axes.grid(color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def picture(report: dict[str, Any], file: Path) -> bool:
    """A row per curve, speed on the left and memory on the right, all logarithmic; False where there is no point."""
    curves = []
    for name, curve in report["curves"].items():
        points = [point for point in curve["points"] if "failed" not in point]
        if points:
            curves.append((name, curve, points))
    if not curves:
        return False
    figure = Figure(figsize=(9, 2.05 * len(curves) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(curves), 2, squeeze=False)
    for place, (_, curve, points) in enumerate(curves):
        speed, memory = grid[place]
        _speed(speed, points)
        _memory(memory, points, curve["floor_peak_bytes"], place == 0)
        for axes in (speed, memory):
            _dress(axes, points)
            axes.set_xlabel(curve["axis"], fontsize=9.5, color=INK)
    low, high = grid[0, 1].get_ylim()
    grid[0, 1].set_ylim(low, high * (high / low) ** 0.55)  # room for the legend
    grid[0, 0].set_title("client-steps per second", fontsize=11, loc="left", color=INK)
    grid[0, 1].set_title("memory, MiB", fontsize=11, loc="left", color=INK)
    figure.savefig(file, dpi=100)
    return True
