"""Published tables as printed in the papers, one CSV file each in ``fljax/published``.

The columns are paper, table, dataset, partition, split (the owner of the test data), algorithm, metric, mean and
``std``. ``std`` is the printed spread (empty if there is none).
"""

from __future__ import annotations

import csv
import importlib.resources
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fljax.core.names import unknown


class Published(NamedTuple):
    """One printed number (NaN: "undefined") and its spread (NaN: none).

    ``fljax.published.verdicts.spread`` gives the kind of a spread. ``digit`` is one unit of the last decimal that most
    of the table's numbers of this metric have.
    """

    paper: str
    table: str
    dataset: str
    partition: str
    split: str
    algorithm: str
    metric: str
    mean: float
    std: float
    digit: float = math.nan


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
    lines = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    digits = _digits(lines)
    return [
        Published(
            *(line[key] for key in Published._fields[:7]),
            mean=_number(line["mean"]),
            std=_number(line["std"]),
            digit=digits[line["metric"]],
        )
        for line in lines
    ]


def select(names: Sequence[str], dataset: str | None = None, partition: str | None = None) -> list[Published]:
    """The rows of some tables for one dataset and one partition: with exactly this name, else with names containing it.

    Raises:
      ValueError: if a table does not exist, or has no such rows.
    """
    rows = [row for name in names for row in read(name)]
    about = [row for row in rows if dataset in (None, row.dataset)]
    # "Dir(0.5)" is a partition, and also part of another partition's name.
    exactly = [row for row in about if row.partition == partition]
    found = exactly or [row for row in about if partition is None or partition in row.partition]
    if not found:
        offered = sorted({f"{row.dataset}, {row.partition}" for row in rows})
        raise ValueError(f"expected rows about {dataset}, {partition}, got none; there are {'; '.join(offered)}")
    return found


def plain_metric(metric: str) -> str:
    """A published metric without the number of a cluster: ``a[c0]`` is ``a``."""
    return metric.partition("[")[0]


def plain_label(label: str) -> str:
    """The label of an algorithm without case and punctuation: "q-FFL(q=1)" and "qffl_q1" are the same."""
    return re.sub(r"[^a-z0-9]", "", label.lower())


def _digits(lines: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """One unit of the last decimal by metric; transcriptions drop final zeros, so that most numbers decide."""
    found: dict[str, Counter[int]] = {}
    for line in lines:
        own = found.setdefault(line["metric"], Counter())
        if not math.isnan(_number(line["mean"])):
            own[len(line["mean"].partition(".")[2])] += 1
    return {metric: 10.0 ** -max(own, key=lambda each: (own[each], each), default=0) for metric, own in found.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # empty, or "undefined"
        return math.nan
