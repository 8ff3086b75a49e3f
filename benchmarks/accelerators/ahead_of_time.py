"""What compilers for TPUs and GPUs make of fljax's programs, without a device.

Each row compiles the real program of rounds (FedAvg) for a TPU v5e or an H100, in a process and an environment of its
own, with a time limit. For a TPU, XLA estimates the cycles of every kernel, here at 1.5 GHz; for a GPU it tells
kernels and memory, no times. These are estimates by compilers, not measurements: they know neither contention nor the
host.

*From main memory at most* is a roofline on paper: the FLOP of a step at the device's peak, or five passes over the
weights (two reads, a gradient written and read, new weights written) and one over the batch, whichever takes longer.
Programs whose weights stay in a TPU's on-chip memory can be faster. *Kernels per local step* are what a turn of the
loop over local steps launches. *own* is W2's network as a user's flax module. *auto* is what
``Execution(clients="auto")`` chooses there.
"""

from __future__ import annotations

import json
import os
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import environments
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.reporting import MEBIBYTE, ROOT, Row, names_in, plain

HERE = ROOT / "benchmarks"
PLATFORMS = ("tpu", "cuda")


class Device(NamedTuple):
    """A device on paper."""

    title: str  # its name
    clock: float  # cycles per second of XLA's estimates
    flops: float  # FLOP per second of matrix products at JAX's default precision (bf16 on the TPU, TF32 on the H100)
    bandwidth: float  # bytes per second of its memory


DEVICES = {
    "tpu": Device("TPU v5e", 1.5e9, 197e12, 819e9),
    "cuda": Device("H100 SXM", 1.98e9, 495e12, 3.35e12),
}
# (workload, cohort or None for the workload's own, clients side by side or None for those that auto chooses). "own" is
# W2's network as a user's flax module.
ROWS: tuple[tuple[str, int | None, int | None], ...] = (
    ("W1a", None, 25),
    ("W1a", None, 100),
    ("W1b", None, 10),
    ("W2", None, 10),
    ("W2", 100, 10),
    ("W2", 100, 20),
    ("W2", 100, 50),
    ("W2", 100, 100),
    ("W2", 100, None),
    ("own", 100, 100),
    ("W3", None, 25),
    ("W3", None, 100),
    ("W5", None, 100),
    ("W5", None, 250),
    ("W5", None, 1000),
    ("W5", None, None),
    ("W7", None, 10),
    ("W4", None, 1),
    ("W4", None, 10),
)
NAMES = tuple(dict.fromkeys(row[0] for row in ROWS))


def measure(options: Namespace) -> Iterator[Row]:
    """Compiles all rows, or all forms."""
    chosen = names_in(options.workloads or ",".join(NAMES), NAMES, "workload")
    for platform in names_in(options.platforms, PLATFORMS, "platform"):
        python = _interpreter(platform, options)
        for title, source in options.sources.items():
            for workload, cohort, clients in (row for row in ROWS if row[0] in chosen):
                asked = {"platform": platform, "workload": workload, "cohort": cohort, "clients": clients}
                yield title, *_cells(_asked(python, asked, source, options.limit))


def _interpreter(platform: str, options: Namespace) -> str:
    folder, name = Path(options.environments or environments.FOLDER), f"ahead-{platform}"
    if options.make_environments and (reason := environments.make(folder, name)):
        raise SystemExit(reason)
    python = environments.python_of(folder, name)
    if python is None:
        raise SystemExit(f"expected the environment {name}, got none; --make-environments makes it")
    return python


def _asked(python: str, row: dict[str, Any], source: Path, limit: float) -> dict[str, Any]:
    """The row with what its process found, or with the reason why it found nothing."""
    script = HERE / "accelerators" / "compiled_row.py"
    command = [python, str(script), json.dumps(row | {"source": str(source)})]
    place = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit, env=place)
    except subprocess.TimeoutExpired:
        return row | {"failed": f"not compiled in {limit:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or ["no reason given"]
        return row | {"failed": plain(lines[-1])}
    return row | json.loads(done.stdout.splitlines()[-1])


def _cells(row: dict[str, Any]) -> Row:
    cohort = "" if row["cohort"] is None else f" with {row['cohort']} clients"
    side_by_side = row["clients"] or ("auto" if "failed" in row else f"auto: {row['layout']}")
    begin = (DEVICES[row["platform"]].title, row["workload"] + cohort, side_by_side)
    if "failed" in row:
        return *begin, row["failed"]
    device, work = DEVICES[row["platform"]], WORKLOADS["W2" if row["workload"] == "own" else row["workload"]]
    arithmetic, traffic = work.floor(row["parameters"], device.flops, device.bandwidth)
    rate = row["client_steps"] * device.clock / row["cycles"] if row["cycles"] else None
    bound = f"{1 / max(arithmetic, traffic):,.0f} ({'memory' if traffic >= arithmetic else 'arithmetic'})"
    return *begin, rate, bound, row["kernels"], row["temporary"] / MEBIBYTE, f"{row['seconds']:.0f} s"
