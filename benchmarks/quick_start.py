"""Seconds of the quick start before and after a change: ``python benchmarks/quick_start.py --against FOLDER``.

The command ``fljax run configs/quickstart.toml`` runs in alternating pairs: the fljax of another checkout and this one,
in an order drawn anew for each pair. *Cold* runs have no compiled programs on disk; *warm* ones read those of the cold
run before. Seconds of CPU are user and system time of the process, all threads. Of every pair the ratio is kept; the
table gives the median with a 95 % interval (bootstrap over pairs). The printed tables are compared letter by letter.

Then each form runs once more with marks: seconds of CPU between the steps of the run, all threads; seconds that JAX
says it traced, lowered and compiled (or read a program from the disk), which pass on several threads at once; and
seconds of importing, by ``python -X importtime``, which makes imports slower. The run with marks imports part
of fljax before the command begins, and its marks end before the process does.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import random
import re
import resource
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from pairs import interval
from throughput import RESULTS, hardware

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "quickstart.toml"
KINDS = ("cold", "warm")
# JAX's names of what it does before a program runs.
STEPS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling or reading",
}
PHASES = ("imports, config", "data", "standalone models", "first algorithm", "second algorithm", "report, end")


class Spent(NamedTuple):
    """One run: seconds of CPU and of the clock, and what it printed."""

    cpu: float
    wall: float
    printed: str


def main() -> None:
    """Measures pairs, then phases, and writes the tables."""
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--pairs", type=int, default=5, help="of cold runs, and of warm ones")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-quickstart-time.md")
    options = parser.parse_args()
    sources = {"before": options.against.resolve(), "after": ROOT}
    found: dict[str, dict[str, list[Spent]]] = {kind: {title: [] for title in sources} for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="fljax-quick-") as scratch:
        place = Path(scratch)
        for turn in range(options.pairs):
            order = random.Random(turn).sample(list(sources), 2)
            for title in order:
                shutil.rmtree(place / title, ignore_errors=True)  # compiled programs
            for kind in KINDS:
                for title in order:
                    found[kind][title].append(spent(sources[title], place / title, place / "run"))
                pair = [found[kind][title][-1] for title in sources]
                print(kind, *(f"{each.cpu:.1f} s of CPU, {each.wall:.1f} s;" for each in pair), flush=True)
        phases = {}
        for title, source in sources.items():
            shutil.rmtree(place / title, ignore_errors=True)
            for kind in KINDS:
                phases[kind, title] = marked(source, place / title, place)
        imported = {title: imports(source, place / title, place) for title, source in sources.items()}
    options.out.write_text(written(options.pairs, found, phases, imported), encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


def environment(source: Path, cache: Path) -> dict[str, str]:
    """Of a process with this checkout's fljax and this cache of compiled programs."""
    return os.environ | {"PYTHONPATH": str(source), "FLJAX_COMPILATION_CACHE": str(cache)}


