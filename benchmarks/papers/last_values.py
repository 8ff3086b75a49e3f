"""The numbers of runs after their last round, as a CSV file: means and standard deviations over seeds.

A report of results thus stands beside the numbers that its tables round. Cluster models have the numbers of the
distributions that they fit.
"""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from benchmarks.reporting import Row
from fljax.metrics.uncertainty import align_clusters, over_seeds
from fljax.report.tables import last_values
from fljax.results import folders
from fljax.results.events import end_of

# Tokens of IP-FL's settlements, summed over rounds and clients.
TOKENS = ("paid", "reimbursed", "rewarded")


class Line(NamedTuple):
    """One number: ``std`` has n - 1 in its denominator; ``seeds`` counts those with a finite value."""

    run: str
    algorithm: str
    metric: str
    mean: float
    std: float
    seeds: int


def lines_of(run: str, metrics: xr.Dataset, records: xr.Dataset) -> Iterator[Line]:
    """Every metric that is one number for each evaluation, accuracies of clusters by distribution, and tokens."""
    for algorithm in map(str, metrics["algorithm"].values):
        for name in sorted(map(str, metrics)):
            values = last_values(metrics, algorithm, name)
            if values is not None and np.isfinite(values).any():
                yield Line(run, algorithm, name, *over_seeds(values))
        for name, values in clusters(metrics, algorithm).items():
            yield Line(run, algorithm, name, *over_seeds(values))
        for name in TOKENS:
            if name in records:
                amounts = records[name].sel(algorithm=algorithm).transpose("seed", ...).values
                if np.isfinite(amounts).any():
                    yield Line(run, algorithm, name, *over_seeds(np.nansum(amounts, axis=(1, 2))))


def clusters(metrics: xr.Dataset, algorithm: str) -> dict[str, np.ndarray]:
    """``[seed]`` by name: cluster g on distribution d, and the mean over clusters of each one's best distribution."""
    if "cluster_accuracy" not in metrics:
        return {}
    ordered = metrics["cluster_accuracy"].sel(algorithm=algorithm)
    accuracy = ordered.transpose("seed", "evaluated_round", "cluster", "distribution").values
    last = align_clusters(accuracy)[:, end_of(metrics, algorithm)]  # [seed, cluster, distribution]
    if not np.isfinite(last).all():
        return {}
    found = {f"cluster_accuracy[{g} on {d}]": last[:, g, d] for g in range(last.shape[1]) for d in range(last.shape[2])}
    return found | {"cluster_accuracy[own]": last.max(-1).mean(-1)}


def measure(options: Namespace) -> Iterator[Row]:
    """The numbers of run folders, which name their lines; ``--save`` is the CSV file."""
    lines = [
        line
        for run in map(Path, options.runs.split(","))
        for line in lines_of(run.resolve().name, *folders.load_results(run))
    ]
    if options.save:
        with Path(options.save).open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Line._fields)
            writer.writerows((*line[:3], f"{line.mean:.5g}", f"{line.std:.5g}", line.seeds) for line in lines)
    yield from lines
