"""What a run shows and saves: a table in the terminal, a JSON file, a Markdown table and a picture beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from products import in_words, of_report
from rich.console import Console
from rich.table import Table

HEADINGS = (
    "client-steps/s",
    "min to max",
    "fljax is",
    "ms per round",
    "GFLOP/s",
    "of the product",
    "first round",
    "peak MiB",
    "error",
)
PICTURED = ("W1b", "W1a", "W2", "W3", "W4", "W5", "W6", "BL", "PF")
FLJAX, OTHERS, INK = "#D55E00", "#8DA9C4", "#222222"


def reference(contestants: dict[str, Any]) -> str | None:
    """What others are compared with: fljax's first strategy that was measured, ``auto`` if it was among them.

    Not the fastest, which would be known only after the fact.
    """
    measured = (name for name, each in contestants.items() if "client_steps_per_second" in each)
    return next((name for name in measured if name.startswith("fljax")), None)


def _number(rate: float) -> str:
    """Whole from 10 on, below with as many decimals as tell."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _cells(name: str, each: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """One row, or a row with a reason."""
    if "skipped" in each:
        return [f"skipped: {each['skipped']}"]
    rate, own = each["client_steps_per_second"], found["reference"]
    times = found["contestants"][own]["ratio_to"].get(name) if own is not None else None
    error = each["equal_work_error"]
    return [
        _number(rate["median"]),
        f"{_number(rate['min'])} to {_number(rate['max'])}",
        "-" if times is None else "1" if name == own else f"{times:.2f} x",
        f"{1000 * each['seconds_per_round']:,.1f}",
        f"{each['gflops']:.1f}",
        f"{100 * each['share_of_product' if 'share_of_product' in each else 'share_of_sgemm']:.0f} %",
        f"{each['first_round_seconds']:.1f} s",
        "-" if each["peak_mebibytes"] is None else f"{each['peak_mebibytes']:,.0f}",
        f"{error:.0e}" + ("" if each["equal_work"] else " (unequal!)"),
    ]


def _label(name: str, each: dict[str, Any]) -> str:
    return f"{name} ({each['variant']})" if len(each.get("tried", {})) > 1 else name


def show(console: Console, workload: str, found: dict[str, Any]) -> None:
    """Prints one workload."""
    if "skipped" in found:
        return
    table = Table(title=f"{workload}: {found['title']}", title_justify="left")
    table.add_column("")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name, each in found["contestants"].items():
        cells = _cells(name, each, found)
        style = "bold" if name == found["reference"] else "dim" if len(cells) == 1 else None
        if len(cells) == 1:
            console.print(f"{name}: {cells[0]}", markup=False)
        else:
            table.add_row(_label(name, each), *cells, style=style)
    console.print(table)
    for line in _drawings(found):
        console.print(line, markup=False)


def _drawings(found: dict[str, Any]) -> list[str]:
    return [
        f"{name}: drawing all batches of a round takes {1000 * each['drawing']['seconds_per_round']:.2f} ms, "
        f"{100 * each['drawing']['share_of_round']:.1f} % of the round."
        for name, each in found["contestants"].items()
        if each.get("drawing")
    ]


def save(report: dict[str, Any], out: Path) -> None:
    """Writes JSON, Markdown and picture, all with one stem."""
    out.write_text(json.dumps(report, indent=1) + "\n")
    drawn = picture(report, out.with_suffix(".png"))
    out.with_suffix(".md").write_text(markdown(report, out.with_suffix(".png").name if drawn else None))


def markdown(report: dict[str, Any], image: str | None) -> str:
    """The whole report as Markdown."""
    hardware = report["hardware"]
    lines = [
        f"# Throughput, {report['date'][:10]}",
        "",
        f"    {report['command']}",
        "",
        f"{hardware['cores']} cores of {hardware['cpu']}, {hardware['memory_gibibytes']} GiB, {hardware['system']}.",
        "Medians over interleaved passes. *fljax is*: how many times as fast fljax is in the strategy in bold, a",
        "median of the ratios pass by pass. *Of the product*: share of what the fastest float32 matrix product reaches",
        "in the same pass, of those that are measured. *Error*: relative error of the update after one round against",
        "float64.",
        "",
        *([] if image is None else [f"![bars by workload]({image})", ""]),
    ]
    for workload, found in report["workloads"].items():
        lines += [f"## {workload}: {found['title']}", ""]
        if "skipped" in found:
            lines += [f"Skipped: {found['skipped']}", ""]
            continue
        lines += [
            f"{found['client_steps_per_round']:,} client-steps per round, "
            f"{found['flops_per_client_step'] / 1e6:,.2f} MFLOP each; tolerance {found['tolerance']:.0e}; "
            f"{in_words(of_report(found))}.",
            "",
            "| | " + " | ".join(HEADINGS) + " |",
            "|---|" + "---|" * len(HEADINGS),
        ]
        for name, each in found["contestants"].items():
            cells = _cells(name, each, found)
            cells += [""] * (len(HEADINGS) - len(cells))
            label = _label(name, each)
            label = f"**{label}**" if name == found["reference"] else label
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        lines += ["", *(line + "\n" for line in _drawings(found))]
    lines += ["## Versions", ""]
    for environment, packages in report["versions"].items():
        lines.append(f"- {environment}: " + ", ".join(f"{name} {version}" for name, version in packages.items()))
    return "\n".join(lines) + "\n"


def _bars(found: dict[str, Any]) -> list[tuple[str, float]]:
    """Names and rates, fljax by the strategy that others are compared with, the slowest first.

    A contestant whose parameters are not those of the others after one round did other work and has no bar.
    """
    bars = []
    for name, each in found["contestants"].items():
        if (
            "client_steps_per_second" not in each
            or not each["equal_work"]
            or (name.startswith("fljax") and name != found["reference"])
        ):
            continue
        shown = "fljax" if name.startswith("fljax") else name
        bars.append((shown, each["client_steps_per_second"]["median"]))
    return sorted(bars, key=lambda bar: bar[1])


def _panel(axes: Axes, workload: str, found: dict[str, Any]) -> None:
    bars = _bars(found)
    names, rates = [name for name, _ in bars], [rate for _, rate in bars]
    places = list(range(len(bars)))
    axes.barh(places, rates, color=[FLJAX if name == "fljax" else OTHERS for name in names], height=0.72)
    axes.set_xscale("log")
    low, high = min(rates), max(rates)
    axes.set_xlim(low / 2, high * (high / low) ** 0.25 * 2)
    for place, (name, rate) in zip(places, bars, strict=True):
        weight = "bold" if name == "fljax" else "normal"
        axes.text(rate * 1.06, place, _number(rate), va="center", fontsize=9, color=INK, fontweight=weight)
    axes.set_yticks(places, names, fontsize=10, color=INK)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == "fljax" else "normal")
    axes.set_title(f"{workload}  {found['title']}", fontsize=9.5, loc="left", color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8, colors=INK)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def picture(report: dict[str, Any], file: Path) -> bool:
    """Bars on a logarithmic axis, a panel per workload with two contestants or more; False where there is none."""
    shown = [
        (name, report["workloads"][name])
        for name in PICTURED
        if name in report["workloads"]
        and "contestants" in report["workloads"][name]
        and len(_bars(report["workloads"][name])) > 1
    ]
    if not shown:
        return False
    heights = [0.7 + 0.27 * len(_bars(found)) for _, found in shown]
    figure = Figure(figsize=(9, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    for axes, (name, found) in zip(grid[:, 0], shown, strict=True):
        _panel(axes, name, found)
    grid[-1, 0].set_xlabel("client-steps per second (logarithmic; longer is faster)", fontsize=9, color=INK)
    figure.savefig(file, dpi=100)
    return True