def spent(source: Path, cache: Path, folder: Path) -> Spent:
    """Runs the quick start once."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "fljax", "run", str(CONFIG), "--out", str(folder)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment(source, cache), cwd=folder.parent
    ).stdout
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, printed)


def marked(source: Path, cache: Path, scratch: Path) -> dict[str, float]:
    """Seconds by phase of one run."""
    folder, told = scratch / "run", scratch / "marks.json"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", str(told)]
    command += ["run", str(CONFIG), "--out", str(folder), "--quiet"]
    subprocess.run(command, check=True, capture_output=True, env=environment(source, cache), cwd=scratch)
    return json.loads(told.read_text(encoding="utf-8"))


def imports(source: Path, cache: Path, scratch: Path) -> tuple[float, int]:
    """Seconds of importing in a warm run, and the number of modules."""
    shutil.rmtree(scratch / "run", ignore_errors=True)
    command = [sys.executable, "-X", "importtime", "-m", "fljax", "run", str(CONFIG)]
    command += ["--out", str(scratch / "run"), "--quiet"]
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment(source, cache), cwd=scratch
    ).stderr
    own = [int(each) for each in re.findall(r"^import time:\s+(\d+) \|", told, re.MULTILINE)]
    return sum(own) / 1e6, len(own)


def inside(told: Path, arguments: list[str]) -> None:
    """In the process that is measured: the command, with marks at its steps."""
    from jax import monitoring

    seconds: dict[str, float] = dict.fromkeys((*PHASES, *STEPS.values()), 0.0)
    phase, since = PHASES[0], 0.0

    def mark(name: str) -> None:
        nonlocal phase, since
        now = time.process_time()
        seconds[phase] += now - since
        phase, since = name, now

    def heard(event: str, duration_secs: float, **_: Any) -> None:
        if event in STEPS:
            seconds[STEPS[event]] += duration_secs

    monitoring.register_event_duration_secs_listener(heard)
    rooms = importlib.util.find_spec("fljax.experiments") is not None  # a checkout of 2026-11-26 has none
    experiment: Any = importlib.import_module("fljax.experiments.run" if rooms else "fljax.experiment")
    whole, labels = experiment.run, list[str]()

    def run(*given: Any, on_event: Any = None, **named: Any) -> Any:
        def listen(event: Any) -> None:
            if event.stage == "standalone":
                mark(PHASES[2])
            if event.stage == "train" and event.label not in labels:
                labels.append(event.label)
                mark(PHASES[2 + len(labels)])
            if on_event is not None:
                on_event(event)

        mark(PHASES[1])
        found = whole(*given, on_event=listen, **named)
        mark(PHASES[5])
        return found

    experiment.run, sys.argv = run, ["fljax", *arguments]
    try:
        runpy.run_module("fljax", run_name="__main__")
    finally:
        mark(PHASES[5])
        told.write_text(json.dumps(seconds), encoding="utf-8")


def written(
    pairs: int,
    found: dict[str, dict[str, list[Spent]]],
    phases: dict[tuple[str, str], dict[str, float]],
    imported: dict[str, tuple[float, int]],
) -> str:
    """The page."""
    tables = {each.printed.split("Results:")[0] for kind in found.values() for runs in kind.values() for each in runs}
    same = "are equal letter by letter" if len(tables) == 1 else f"DIFFER: there are {len(tables)}"
    machine = ", ".join(f"{name}: {value}" for name, value in hardware().items())
    lines = [
        "# Seconds of the quick start",
        "",
        f"{datetime.date.today()}. `python benchmarks/quick_start.py --against FOLDER --pairs {pairs}`. {machine}.",
        "",
        f"Medians of {pairs} alternating pairs. The tables that all runs print {same}.",
        "What is measured is described in the program.",
        "",
        "| | CPU before | CPU after | ratio of CPU | clock before | clock after | ratio of the clock |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, forms in found.items():
        cells = [kind]
        for what in ("cpu", "wall"):
            before, after = ([getattr(each, what) for each in forms[title]] for title in ("before", "after"))
            ratios = [new / old for old, new in zip(before, after, strict=True)]
            low, high = interval(ratios)
            cells += [f"{statistics.median(before):.1f} s", f"{statistics.median(after):.1f} s"]
            cells += [f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"]
        lines.append("| " + " | ".join(cells) + " |")
    columns = [(kind, title) for kind in KINDS for title in ("before", "after")]
    head = " | ".join(f"{kind}, {title}" for kind, title in columns)
    lines += ["", "Seconds of CPU by phase, one run each:", "", f"| | {head} |", "|---|" + "---|" * len(columns)]
    for name in PHASES:
        lines.append(f"| {name} | " + " | ".join(f"{phases[column][name]:.2f}" for column in columns) + " |")
    totals = [sum(phases[column][name] for name in PHASES) for column in columns]
    lines += ["| all | " + " | ".join(f"{each:.2f}" for each in totals) + " |", ""]
    lines += ["Of these, by JAX's count, in threads beside one another:", "", f"| | {head} |"]
    lines += ["|---|" + "---|" * len(columns)]
    for name in STEPS.values():
        lines.append(f"| {name} | " + " | ".join(f"{phases[column][name]:.2f}" for column in columns) + " |")
    told = [f"{seconds:.2f} s for {count} modules {title}" for title, (seconds, count) in imported.items()]
    return "\n".join([*lines, "", f"Importing, in a warm run: {', '.join(told)}.", ""])


if __name__ == "__main__":
    main()
