"""How speed and memory grow: ``python benchmarks/scaling.py``; about five minutes on 2 cores.

Curves over the size of the cohort, the population, the model, the number of local steps and of devices. See
``benchmarks/README.md`` for how to read them.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import scaling_tables
from environments import plain
from rich.console import Console
from throughput import RESULTS, hardware
from workers import CONTESTANTS
from workloads import CLASSES, LEARNING_RATE, SEED, Workload

LIMIT_SECONDS = 300.0
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


class Point(NamedTuple):
    """One measurement: what is trained, and how."""

    x: int
    workload: Workload
    execution: str = "auto"
    devices: int = 1


class Curve(NamedTuple):
    """Points along one quantity.

    Attributes:
      title: of the table and the panel.
      axis: what ``x`` counts.
      points: all of them.
      quick: those ``x`` that a quick run measures.
      floor: the same program with next to no data, whose peak is that of imports and of the compiler.
    """

    title: str
    axis: str
    points: tuple[Point, ...]
    quick: tuple[int, ...]
    floor: Workload


def _mlp(clients: int, cohort: int, steps: int, hidden: tuple[int, ...] = (64, 30)) -> Workload:
    """One epoch of ``steps`` batches of 30 images."""
    widths = (784, *hidden, CLASSES)
    return Workload(
        "scaling",
        f"MLP {'-'.join(map(str, widths))}",
        model="mlp",
        options={"hidden": list(hidden), "dropout": 0.0},
        shape=(28, 28),
        pixels=True,
        clients=clients,
        cohort=cohort,
        samples=30 * steps,
        distinct=10_000,
        batch=30,
        steps=None,
        multiplications=tuple(a * b for a, b in itertools.pairwise(widths)),
    )


def _regression(clients: int) -> Workload:
    """5 steps of 20 samples; 20 rows per client, so that the index lists of 1,000,000 take 80 MB."""
    return Workload(
        "scaling",
        "logistic regression 60-10",
        model="logistic_regression",
        options={},
        shape=(60,),
        pixels=False,
        clients=clients,
        cohort=100,
        samples=20,
        distinct=10_000,
        batch=20,
        steps=5,
        multiplications=(60 * CLASSES,),
    )


def _floor(workload: Workload) -> Workload:
    return workload._replace(clients=workload.cohort, samples=workload.batch, distinct=100)


CURVES = {
    "cohort": Curve(
        "cohort: MLP 784-64-30-10, 5 steps of 30; population as the cohort, but at least 100",
        "clients per round",
        tuple(Point(n, _mlp(max(n, 100), n, 5)) for n in (10, 30, 100, 300, 1000, 3000, 10_000)),
        (10, 100),
        _floor(_mlp(100, 10, 5)),
    ),
    "population": Curve(
        "population: logistic regression 60-10, 5 steps of 20; 100 clients per round",
        "clients in all",
        tuple(Point(n, _regression(n)) for n in (100, 1000, 10_000, 100_000, 1_000_000)),
        (100, 10_000),
        _floor(_regression(100)),
    ),
    "model": Curve(
        "model: MLP 784-h-10, 2 steps of 30; 20 of 100 clients per round",
        "parameters",
        tuple(Point(795 * h + 10, _mlp(100, 20, 2, (h,))) for h in (1, 12, 126, 1258, 12_579)),
        (805, 100_180),
        _floor(_mlp(100, 20, 2, (1,))),
    ),
    "steps": Curve(
        "steps: MLP 784-64-30-10, batches of 30; 20 of 100 clients per round",
        "local steps",
        tuple(Point(n, _mlp(100, 20, n)) for n in (1, 3, 10, 30, 100)),
        (1, 10),
        _floor(_mlp(100, 20, 1)),
    ),
    "devices": Curve(
        "devices: MLP 784-64-30-10, 5 steps of 30; 100 of 100 clients per round",
        "devices",
        tuple(Point(n, _mlp(100, 100, 5), how, n) for how in ("scan", "auto") for n in (1, 2)),
        (1, 2),
        _floor(_mlp(100, 10, 5)),
    ),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How the speed and the memory of fljax grow.")
    parser.add_argument("--curves", default=",".join(CURVES), help="comma-separated")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one block of rounds")
    parser.add_argument("--blocks", type=int, default=3, help="per point; the median is taken")
    parser.add_argument("--quick", action="store_true", help="two points per curve, a tenth of a second per block")
    parser.add_argument("--out", type=Path, help="JSON file; tables (.md) and a picture (.png) are put beside it")
    parser.add_argument("--draw", type=Path, metavar="JSON", help="only draw an earlier run again")
    return parser.parse_args()


def main() -> None:
    """Measures curve after curve; what has been measured is saved after each."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that no point is left behind
    if options.draw is not None:
        scaling_tables.save(json.loads(options.draw.read_text()), options.draw)
        return
    names = [name.strip() for name in options.curves.split(",") if name.strip()]
    for name in names:
        if name not in CURVES:
            raise SystemExit(f"expected a known curve, got {name!r}; valid names are {', '.join(CURVES)}")
    seconds = min(options.seconds, 0.1) if options.quick else options.seconds
    out = options.out or RESULTS / f"{datetime.date.today()}-scaling.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/scaling.py --curves {','.join(names)} --seconds {options.seconds} "
        f"--blocks {options.blocks}" + (" --quick" if options.quick else ""),
        "hardware": hardware(),
        "versions": {},
        "curves": {},
    }
    for name in names:
        curve = CURVES[name]
        chosen = [point for point in curve.points if not options.quick or point.x in curve.quick]
        floor = _measure(Point(0, curve.floor), 0.0, 1, report["versions"])
        found = [_measure(point, seconds, options.blocks, report["versions"]) for point in chosen]
        report["curves"][name] = {
            "title": curve.title,
            "axis": curve.axis,
            "floor_peak_bytes": floor.get("peak_bytes"),
            "points": found,
        }
        report["seconds"] = round(time.monotonic() - began, 1)
        scaling_tables.show(console, report["curves"][name])
        scaling_tables.save(report, out)
    console.print(f"saved: {out.name} in {out.parent.name}/, with its tables (.md) and picture (.png)", markup=False)


def _measure(point: Point, seconds: float, blocks: int, versions: dict[str, str]) -> dict[str, Any]:
    """One point in a process of its own; where that fails, the reason."""
    workload = point.workload
    meta = workload._asdict() | {
        "classes": CLASSES,
        "learning_rate": LEARNING_RATE,
        "seed": SEED,
        "client_steps": workload.client_steps,
        "flops_per_client_step": workload.flops_per_client_step,
        "execution": point.execution,
        "devices": point.devices,
        "seconds": seconds,
        "blocks": blocks,
    }
    told = {
        "x": point.x,
        "series": point.execution,
        "devices": point.devices,
        "model": workload.title,
        "clients": workload.clients,
        "cohort": workload.cohort,
        "steps": workload.steps_per_client,
        "client_steps_per_round": workload.client_steps,
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "OMP_", "MKL_"))}
    command = [sys.executable, str(CONTESTANTS / "point.py"), json.dumps(meta)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return told | {"failed": f"not done after {LIMIT_SECONDS:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"ended with {done.returncode}"]
        return told | {"failed": plain(lines[-1])}
    found = json.loads(done.stdout)
    versions.update(found.pop("versions"))
    return told | found


if __name__ == "__main__":
    main()
