"""Many programs in one process: ``python benchmarks/programs.py`` runs 200 simulations of different shapes.

Every simulation of a new shape compiles programs of its own. A compiled program holds memory, and some of the memory
maps that Linux grants a process (65,530 by default); a process without any left crashes at its next compilation. The
script prints how many maps and how much resident memory the process has after 10, 100 and 200 simulations, and the
seconds since the start.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import jax
import numpy as np

from fljax import algorithms, data, engine, models, training

CLIENTS, ROWS, CLASSES = 4, 6, 2


def main() -> None:
    """Runs the simulations and prints the table."""
    parser = argparse.ArgumentParser(description="Memory maps and memory of a process that runs many shapes.")
    parser.add_argument("--calls", type=int, default=200, help="simulations, each of another shape")
    parser.add_argument("--devices", type=int, default=1, help="cores of the CPU that JAX sees as devices")
    options = parser.parse_args()
    if options.devices > 1:
        engine.use_cores(options.devices)
    print(f"jax {jax.__version__}, {options.calls} calls, {options.devices} device(s)")
    print(f"{'calls':>5} {'maps':>7} {'RSS, MiB':>9} {'seconds':>8}", flush=True)
    began = time.perf_counter()
    for call in range(1, options.calls + 1):
        simulate(features=2 + call)
        if call in (1, 10, 50, 100, options.calls):
            print(f"{call:5} {maps():7} {resident():9.0f} {time.perf_counter() - began:8.1f}", flush=True)


def simulate(features: int) -> None:
    """Two rounds of FedAvg with a logistic regression on so many features."""
    random = np.random.default_rng(features)
    rows = CLIENTS * ROWS
    x = random.normal(size=(rows, features)).astype(np.float32)
    y, owners = random.integers(0, CLASSES, rows), np.repeat(np.arange(CLIENTS), ROWS)
    federation = data.from_arrays(x, y, owners)
    task = models.logistic_regression((features,), CLASSES)
    algorithm = algorithms.fedavg(task, training.Local(0.1, batch_size=2, steps=2), clients_per_round=CLIENTS)
    result = engine.simulate(algorithm, federation, rounds=2, evaluate_every=2)
    assert np.all(np.isfinite(result.metrics["test_loss"]))


def maps() -> int:
    """Memory maps of this process."""
    return len(Path("/proc/self/maps").read_text().splitlines())


def resident() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
