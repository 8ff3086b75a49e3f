"""Our numbers for cells of published tables, as committed: CSV files in ``benchmarks/results/cells``.

Whole results are too large to commit. A cell is one number of one algorithm, in the paper's units. The columns are
those of ``Measured``.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fljax.core.files import write
from fljax.core.names import shown
from fljax.published.tables import Published


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
    """One of our numbers.

    Attributes:
      cell: its place; the data set may be another one than the paper's.
      mean: over seeds.
      std: the paper's kind of spread (``fljax.published.verdicts.spread``); NaN if it is not known.
      seeds: the number of seeds.
      rounds: after how many rounds.
      date: of the run, as 2026-11-21.
      note: from where the number is.
    """

    cell: Cell
    mean: float
    std: float
    seeds: int
    rounds: int
    date: str
    note: str


COLUMNS = (*Cell._fields, *Measured._fields[1:])


def cell_of(row: Published) -> Cell:
    """The place of a printed number."""
    return Cell(row.paper, row.table, row.dataset, row.partition, row.split, row.algorithm, row.metric)


def read_cells(path: pathlib.Path) -> list[Measured]:
    """Reads a file of measured cells.

    Raises:
      ValueError: if the file cannot be read, has other columns, or a line has an error, or a cell is there twice.
    """
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
    """The cells of all CSV files in a folder, by name of the file.

    Raises:
      ValueError: as ``read_cells``, or if two files have the same cell.
    """
    return _once([cell for path in sorted(folder.glob("*.csv")) for cell in read_cells(path)], folder)


def save_cells(path: pathlib.Path, cells: Sequence[Measured]) -> None:
    """Writes cells into a file; of those that it already has, the same places are replaced and others stay.

    Raises:
      ValueError: if the file has other content, or cannot be written.
    """
    before = read_cells(path) if path.exists() else []
    kept = {each.cell: each for each in before} | {each.cell: each for each in cells}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _text(kept.values()).encode())
    except OSError as error:
        said = getattr(error.__cause__, "strerror", None) or error.strerror or error
        raise ValueError(f"expected a place for measured cells, got {str(path)!r} ({said})") from None


def _once(cells: list[Measured], where: pathlib.Path) -> list[Measured]:
    seen: set[Cell] = set()
    for each in cells:
        if each.cell in seen:
            raise ValueError(f"expected every cell once in {str(where)!r}, got {', '.join(each.cell)} twice")
        seen.add(each.cell)
    return cells


def _text(cells: Iterable[Measured]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in cells:
        numbers = ["" if math.isnan(value) else f"{value:.6g}" for value in (each.mean, each.std)]
        writer.writerow([*each.cell, *numbers, each.seeds, each.rounds, each.date, each.note])
    return out.getvalue()


def _measured(line: Sequence[str], where: str) -> Measured:
    if len(line) != len(COLUMNS):
        raise ValueError(f"expected {len(COLUMNS)} values in {where}, got {len(line)}")
    place, rest = Cell(*line[: len(Cell._fields)]), line[len(Cell._fields) :]
    try:
        mean, std = float(rest[0]), float(rest[1] or "nan")
        seeds, rounds = int(rest[2]), int(rest[3])
        datetime.date.fromisoformat(rest[4])
    except ValueError as error:
        raise ValueError(f"expected numbers and a date in {where}, got {shown(','.join(rest[:5]))} ({error})") from None
    if not math.isfinite(mean) or std < 0 or min(seeds, rounds) < 1:
        got = shown(",".join(rest[:4]))
        raise ValueError(f"expected a finite mean, a spread from 0, seeds and rounds from 1 in {where}, got {got}")
    return Measured(place, mean, std, seeds, rounds, rest[4], rest[5])
