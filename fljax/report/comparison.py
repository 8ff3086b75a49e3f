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
    """A difference of means over seeds.

    Attributes:
      mean: the difference.
      std: standard deviation of the differences seed by seed, with n - 1 in the denominator; NaN if the two runs have
        different seeds, or fewer than two.
      of: the run and the algorithm from which it is.
    """

    mean: float
    std: float
    of: tuple[str, str]


class Compared(NamedTuple):
    """One metric of one algorithm of one run.

    Attributes:
      run: the name of the run.
      row: the metric.
      difference: None for what others are compared with.
      diverged: which seeds of this algorithm diverged in this run, in words; may be empty.
    """

    run: str
    row: Row
    difference: Difference | None
    diverged: str = ""


def compare_runs(runs: Mapping[str, xr.Dataset]) -> list[Compared]:
    """Every metric of several runs, at each algorithm's own last evaluation, with differences from the first run.

    A difference is from the algorithm of the same label in the first run; if there is none, from the first algorithm of
    the first run. Where both have the same seeds it is taken seed by seed. ``runs`` has the ``metrics`` of each run, by
    a name for tables.
    """
    for name, metrics in runs.items():
        if axes_of(metrics):
            raise ValueError(f"expected folders of fljax run, got {name!r}, which is of fljax sweep")
    (first, metrics), *_ = runs.items()
    known = [str(each) for each in metrics["algorithm"].values]
    compared: list[Compared] = []
    for name, of_run in runs.items():
        marks = diverged_seeds(of_run)
        for row in summary(of_run):
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
