"""Several runs side by side: every metric with its difference from the first run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from fljax.metrics import over_seeds
from fljax.report.tables import Row, last_values, summary
from fljax.results.non_finite import diverged_seeds
from fljax.results.sweeps import axes_of


class Difference(NamedTuple):
    """A difference of means over seeds."""

    mean: float
    std: float  # of differences seed by seed (n - 1); NaN for different seeds, or fewer than two
    of: tuple[str, str]  # the run and the algorithm from which it is


class Compared(NamedTuple):
    """One metric of one algorithm of one run."""

    run: str  # its name
    row: Row  # the metric
    difference: Difference | None  # None for what others are compared with
    diverged: str = ""  # which seeds of this algorithm diverged in this run, in words


def compare_runs(runs: Mapping[str, xr.Dataset]) -> list[Compared]:
    """Every metric of runs by name, at each algorithm's last evaluation, with differences from the first run."""
    for name, metrics in runs.items():
        if axes_of(metrics):
            raise ValueError(f"expected folders of fljax run, got {name!r}, which is of fljax sweep")
    (first, metrics), *_ = runs.items()
    known = [str(each) for each in metrics["algorithm"].values]
    compared: list[Compared] = []
    for name, of_run in runs.items():
        marks = diverged_seeds(of_run)
        for row in summary(of_run):
            # From its algorithm of the same label, or else from its first one.
            base = row.algorithm if row.algorithm in known else known[0]
            same = name == first and base == row.algorithm
            difference = None if same else _difference(metrics, base, of_run, row)
            difference = None if difference is None else Difference(*difference, (first, base))
            compared.append(Compared(name, row, difference, marks.get(row.algorithm, "")))
    return compared


def _difference(reference: xr.Dataset, base: str, metrics: xr.Dataset, row: Row) -> tuple[float, float] | None:
    first, second = last_values(reference, base, row.metric), last_values(metrics, row.algorithm, row.metric)
    if first is None or second is None:
        return None
    if np.array_equal(reference["seed"].values, metrics["seed"].values):
        mean, std, _ = over_seeds(second - first)
    else:
        mean, std = over_seeds(second).mean - over_seeds(first).mean, math.nan
    return (mean, std) if math.isfinite(mean) else None
