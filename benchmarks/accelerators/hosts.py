"""Two processes beside one.

Two rounds of every algorithm of the registry run in one process with one device, and in two processes on loopback
with one and with two devices each, in float32. *Differ*: the largest difference of all numbers of the states, metrics
and records, relative to the largest number of the same array (at least 1). The last column says whether both
processes have the same bits.
"""

from __future__ import annotations

import pickle
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import ROOT, Row
from tests.engine.several import registry
from tests.processes import ended, start

CODE = f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.engine.several import registry
give(registry("all"))
"""


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each algorithm, after all runs."""
    one = registry(1)
    both = {devices: two_processes(devices) for devices in (1, 2)}
    for algorithm in dict.fromkeys(name.split("/")[0] for name in one):
        cells = [f"{_difference(one, found[0], algorithm):.1e}" for found in both.values()]
        yield algorithm, *cells, all(_same_bits(found[0], found[1], algorithm) for found in both.values())


def two_processes(devices: int) -> list[dict[str, Any]]:
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
