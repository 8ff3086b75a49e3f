"""A sweep of learning rates beside separate runs.

``fljax sweep`` over learning rates of ``digits.toml`` beside separate runs of ``fljax run`` with them, each a process
of its own, timed from start to end: without a cache of compiled programs, and with one that is empty at first. A few
of the separate runs are timed, spread over the values; the total of all is reckoned from their mean (with a cache:
the first run, which fills it, and the mean of the others).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.cases import environment
from benchmarks.reporting import Row

CONFIG = Path(__file__).parent / "digits.toml"
KEY = "local.learning_rate"


def seconds(arguments: list[str], cache: Path | None, source: Path) -> float:
    """Wall time of one command."""
    place = environment(FLJAX_COMPILATION_CACHE="off" if cache is None else str(cache), PYTHONPATH=str(source))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fljax", *arguments, "--out", folder, "--no-report", "--quiet"]
        done = subprocess.run(command, env=place, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - began


def measure(options: Namespace) -> Iterator[Row]:
    """A row without a cache and one with it."""
    values = [f"{value:.4g}" for value in np.geomspace(0.005, 0.5, options.cells)]
    chosen = [values[place] for place in np.linspace(0, len(values) - 1, options.runs).round().astype(int)]
    common = [str(CONFIG), "--seeds", "1", *(["--set", f"rounds={options.rounds}"] if options.rounds else [])]
    for (title, source), cached in ((each, cached) for each in options.sources.items() for cached in (False, True)):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            for_runs, for_sweep = (Path(one), Path(other)) if cached else (None, None)
            apart = [seconds(["run", *common, "--set", f"{KEY}={value}"], for_runs, source) for value in chosen]
            together = seconds(["sweep", *common, "--grid", f"{KEY}={','.join(values)}"], for_sweep, source)
        first, later = (apart[0], apart[1:] or apart) if cached else (statistics.mean(apart), apart)
        total = first + (len(values) - 1) * statistics.mean(later)
        timed = " ".join(f"{each:.1f}" for each in apart)
        yield title, cached, len(values), round(together, 1), timed, round(total, 1), round(together / total, 3)
