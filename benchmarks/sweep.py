"""What a sweep saves: ``python benchmarks/sweep.py``.

``fljax sweep`` over 24 learning rates of ``digits.toml`` beside separate runs of ``fljax run`` with them, each a
process of its own, timed from start to end: without a cache of compiled programs, and with one that is empty at first.
A few of the separate runs are timed, spread over the values; the total of all is reckoned from their mean (with a
cache: the first run, which fills it, and the mean of the others). It needs an installed fljax.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from throughput import hardware

CONFIG = Path(__file__).parent / "digits.toml"
KEY = "local.learning_rate"


def seconds(arguments: list[str], cache: Path | None) -> float:
    """Wall time of one command."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment["FLJAX_COMPILATION_CACHE"] = "off" if cache is None else str(cache)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fljax", *arguments, "--out", folder, "--no-report", "--quiet"]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - began


def measure(values: list[str], runs: int, changes: list[str], cached: bool) -> dict[str, Any]:
    """A sweep over all values beside the first of ``runs`` separate runs, which are spread over them."""
    common = [str(CONFIG), "--seeds", "1", *(word for change in changes for word in ("--set", change))]
    chosen = [values[place] for place in np.linspace(0, len(values) - 1, runs).round().astype(int)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        for_runs, for_sweep = (Path(one), Path(other)) if cached else (None, None)
        apart = [seconds(["run", *common, "--set", f"{KEY}={value}"], for_runs) for value in chosen]
        together = seconds(["sweep", *common, "--grid", f"{KEY}={','.join(values)}"], for_sweep)
    first, later = (apart[0], apart[1:] or apart) if cached else (statistics.mean(apart), apart)
    total = first + (len(values) - 1) * statistics.mean(later)
    return {
        "cache": cached,
        "cells": len(values),
        "seconds_sweep": round(together, 1),
        "seconds_runs_timed": [round(each, 1) for each in apart],
        "seconds_runs_reckoned": round(total, 1),
        "sweep_by_runs": round(together / total, 3),
    }


def main() -> None:
    """Measures without a cache and with one, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--runs", type=int, default=3, help="how many of the separate runs are timed, at least two")
    parser.add_argument("--quick", action="store_true", help="4 cells of 10 rounds, 2 runs: whether it works at all")
    default = Path(__file__).parent / "results" / f"{datetime.date.today()}-sweep.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    cells, runs, changes = (4, 2, ["rounds=10"]) if options.quick else (options.cells, options.runs, [])
    values = [f"{value:.4g}" for value in np.geomspace(0.005, 0.5, cells)]
    found = []
    for cached in (False, True):
        found.append(measure(values, runs, changes, cached))
        print(json.dumps(found[-1]), flush=True)
    load = [round(each, 1) for each in os.getloadavg()]
    report = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "hardware": hardware()}
    report |= {"load_at_end": load, "results": found}
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
