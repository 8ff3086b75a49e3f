"""Two processes compute what one computes: ``python benchmarks/hosts.py``.

Every algorithm of the registry runs two rounds in one process with one device, and in two processes on loopback with
one and with two devices each. The table has the largest difference of all numbers of the states, metrics and records,
relative to the largest number of the same array (at least 1). It also says whether both processes have the same bits.
"""

from __future__ import annotations

import argparse
import datetime
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from throughput import RESULTS, hardware

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engine.several import registry  # noqa: E402
from tests.processes import ended, start  # noqa: E402

CODE = f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.engine.several import registry
give(registry("all"))
"""


def main() -> None:
    """Runs all algorithms three times, and writes the table."""
    parser = argparse.ArgumentParser(description="Two processes compute what one computes.")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    one = registry(1)
    both = {devices: _two_processes(devices) for devices in (1, 2)}
    out = options.out or RESULTS / f"{datetime.date.today()}-hosts.md"
    out.write_text(markdown(one, both))
    print(out.read_text())


def _two_processes(devices: int) -> list[dict[str, Any]]:
    """What each of two processes has, with so many devices each."""
    with tempfile.TemporaryDirectory() as folder:
        for code, _, told in ended(start(CODE, Path(folder), devices=devices)):
            if code:
                raise SystemExit(told)
        return [pickle.loads((Path(folder) / f"{rank}.pickle").read_bytes()) for rank in range(2)]


def _difference(some: dict[str, Any], others: dict[str, Any], algorithm: str) -> float:
    """The largest difference of an algorithm's arrays, relative to the largest number of each array."""
    found = [0.0]
    for name in (each for each in some if each.startswith(f"{algorithm}/")):
        a, b = (np.asarray(each[name]).astype(np.float64) for each in (some, others))
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        there = np.isfinite(a)
        if there.any():
            found.append(float(np.max(np.abs(a - b)[there]) / max(1.0, np.max(np.abs(a[there])))))
    return max(found)


def _same_bits(some: dict[str, Any], others: dict[str, Any], algorithm: str) -> bool:
    names = [each for each in some if each.startswith(f"{algorithm}/")]
    return all(np.asarray(some[name]).tobytes() == np.asarray(others[name]).tobytes() for name in names)


def markdown(one: dict[str, Any], both: dict[int, list[dict[str, Any]]]) -> str:
    """The table."""
    computer = hardware()
    lines = [
        f"# Two processes beside one, {datetime.date.today()}",
        "",
        f"`python benchmarks/hosts.py` on {computer['cpu']}, {computer['cores']} cores. Two rounds of every algorithm, "
        "in float32: the largest difference to one process with one device, relative to an array's largest number.",
        "",
        "| algorithm | 2 processes x 1 device | 2 processes x 2 devices | both processes have the same bits |",
        "|---|---|---|---|",
    ]
    for algorithm in dict.fromkeys(name.split("/")[0] for name in one):
        cells = [f"{_difference(one, found[0], algorithm):.1e}" for found in both.values()]
        same = all(_same_bits(found[0], found[1], algorithm) for found in both.values())
        lines.append(f"| {algorithm} | {' | '.join(cells)} | {'yes' if same else 'no'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
