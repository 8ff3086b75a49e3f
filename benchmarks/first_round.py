"""Seconds to the first round, with and without compiled programs on disk: ``python benchmarks/first_round.py``.

Every number is the time of a fresh process from its first call to the end of one round, imports and data excluded:
fljax as it chooses itself, JAX by hand (``contestants/bare_jax.py``), with ``--against FOLDER`` the fljax of another
checkout. *Cold* processes have no compiled programs; *warm* ones read those that a process before wrote (JAX's
persistent cache). Processes run one at a time, in an order drawn anew for every repetition.

The quick start is the command ``fljax run configs/quickstart.toml`` from its start to its end, report included; its
seconds of compiling are those that each algorithm waited.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from measuring import export
from throughput import RESULTS, hardware
from workers import OWN, Contestant, Worker, WorkerError
from workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
USUAL = ("W1a", "W1b", "W2", "W3")
# The last lines of a quick start: seconds that each algorithm waited for its programs.
COMPILED = """
import sys
import xarray
found = xarray.load_dataset(sys.argv[1], engine="h5netcdf")["seconds_compile"]
print(",".join(f"{float(each):.2f}" for each in found.values.reshape(found.sizes["algorithm"], -1)[:, 0]))
"""


class Spent(NamedTuple):
    """Seconds of one process."""

    cold: list[float]
    warm: list[float]


def main() -> None:
    """Measures, and writes the table after each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--workloads", default=",".join(USUAL), help=f"comma-separated, among {', '.join(WORKLOADS)}")
    parser.add_argument("--repetitions", type=int, default=5, help="processes of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-first-round.md")
    options = parser.parse_args()
    names = [name for name in options.workloads.split(",") if name]
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise SystemExit(f"expected a known workload, got {unknown[0]!r}; valid names are {', '.join(WORKLOADS)}")
    sources = {"fljax": ROOT} if options.against is None else {"before": options.against.resolve(), "fljax": ROOT}
    rows: list[str] = []
    for name in names:
        rows += _first_rounds(name, sources, options.repetitions)
        _write(options, rows, [])
    _write(options, rows, _quick_starts(sources, options.repetitions))
    print(options.out.read_text())


def _first_rounds(name: str, sources: dict[str, Path], repetitions: int) -> list[str]:
    def form(title: str, script: str, *variant: str) -> Contestant:
        return Contestant(title, title, OWN, script, (variant,), (name,))

    forms = [form(title, "fljax_.py", "--clients", "auto", "--source", str(at)) for title, at in sources.items()]
    forms.append(form("JAX by hand", "bare_jax.py", "--clients", "scan", "--devices", "all"))
    found = {each.name: Spent([], []) for each in forms}
    with tempfile.TemporaryDirectory(prefix="fljax-first-") as scratch:
        try:
            file = export(WORKLOADS[name], Path(scratch))
        except WorkerError as reason:
            return [f"| {name} | skipped: {reason} | | |"]
        for turn in range(repetitions):
            for each in random.Random(turn).sample(forms, len(forms)):
                cache = Path(scratch) / f"{each.name}-{turn}"
                for spent in found[each.name]:
                    spent.append(_first_round(each, file, cache, Path(scratch) / "log"))
    return [f"| {name} | {title} | {_cell(spent.cold)} | {_cell(spent.warm)} |" for title, spent in found.items()]


def _first_round(contestant: Contestant, file: Path, cache: Path, log: Path) -> float:
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    worker = Worker(contestant, sys.executable, contestant.variants[0], file, log, kept)
    try:
        return worker.ask("first_round", out=str(log.with_suffix(".npz")))["seconds"]
    finally:
        worker.close()


def _quick_starts(sources: dict[str, Path], repetitions: int) -> list[str]:
    spent = {title: Spent([], []) for title in sources}
    waited: dict[str, list[list[float]]] = {title: [] for title in sources}
    with tempfile.TemporaryDirectory(prefix="fljax-quick-") as scratch:
        for turn in range(repetitions):
            for title in random.Random(turn).sample(list(sources), len(sources)):
                place = os.environ | {
                    "PYTHONPATH": str(sources[title]),
                    "FLJAX_COMPILATION_CACHE": str(Path(scratch) / f"{title}-{turn}"),
                }
                for kind, seconds in zip(("cold", "warm"), spent[title], strict=True):
                    folder = Path(scratch) / f"{title}-{turn}-{kind}"
                    config = str(ROOT / "configs" / "quickstart.toml")
                    command = [sys.executable, "-m", "fljax", "run", config, "--out", str(folder), "--quiet"]
                    began = time.perf_counter()
                    ended = subprocess.run(command, capture_output=True, text=True, env=place, cwd=scratch)
                    seconds.append(time.perf_counter() - began)
                    if ended.returncode:
                        raise SystemExit(f"the quick start of {title} ended with {ended.returncode}: {ended.stderr}")
                    if kind == "cold":
                        asked = [sys.executable, "-c", COMPILED, str(folder / "results.nc")]
                        told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
                        waited[title].append([float(each) for each in told.split(",")])
    rows = []
    for title, each in spent.items():
        columns: list[Any] = [[run[place] for run in waited[title]] for place in range(2)]
        rows.append(
            f"| {title} | {_cell(each.cold)} | {_cell(each.warm)} | {_cell(columns[0])} | {_cell(columns[1])} |"
        )
    return rows


def _cell(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _write(options: argparse.Namespace, rows: list[str], quick: list[str]) -> None:
    machine = ", ".join(f"{name}: {value}" for name, value in hardware().items())
    command = f"python benchmarks/first_round.py --workloads {options.workloads} --repetitions {options.repetitions}"
    command += " --against FOLDER" if options.against else ""
    lines = [
        "# Seconds to the first round",
        "",
        f"{datetime.date.today()}. `{command}`. {machine}.",
        "",
        "Medians, with the smallest and the largest. What is measured is described in the program.",
        "",
        "| workload | | cold | warm |",
        "|---|---|---|---|",
        *rows,
    ]
    if quick:
        lines += [
            "",
            "The quick start, from the start of the command to its end:",
            "",
            "| | cold | warm | first algorithm waited (cold) | second algorithm waited (cold) |",
            "|---|---|---|---|---|",
            *quick,
        ]
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
