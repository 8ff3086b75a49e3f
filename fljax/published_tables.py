"""Published tables as printed in the papers, one CSV file each in ``fljax/published``.

The columns are paper, table, dataset, partition, split (the owner of the test data), algorithm, metric, mean and
``std``. ``std`` is the printed spread (empty if there is none).
"""

from __future__ import annotations

import csv
import importlib.resources
import math
import re
from typing import NamedTuple

from fljax.naming import unknown


class Published(NamedTuple):
    """One printed number (NaN: "undefined") and its spread (NaN: none); ``spread`` gives the kind of spread."""

    paper: str
    table: str
    dataset: str
    partition: str
    split: str
    algorithm: str
    metric: str
    mean: float
    std: float


def tables() -> dict[str, str]:
    """Names of the published tables, with paper, tables and datasets."""
    found = {}
    for file in sorted(importlib.resources.files("fljax").joinpath("published").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".csv"):
            name = file.name.removesuffix(".csv")
            rows = read(name)
            datasets = ", ".join(dict.fromkeys(row.dataset for row in rows))
            numbers = ", ".join(dict.fromkeys(row.table.replace("Table", "Table ") for row in rows))
            found[name] = f"{rows[0].paper}, {numbers}: {datasets}"
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


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # empty, or "undefined"
        return math.nan
