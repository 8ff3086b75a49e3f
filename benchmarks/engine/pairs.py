"""Two forms of fljax in alternating pairs.

The two forms are this checkout and that of ``--against`` ("before"), data on the device and on the host (``--host``),
or programs with and without YNNPACK's fused kernels. Workloads of rounds have a process for each form, and one is
halted while the other runs; who begins is drawn. ``coalitions``, ``table`` and ``certify`` are whole calls of
``fljax.games`` in place of rounds. ``first_round`` (of W1b) and ``quick_start`` (the command) are fresh processes
without compiled programs, and with ``_warm`` such that read those of a process before. CPU-seconds are those of the
processes, all threads.

Of every pair the ratio of the second form to the first is kept (above 1: the second one is slower); the table has the
median with a 95 % interval (bootstrap over pairs). Times are medians of a round, or of a process. Growth is of
resident memory over all turns, which have as many rounds in both. Tables that the quick start prints must be equal.
"""

from __future__ import annotations

import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import environment
from benchmarks.peers.environments import OWN
from benchmarks.peers.measuring import Entrant, enter, export
from benchmarks.peers.workers import Contestant, Worker, WorkerError
from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.reporting import ROOT, Row, names_in

_STEP: dict[str, Any] = {"clients": 2, "cohort": 2, "samples": 8, "distinct": 16, "batch": 8}
ROUNDS = {
    name: WORKLOADS[name] for name in ("W1a", "W1b", "W2", "W3", "W3r", "W5", "coalitions", "table", "certify")
} | {
    "ResNet18": WORKLOADS["W4"]._replace(
        name="ResNet18", title="ResNet18 with GroupNorm on 32x32x3, 2 of 2 clients, 1 step of 8", **_STEP
    ),
    "ragged": WORKLOADS["W1a"]._replace(
        name="ragged", title="as W1a, but clients' shares of the rows are drawn from Dirichlet(0.5)", spread=0.5
    ),
}
PROCESSES = ("first_round", "first_round_warm", "quick_start", "quick_start_warm")
Spent = tuple[float, float]  # seconds, and CPU-seconds
Turn = Callable[[], Spent]


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each workload."""
    forms = forms_of(options)
    for name in names_in(options.workloads, (*ROUNDS, *PROCESSES), "workload"):
        with tempfile.TemporaryDirectory(prefix="fljax-pairs-") as scratch:
            try:
                if name in ROUNDS:
                    yield of_rounds(ROUNDS[name], forms, options, Path(scratch))
                else:
                    yield of_processes(name, forms, options, Path(scratch))
            except WorkerError as reason:
                yield name, f"skipped: {reason}"


def forms_of(options: Namespace) -> list[Contestant]:
    """The two forms that the options ask for."""
    shared = ("--clients", "auto", "--devices", options.devices)
    if options.host:
        more = {"device": (), "host": ("--host",)}
    elif len(options.sources) == 1:
        more = {"with fused kernels": (), "without": ("--unfused",)}
    else:
        more = {title: ("--source", str(folder)) for title, folder in options.sources.items()}
    return [
        Contestant(title, "fljax", OWN, "fljax_.py", ((*shared, *words),), tuple(ROUNDS))
        for title, words in more.items()
    ]


def of_rounds(workload: Workload, forms: list[Contestant], options: Namespace, scratch: Path) -> Row:
    """Turns of two processes, one of which is halted while the other runs."""
    file = export(workload, scratch)
    entrants: list[Entrant] = []
    try:
        for form in forms:
            entrants.append(enter(form, sys.executable, workload, file, scratch, options.seconds, print))
        rounds = options.rounds or min(each.rounds for each in entrants)

        def turn_of(worker: Worker) -> Turn:
            def turn() -> Spent:
                before = worker.processor_seconds()
                worker.resume()
                seconds = worker.ask("rounds", count=rounds)["seconds"]
                worker.halt()
                return seconds / rounds, worker.processor_seconds() - before

            return turn

        turns = [turn_of(each.worker) for each in entrants]
        before = [each.worker.resident() for each in entrants]
        if options.rounds:  # programs may depend on the number
            alternating(turns, 1)
        spent = alternating(turns, options.pairs)
        grown = [f"{(each.worker.resident() - had) / 2**20:+.0f}" for each, had in zip(entrants, before, strict=True)]
    finally:
        for each in entrants:
            each.worker.close()
    return workload.name, workload.title, *cells(spent, 1e3), entrants[0].first_round, entrants[1].first_round, *grown


def of_processes(name: str, forms: list[Contestant], options: Namespace, scratch: Path) -> Row:
    """Turns of fresh processes; warm ones read the programs of one that is not counted."""
    warm = name.endswith("_warm")
    quick = name.startswith("quick_start")
    file = Path() if quick else export(WORKLOADS["W1b"], scratch)
    printed: list[str] = []

    def turn_of(form: Contestant) -> Turn:
        cache = scratch / f"programs-{form.name}"

        def turn() -> Spent:
            if not warm:
                shutil.rmtree(cache, ignore_errors=True)
            if quick:
                found, table = quick_start(source_of(form), cache, scratch / "run")
                printed.append(table)
                return found
            return first_round(form, file, cache, scratch / "log")

        return turn

    turns = [turn_of(form) for form in forms]
    if warm:
        alternating(turns, 1)
    spent = alternating(turns, options.pairs)
    if len(set(printed)) > 1:
        raise SystemExit("expected that both forms print the same tables, got:\n" + "\n".join(dict.fromkeys(printed)))
    title = "the command, from start to end" if quick else "to the end of W1b's first round, without imports and data"
    return name, f"{title}, {'warm' if warm else 'cold'}", *cells(spent, 1)


def source_of(form: Contestant) -> Path:
    """The checkout of a form."""
    words = form.variants[0]
    return Path(words[words.index("--source") + 1]) if "--source" in words else ROOT


def first_round(form: Contestant, file: Path, cache: Path, log: Path) -> Spent:
    """A fresh process, from its first call to the end of one round; CPU-seconds are those of that time."""
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    worker = Worker(form, sys.executable, form.variants[0], file, log, kept)
    try:
        before = worker.processor_seconds()
        seconds = worker.ask("first_round", out=str(log.with_suffix(".npz")))["seconds"]
        return seconds, worker.processor_seconds() - before
    finally:
        worker.close()


def quick_start(source: Path, cache: Path, folder: Path) -> tuple[Spent, str]:
    """``fljax run configs/quickstart.toml`` of a checkout, and the table that it prints."""
    shutil.rmtree(folder, ignore_errors=True)
    place = environment(PYTHONPATH=str(source), FLJAX_COMPILATION_CACHE=str(cache))
    command = [sys.executable, "-m", "fljax", "run", str(ROOT / "configs" / "quickstart.toml"), "--out", str(folder)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=place, cwd=folder.parent)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise WorkerError(f"the quick start of {source.name} ended with {done.returncode}: {done.stderr[-300:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (wall, cpu), done.stdout.split("Results:")[0]


def alternating(turns: list[Turn], pairs: int) -> list[list[Spent]]:
    """What both took in each pair; who begins is drawn."""
    order, found = random.Random(0), list[list[Spent]]()
    for _ in range(pairs):
        spent = {place: turns[place]() for place in order.sample((0, 1), 2)}
        found.append([spent[0], spent[1]])
    return found


def cells(pairs: list[list[Spent]], scale: float) -> list[str]:
    """Median times of both, and the ratios of the clock and of the CPU."""
    times = [f"{scale * statistics.median(pair[place][0] for pair in pairs):.2f}" for place in (0, 1)]
    return times + [ratio([second[kind] / first[kind] for first, second in pairs]) for kind in (0, 1)]


def ratio(ratios: list[float]) -> str:
    """The median with its interval."""
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def interval(ratios: list[float], draws: int = 4000) -> tuple[float, float]:
    """Of the median, with 95 % confidence: percentiles over samples of the pairs with replacement."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[round(0.025 * draws)], medians[round(0.975 * draws) - 1]
