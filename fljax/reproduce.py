"""Published tables, and our numbers beside them.

The tables are those of the papers as they were printed, one CSV file each in ``fljax/published``: paper, table,
dataset, partition, split (whose test data), algorithm, metric, mean and, under ``std``, the printed spread over seeds
(empty where none is): a standard deviation, or a standard error in the papers of ``STANDARD_ERROR``.
"""

from __future__ import annotations

import csv
import importlib.resources
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from fljax.naming import unknown
from fljax.report.tables import last_values, mean_and_std

# Published metric: ours, and what a share is multiplied by to be printed as they do.
METRICS = {
    "IPR": ("incentivised_participation_rate", 1),
    "IPR_tuned5": ("incentivised_participation_rate", 1),
    "GM_Appeal": ("global_model_appeal", 1),  # MaxFL judges the global model, before any client adapts it
    "GM_Appeal_tuned5": ("incentivised_participation_rate", 1),
    "avg_test_acc_pct": ("global_average_accuracy", 100),
    "pref_model_test_acc_pct": ("preferred_model_accuracy", 100),
    "pref_model_test_acc_tuned5_pct": ("preferred_model_accuracy", 100),
    "IPR_accu": ("ipr_accuracy", 1),
    "IPR_loss": ("ipr_loss", 1),
    "pearson_rho": ("pearson_correlation", 1),
    "avg_client_acc_pct": ("average_accuracy", 100),
    "max_client_acc_pct": ("maximum_accuracy", 100),
    "avg_acc_increase_pct": ("accuracy_increase", 100),
    "pearson_rho_acc_vs_p": ("contribution_correlation", 1),
    "client_acc_pct": ("test_accuracy", 100),  # of the client that the split names
}

# Papers that print the standard error over seeds; the others print the standard deviation.
STANDARD_ERROR = frozenset({"IAFL"})


class Published(NamedTuple):
    """One printed number (NaN: "undefined") and its spread as ``spread`` says, NaN where none is printed."""

    paper: str
    table: str
    dataset: str
    partition: str
    split: str
    algorithm: str
    metric: str
    mean: float
    std: float


class Compared(NamedTuple):
    """A printed number and ours: mean and spread over seeds, of the kind that the paper prints; NaN: none."""

    published: Published
    mean: float
    spread: float


def tables() -> dict[str, str]:
    """Names of the published tables, with what they are about."""
    found = {}
    for file in sorted(importlib.resources.files("fljax").joinpath("published").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".csv"):
            name = file.name.removesuffix(".csv")
            rows = read(name)
            datasets = ", ".join(dict.fromkeys(row.dataset for row in rows))
            found[name] = f"{rows[0].paper}, {rows[0].table.replace('Table', 'Table ')}: {datasets}"
    return found


def read(name: str) -> list[Published]:
    """The rows of a published table.

    Raises:
      ValueError: if there is no table of that name.
    """
    folder = importlib.resources.files("fljax").joinpath("published")
    file = folder.joinpath(f"{name}.csv")
    if not re.fullmatch(r"\w+", name) or not file.is_file():
        names = [each.name.removesuffix(".csv") for each in folder.iterdir() if each.name.endswith(".csv")]
        raise ValueError(unknown("table", name, sorted(names)))
    lines = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return [
        Published(*(line[key] for key in Published._fields[:7]), mean=_number(line["mean"]), std=_number(line["std"]))
        for line in lines
    ]


def select(names: Sequence[str], dataset: str | None = None, partition: str | None = None) -> list[Published]:
    """The rows of some tables about one data set, and about one partition: of just that name, or that contain it.

    Raises:
      ValueError: if there is no such table, or nothing in them is about these.
    """
    rows = [row for name in names for row in read(name)]
    about = [row for row in rows if dataset in (None, row.dataset)]
    # "Dir(0.5)" is a partition of its own and part of another's name.
    exactly = [row for row in about if row.partition == partition]
    found = exactly or [row for row in about if partition is None or partition in row.partition]
    if not found:
        offered = sorted({f"{row.dataset}, {row.partition}" for row in rows})
        raise ValueError(f"expected rows about {dataset}, {partition}, got none; there are {'; '.join(offered)}")
    return found


def beside(metrics: xr.Dataset, rows: Sequence[Published]) -> list[Compared]:
    """Our numbers at the last evaluation beside published ones.

    Algorithms are found by their label: "q-FFL(q=1)" is ``qffl_q1``, "PerFedAvg" is ``perfedavg``; upper and lower case
    and signs do not count. A published metric that we do not have is left out.
    """
    found = []
    for row in rows:
        if row.metric not in METRICS:
            continue
        label = label_of(metrics, row)
        values = None if label is None else _ours(metrics, label, row)
        mean, std, seeds = (math.nan, math.nan, 0) if values is None else mean_and_std(values)
        found.append(Compared(row, mean, std / math.sqrt(seeds) if seeds and row.paper in STANDARD_ERROR else std))
    return found


def label_of(metrics: xr.Dataset, row: Published) -> str | None:
    """The label of the row's algorithm in our results, None where it is not among them."""
    labels = {_plain(str(label)): str(label) for label in metrics["algorithm"].values}
    return labels.get(_plain(row.algorithm))


def spread(paper: str) -> str:
    """What stands behind a paper's "±" over seeds: "standard error" or "standard deviation"."""
    return "standard error" if paper in STANDARD_ERROR else "standard deviation"


def number(mean: float, spread: float, metric: str) -> str:
    """``mean ± spread`` with two decimals, percentages with one; a dash where there is none."""
    if math.isnan(mean):
        return "–"
    digits = 1 if metric.endswith("pct") else 2
    return f"{mean:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")


def _ours(metrics: xr.Dataset, label: str, row: Published) -> np.ndarray | None:
    """``[seed]``: what a row prints, from the last evaluation of our run; None where we have no such number."""
    name, factor = METRICS[row.metric]
    if name != "test_accuracy":
        values = last_values(metrics, label, f"unseen_{name}" if row.split == "unseen" else name)
        return None if values is None else values * factor
    if name not in metrics or set(metrics[name].dims) != {"algorithm", "seed", "evaluated_round", "client"}:
        return None
    own = int(row.split.removeprefix("client")) - 1  # papers count from 1
    if own not in metrics["client"].values:
        return None
    accuracy = metrics[name].sel(algorithm=label, client=own).transpose("seed", "evaluated_round").values
    return accuracy[:, -1] * factor


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # empty, or "undefined"
        return math.nan


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
