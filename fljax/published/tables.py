"""Numbers of tables as CSV files: the papers' as printed (``fljax/published``), ours in ``benchmarks/results/cells``.

A cell is one number of one algorithm, in the paper's units. Ours are committed, as whole results are too large.

Two numbers differ if they are two standard errors of both sides apart. Below, or without a standard error, the verdict
is undecided.
"""

from __future__ import annotations

import csv
import datetime
import importlib.resources
import io
import math
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fljax.core.errors import writing_to
from fljax.core.files import write
from fljax.core.names import shown, unknown

AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"

ERRORS = 2  # that a verdict needs
SLACK = 1e-9  # relative; numbers of a few decimals are not exact in binary


class Sample(NamedTuple):
    """A number over seeds."""

    mean: float
    deviation: float = math.nan  # standard deviation over seeds; NaN if it is not known
    seeds: int = 0  # 0 if not known

    @property
    def error(self) -> float:
        """The standard error of the mean, ``deviation / sqrt(seeds)``; NaN with one seed, or if it is not known."""
        return self.deviation / math.sqrt(self.seeds) if self.seeds > 1 else math.nan


def verdict_on_excess(excess: float, error: float, strict: bool = False) -> str:
    """Whether a number is at least 0 (``strict``: above 0), as far as two of its standard errors tell."""
    beyond = ERRORS * error
    if math.isnan(beyond):
        return UNDECIDED
    if excess > beyond or (excess == beyond and not strict):
        return AGREES
    return DIFFERS if -excess > beyond or (-excess == beyond and strict) else UNDECIDED


def verdict_on_number(printed: Sample, ours: Sample, digit: float = 0.0) -> str:
    """Whether our mean is the printed one, up to the larger of two printed deviations and one last ``digit``."""
    apart = abs(ours.mean - printed.mean)
    both = ERRORS * together(printed, ours)
    if math.isnan(both):
        return UNDECIDED
    slack = SLACK * max(abs(ours.mean), abs(printed.mean), both)
    if apart - both > digit + slack:
        return DIFFERS
    # Two printed deviations: where one more run of the paper would lie.
    return AGREES if apart + both <= max(ERRORS * printed.deviation, digit) + slack else UNDECIDED


def together(*samples: Sample) -> float:
    """The standard error of a difference or sum of independent means; NaN if one has none."""
    return math.hypot(*(each.error for each in samples))


class Published(NamedTuple):
    """One printed number (NaN: "undefined") and its spread (NaN: none), of the kind that ``verdicts.spread`` gives."""

    paper: str
    table: str
    dataset: str
    partition: str
    split: str  # the owner of the test data
    algorithm: str
    metric: str
    mean: float
    std: float
    digit: float = math.nan  # one unit of the last decimal that most of the table's numbers of this metric have


def tables() -> dict[str, str]:
    """Names of the published tables, with paper, tables and datasets."""
    descriptions = {}
    for file in sorted(importlib.resources.files("fljax").joinpath("published").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".csv"):
            name = file.name.removesuffix(".csv")
            rows = read(name)
            datasets = ", ".join(dict.fromkeys(row.dataset for row in rows))
            numbers = ", ".join(dict.fromkeys(row.table.replace("Table", "Table ") for row in rows))
            descriptions[name] = f"{rows[0].paper}, {numbers}: {datasets}"
    return descriptions


def read(name: str) -> list[Published]:
    """The rows of a published table."""
    folder = importlib.resources.files("fljax").joinpath("published")
    file = folder.joinpath(f"{name}.csv")
    if not re.fullmatch(r"\w+", name) or not file.is_file():
        names = [path.name.removesuffix(".csv") for path in folder.iterdir() if path.name.endswith(".csv")]
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
    """The rows of some tables for one dataset and one partition: with this name, else with names containing it."""
    rows = [row for name in names for row in read(name)]
    about = [row for row in rows if dataset in (None, row.dataset)]
    # "Dir(0.5)" is a partition, and also part of another partition's name.
    exactly = [row for row in about if row.partition == partition]
    chosen = exactly or [row for row in about if partition is None or partition in row.partition]
    if not chosen:
        offered = sorted({f"{row.dataset}, {row.partition}" for row in rows})
        raise ValueError(f"expected rows about {dataset}, {partition}, got none; there are {'; '.join(offered)}")
    return chosen


def plain_metric(metric: str) -> str:
    """A published metric without the number of a cluster: ``a[c0]`` is ``a``."""
    return metric.partition("[")[0]


def plain_label(label: str) -> str:
    """The label of an algorithm without case and punctuation: "q-FFL(q=1)" and "qffl_q1" are the same."""
    return re.sub(r"[^a-z0-9]", "", label.lower())


