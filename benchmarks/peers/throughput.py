"""fljax beside its peers, on the same data, in interleaved passes.

Medians over passes. *fljax is*: how many times as fast fljax is in the strategy in bold, a median of the ratios pass
by pass. *Of the product*: share of what the fastest float32 matrix product of the same pass reaches. *Error*:
relative error of the update after one round against float64; "unequal" if it is above the tolerance. The README of
this folder says how it is measured and read.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import environments
from benchmarks.peers.measuring import Entrant, enter, export, passes, peak_of, ratio
from benchmarks.peers.products import in_words, multiplying, reference
from benchmarks.peers.workers import FAMILIES, LINE_UP, STRATEGIES, Contestant, WorkerError
from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.reporting import Row, names_in

FLJAX, OTHERS, INK = "#D55E00", "#8DA9C4", "#222222"
PICTURED = ("W1b", "W1a", "W2", "W3", "W4", "W5", "W6", "BL", "PF")


def say(line: str) -> None:
    """Prints a line beside the rows."""
    print(line, flush=True)


def measure(options: Namespace) -> Iterator[Row]:
    """The rows of workload after workload: a line about it, then its contestants."""
    chosen = names_in(options.workloads, tuple(WORKLOADS), "workload")
    families = names_in(options.contestants or ",".join(FAMILIES), FAMILIES, "family of contestants")
    strategies = names_in(options.strategies or ",".join(STRATEGIES), STRATEGIES, "strategy")
    left_out = {f"fljax, {strategy}" for strategy in STRATEGIES} - {f"fljax, {strategy}" for strategy in strategies}
    line_up = [entry for entry in LINE_UP if entry.family in families and entry.name not in left_out]
    missing = absent(line_up, Path(options.environments or environments.FOLDER), options.make_environments)
    versions: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="fljax-throughput-") as scratch:
        for name in chosen:
            try:
                yield from of_workload(WORKLOADS[name], line_up, missing, options, Path(scratch), versions)
            except WorkerError as reason:
                yield name, f"skipped: {reason}"
    for name, packages in versions.items():
        yield "versions", f"{name}: {', '.join(' '.join(each) for each in packages.items())}"


def absent(line_up: Sequence[Contestant], folder: Path, make: bool) -> dict[str, str]:
    """Environments that are not to be had, with the reason."""
    missing = {}
    for name in sorted({contestant.environment for contestant in line_up} - {environments.OWN}):
        reason = None
        if environments.python_of(folder, name) is None:
            say(f"making the environment {name}" if make else f"the environment {name} has not been made")
            reason = environments.make(folder, name) if make else "it has no environment; see --make-environments"
        if reason is not None:
            missing[name] = reason
    return missing


def of_workload(
    workload: Workload,
    line_up: Sequence[Contestant],
    missing: Mapping[str, str],
    options: Namespace,
    scratch: Path,
    versions: dict[str, dict[str, str]],
) -> Iterator[Row]:
    """All contestants of one workload."""
    say(f"\n{workload.name}: {workload.title}")
    file, folder = export(workload, scratch), Path(options.environments or environments.FOLDER)
    entrants: list[Entrant] = []
    skipped: dict[str, str] = {}
    try:
        for contestant in (each for each in line_up if workload.name in each.workloads):
            python = environments.python_of(folder, contestant.environment)
            if python is None:
                skipped[contestant.name] = missing[contestant.environment]
                continue
            try:
                entrants.append(enter(contestant, python, workload, file, scratch, options.seconds, say))
            except WorkerError as reason:
                skipped[contestant.name] = str(reason)
        count = max(1, min(options.passes, workload.passes))
        with multiplying(file, folder, scratch) as multipliers:
            rates, products, lost = passes(entrants, workload, count, multipliers, say)
        yield (
            workload.name,
            f"{workload.title}: {workload.client_steps:,} client-steps per round, "
            f"{workload.flops_per_client_step / 1e6:,.2f} MFLOP each; tolerance {workload.tolerance:.0e}; "
            f"{in_words(products)}",
        )
        # Others are compared with fljax's first strategy, and not with the fastest, which is known after the fact.
        own = next((each.contestant.name for each in entrants if each.contestant.family == "fljax"), None)
        for entrant in entrants:
            versions.setdefault(entrant.contestant.environment, {}).update(entrant.worker.versions)
            yield row_of(entrant, workload, rates, reference(products).gflops, own)
            if workload.steps is not None and entrant.contestant.name == own:
                yield workload.name, f"{own}: drawing all batches of a round takes {drawing(entrant)}"
        yield from ((workload.name, name, f"skipped: {reason}") for name, reason in (skipped | lost).items())
    finally:
        for entrant in entrants:
            entrant.worker.close()
        file.unlink(missing_ok=True)


def row_of(
    entrant: Entrant, workload: Workload, rates: Mapping[str, list[Any]], fastest: list[float], own: str | None
) -> Row:
    """What is told of one contestant; ``fastest`` has the reference product of every pass."""
    name = entrant.contestant.name
    known = [rate for rate in rates[name] if rate is not None]
    if not known:
        return workload.name, name, "skipped: it died in the first pass"
    flops, median = workload.flops_per_round / workload.client_steps / 1e9, statistics.median(known)
    shares = [rate * flops / most for rate, most in zip(rates[name], fastest, strict=True) if rate is not None]
    times = None if own is None or name == own else ratio(rates[own], rates[name])
    label = f"{name} ({entrant.variant})" if len(entrant.tried) > 1 else name
    return (
        workload.name,
        f"**{label}**" if name == own else label,
        median,
        f"{min(known):,.0f} to {max(known):,.0f}",
        None if times is None else f"{times:.2f} x",
        f"{1000 * workload.client_steps / median:,.1f}",
        f"{median * flops:.1f}",
        f"{100 * statistics.median(shares):.0f} %",
        f"{entrant.first_round:.1f} s",
        peak_of(entrant),
        f"{entrant.error:.0e}" + ("" if entrant.error <= workload.tolerance else " (unequal!)"),
    )


def drawing(entrant: Entrant) -> str:
    """Milliseconds that drawing all batches takes."""
    entrant.worker.resume()
    try:
        return f"{1000 * entrant.worker.ask('draw', count=100)['seconds'] / 100:.2f} ms"
    except WorkerError as reason:
        return f"an unknown time: {reason}"
    finally:
        entrant.worker.halt()


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Bars on a logarithmic axis, a panel for each workload with two contestants or more.

    A contestant whose parameters are not those of the others after one round did other work and has no bar.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    panels: list[tuple[str, list[tuple[float, str]]]] = []
    for name, own in itertools.groupby(rows, lambda row: str(row["workload"])):
        found = [
            (row["client-steps/s"], row["contestant"]) for row in own if "equal" not in row.get("error", "unequal")
        ]
        shown = [("fljax" if "**" in label else label) for _, label in found]
        bars = [(rate, who) for (rate, _), who in zip(found, shown, strict=True) if not who.startswith("fljax,")]
        if name in PICTURED and len(bars) > 1:
            panels.append((name, sorted(bars)))
    if not panels:
        return
    heights = [0.7 + 0.27 * len(bars) for _, bars in panels]
    figure = Figure(figsize=(9, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, (name, bars) in zip(grid[:, 0], panels, strict=True):
        colours = [FLJAX if who == "fljax" else OTHERS for _, who in bars]
        bar = axes.barh([who for _, who in bars], [rate for rate, _ in bars], color=colours, height=0.72)
        axes.bar_label(bar, [f"{rate:,.0f}" for rate, _ in bars], padding=3, fontsize=9, color=INK)
        axes.set_xscale("log")
        axes.set_xlim(bars[0][0] / 2, bars[-1][0] * (bars[-1][0] / bars[0][0]) ** 0.25 * 2)
        axes.set_title(f"{name}  {WORKLOADS[name].title}", fontsize=9.5, loc="left", color=INK)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.spines[["top", "right", "left"]].set_visible(False)
    grid[-1, 0].set_xlabel("client-steps per second (logarithmic; longer is faster)", fontsize=9, color=INK)
    figure.savefig(file, dpi=100)
