"""Whether the estimate of memory is right where a server keeps N + 1 models: ``python benchmarks/memory.py``.

IAFL with 50 clients, all in every round. See ``benchmarks/README.md`` for how to read the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from environments import plain
from throughput import RESULTS, hardware
from workers import CONTESTANTS
from workloads import CLASSES, LEARNING_RATE, SEED, WORKLOADS, Workload

LIMIT_SECONDS = 1200.0
MEBIBYTE = 2**20
HEADINGS = ("", "models", "server", "data", "estimate", "floor", "peak", "peak - floor", "estimate / that")
HEADINGS += ("compiler", "second run", "(estimate - data) / that")

# One local step on two images, so that a machine of two cores is done in minutes; what is held is models.
RESNET = WORKLOADS["W4"]._replace(
    clients=50, cohort=50, samples=2, distinct=102, batch=2, evaluated=2, multiplications=()
)
# What it is, the work, and how many seeds: 51 CNN-A are 9 MiB, too little to be told from what else a process does.
CHOSEN: dict[str, tuple[str, Workload, int]] = {
    "cnn_a": ("CNN-A on 28x28, 12 steps of 50, 2,000 test rows", WORKLOADS["W6"], 10),
    "resnet18": ("ResNet18-GN on 32x32x3, 1 step of 2, 2 test rows", RESNET, 1),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The estimate of memory beside what a process held.")
    parser.add_argument("--models", default=",".join(CHOSEN), help="comma-separated")
    parser.add_argument("--out", type=Path, help="JSON file; a table (.md) is put beside it")
    parser.add_argument("--draw", type=Path, metavar="JSON", help="only write the table of an earlier run again")
    return parser.parse_args()


def main() -> None:
    """Measures one model after another; what has been measured is saved after each."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that no process is left behind
    if options.draw is not None:
        options.draw.with_suffix(".md").write_text(markdown(json.loads(options.draw.read_text())))
        return
    names = [name.strip() for name in options.models.split(",") if name.strip()]
    for name in names:
        if name not in CHOSEN:
            raise SystemExit(f"expected a known model, got {name!r}; valid names are {', '.join(CHOSEN)}")
    out = options.out or RESULTS / f"{datetime.date.today()}-memory.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/memory.py --models {','.join(names)}",
        "hardware": hardware(),
        "versions": {},
        "models": {},
    }
    for name in names:
        title, workload, seeds = CHOSEN[name]
        found = _process(workload, seeds, "floor")
        found |= _process(workload, seeds, "run")
        report["versions"] |= found.pop("versions", {})
        report["models"][name] = {"title": title, "clients": workload.clients, "seeds": seeds, **found}
        report["seconds"] = round(time.monotonic() - began, 1)
        out.write_text(json.dumps(report, indent=1) + "\n")
        out.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


def _process(workload: Workload, seeds: int, phase: str) -> dict[str, Any]:
    """One phase in a process of its own; where that fails, the reason."""
    meta = workload._asdict() | {"classes": CLASSES, "learning_rate": LEARNING_RATE, "seed": SEED}
    meta |= {"seeds": seeds, "phase": phase}
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "OMP_", "MKL_"))}
    # Arrays of a mebibyte and more are given back to the system as soon as they are free.
    environment["MALLOC_MMAP_THRESHOLD_"] = str(MEBIBYTE)
    command = [sys.executable, str(CONTESTANTS / "held.py"), json.dumps(meta)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"{phase}: not done after {LIMIT_SECONDS:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"ended with {done.returncode}"]
        return {"failed": f"{phase}: {plain(lines[-1])}"}
    return json.loads(done.stdout)


def markdown(report: dict[str, Any]) -> str:
    """The whole report as Markdown."""
    machine = report["hardware"]
    lines = [
        f"# Memory of IAFL, {report['date'][:10]}",
        "",
        f"    {report['command']}",
        "",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gibibytes']} GiB, {machine['system']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        + f". It took {report['seconds']:.0f} s.",
        "",
        "50 of 50 clients, 51 models for each seed, 2 rounds, one device, random images. MiB. *Estimate*: what",
        "`fljax run` and `fljax doctor --config` say before anything runs. *Peak*: the largest resident memory of the",
        "process. *Floor*: what a process holds that has traced and compiled the same programs for arrays that do not",
        "exist (Python, JAX, programs, and what compiling freed, in which small arrays may lie). *Compiler*: how much",
        "more than the floor that process held while it compiled; where this is more than the estimate it is the",
        "compiler whose peak is seen. *Second run*: by how much a further run in the same process, with the data there",
        "and nothing to compile, makes the resident memory grow; its estimate is the estimate without the data.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|" + "---:|" * (len(HEADINGS) - 1),
    ]
    lines += ["| " + " | ".join(_cells(found)) + " |" for found in report["models"].values()]
    return "\n".join(lines) + "\n"


def _cells(found: dict[str, Any]) -> list[str]:
    """One row, or a row with a reason."""
    if "failed" in found:
        return [found["title"], f"failed: {found['failed']}", *[""] * (len(HEADINGS) - 2)]
    told, low = found["estimate"], found["floor_bytes"]
    above, growth = found["peak_bytes"] - low, found.get("growth_bytes")
    again = None if growth is None else (told["peak"] - told["data"]) / growth
    return [
        found["title"],
        f"{found['seeds']} x {told['server'] // told['model'] // found['seeds']} of {_size(told['model'])}",
        *(_size(told[name]) for name in ("server", "data", "peak")),
        _size(low),
        _size(found["peak_bytes"]),
        _size(above),
        f"{told['peak'] / above:.2f}",
        _size(found["compiler_peak_bytes"] - low),
        "-" if growth is None else _size(growth),
        "-" if again is None else f"{again:.2f}",
    ]


def _size(count: float) -> str:
    return f"{count / MEBIBYTE:,.2f}" if count < MEBIBYTE else f"{count / MEBIBYTE:,.0f}"


if __name__ == "__main__":
    main()