def _digits(lines: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """One unit of the last decimal by metric; transcriptions drop final zeros, so that most numbers decide."""
    decimals: dict[str, Counter[int]] = {}
    for line in lines:
        counts = decimals.setdefault(line["metric"], Counter())
        if not math.isnan(_number(line["mean"])):
            counts[len(line["mean"].partition(".")[2])] += 1
    return {
        metric: 10.0 ** -max(counts, key=lambda number, c=counts: (c[number], number), default=0)
        for metric, counts in decimals.items()
    }


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # empty, or "undefined"
        return math.nan


# --- Our cells -----------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """The place of a number in published tables; the fields are those of ``Published``."""

    paper: str
    table: str
    dataset: str
    partition: str
    split: str
    algorithm: str
    metric: str


class Measured(NamedTuple):
    """One of our numbers."""

    cell: Cell  # its place; the data set may be another one than the paper's
    mean: float  # over seeds
    std: float  # the paper's kind of spread (``verdicts.spread``); NaN if it is not known
    seeds: int
    rounds: int  # after how many
    date: str  # of the run, as 2026-11-21
    note: str  # from where the number is
    deviation: float = math.nan  # standard deviation over seeds; NaN if it is not known

    @property
    def sample(self) -> Sample:
        """The number over seeds, which verdicts are about."""
        return Sample(self.mean, self.deviation, self.seeds)


COLUMNS = (*Cell._fields, *Measured._fields[1:])


def cell_of(row: Published) -> Cell:
    """The place of a printed number."""
    return Cell(row.paper, row.table, row.dataset, row.partition, row.split, row.algorithm, row.metric)


def read_cells(path: pathlib.Path) -> list[Measured]:
    """Reads a file of measured cells."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "not UTF-8"
        raise ValueError(f"expected a CSV file of measured cells, got {str(path)!r} ({said})") from None
    lines = list(csv.reader(text.splitlines()))
    if not lines or tuple(lines[0]) != COLUMNS:
        got = shown(",".join(lines[0])) if lines else "an empty file"
        raise ValueError(f"expected the columns {','.join(COLUMNS)} in {str(path)!r}, got {got}")
    return _once([_measured(line, f"line {place} of {str(path)!r}") for place, line in enumerate(lines[1:], 2)], path)


def read_folder(folder: pathlib.Path) -> list[Measured]:
    """The cells of all CSV files in a folder, by name of the file."""
    return _once([cell for path in sorted(folder.glob("*.csv")) for cell in read_cells(path)], folder)


def save_cells(path: pathlib.Path, cells: Sequence[Measured]) -> None:
    """Writes cells into a file; of those that it already has, the same places are replaced and others stay."""
    before = read_cells(path) if path.exists() else []
    merged = {measured.cell: measured for measured in (*before, *cells)}
    with writing_to("a place for measured cells", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _text(merged.values()).encode())


def _once(cells: list[Measured], where: pathlib.Path) -> list[Measured]:
    seen: set[Cell] = set()
    for measured in cells:
        if measured.cell in seen:
            raise ValueError(f"expected every cell once in {str(where)!r}, got {', '.join(measured.cell)} twice")
        seen.add(measured.cell)
    return cells


def _text(cells: Iterable[Measured]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for measured in cells:
        mean, std, deviation = (
            "" if math.isnan(value) else f"{value:.6g}" for value in (measured.mean, measured.std, measured.deviation)
        )
        writer.writerow([*measured.cell, mean, std, *measured[3:-1], deviation])
    return out.getvalue()


def _measured(line: Sequence[str], where: str) -> Measured:
    if len(line) != len(COLUMNS):
        raise ValueError(f"expected {len(COLUMNS)} values in {where}, got {len(line)}")
    place, rest = Cell(*line[: len(Cell._fields)]), line[len(Cell._fields) :]
    try:
        mean, std, deviation = float(rest[0]), float(rest[1] or "nan"), float(rest[6] or "nan")
        seeds, rounds = int(rest[2]), int(rest[3])
        datetime.date.fromisoformat(rest[4])
    except ValueError as error:
        raise ValueError(f"expected numbers and a date in {where}, got {shown(','.join(rest[:5]))} ({error})") from None
    if not math.isfinite(mean) or std < 0 or deviation < 0 or min(seeds, rounds) < 1:
        got = shown(",".join(rest[:4]))
        raise ValueError(f"expected a finite mean, a spread from 0, seeds and rounds from 1 in {where}, got {got}")
    return Measured(place, mean, std, seeds, rounds, rest[4], rest[5], deviation)
