"""Published tables, and our numbers beside them.

The tables are those of the papers as they were printed, one CSV file each in ``fljax/published``: paper, table,
dataset, partition, split (seen or unseen), algorithm, metric, mean and standard deviation (empty where none is).
"""

from __future__ import annotations

import csv
import importlib.resources
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

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
}


class Published(NamedTuple):
    """One printed number; ``std`` is NaN where none is printed."""

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
    """A printed number and ours: mean and standard deviation over seeds, NaN where there is none."""

    published: Published
    mean: float
    std: float


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
    """The rows of some tables about one data set, and about partitions that contain a text.

    Raises:
      ValueError: if there is no such table, or nothing in them is about these.
    """
    rows = [row for name in names for row in read(name)]
    found = [
        row for row in rows if dataset in (None, row.dataset) and (partition is None or partition in row.partition)
    ]
    if not found:
        offered = sorted({f"{row.dataset}, {row.partition}" for row in rows})
        raise ValueError(f"expected rows about {dataset}, {partition}, got none; there are {'; '.join(offered)}")
    return found


def beside(metrics: xr.Dataset, rows: Sequence[Published]) -> list[Compared]:
    """Our numbers at the last evaluation beside published ones.

    Algorithms are found by their label: "q-FFL(q=1)" is ``qffl_q1``, "PerFedAvg" is ``perfedavg``; upper and lower case
    and signs do not count. A published metric that we do not have is left out.
    """
    labels = {_plain(str(label)): str(label) for label in metrics["algorithm"].values}
    found = []
    for row in rows:
        if row.metric not in METRICS:
            continue
        name, factor = METRICS[row.metric]
        name = f"unseen_{name}" if row.split == "unseen" else name
        label = labels.get(_plain(row.algorithm))
        values = None if label is None else last_values(metrics, label, name)
        mean, std = (math.nan, math.nan) if values is None else mean_and_std(values * factor)[:2]
        found.append(Compared(row, mean, std))
    return found


def number(mean: float, std: float, metric: str) -> str:
    """``mean ± std`` with two decimals, percentages with one; a dash where there is none."""
    if math.isnan(mean):
        return "–"
    digits = 1 if metric.endswith("pct") else 2
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # empty, or "undefined"
        return math.nan


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
