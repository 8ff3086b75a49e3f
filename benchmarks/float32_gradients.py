"""How exact gradients through two rounds are in single precision: ``python benchmarks/float32_gradients.py``.

Every method of the registry and every float that it declares, on the federations of law 17
(``tests/laws/slopes.py``): the tiny one in steps and in epochs, and 16 clients with rows of digits. Reverse mode in
float32 is compared with forward mode in float32, where there is one, and with central differences in float64. It needs
the tests' packages.

To compare two versions: ``--save before.csv`` in the other one, then ``--before before.csv`` here.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax import algorithms

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.laws.slopes import Double, Single, along, apart, both

SETTINGS = ("steps", "epochs", "16")
NOTHING = 1e-7  # a slope below this is none
COLUMNS = ("forward mode", "finite differences", "double precision", "small objective")


class Row(NamedTuple):
    """Relative differences of one float in one setting; NaN without forward mode, or if the float has no influence.

    Attributes:
      forward: of reverse mode and forward mode, along a direction, by the sum of the slopes' sizes along it.
      differences: of reverse mode and central differences in float64, in the same way.
      double: of reverse mode and reverse mode in float64, by the largest entry.
      small: the same of ``SMALL`` times the objective.
    """

    method: str
    float: str
    setting: str
    forward: float
    differences: float
    double: float
    small: float


def main() -> None:
    """Computes all rows, prints the table and writes files."""
    parser = argparse.ArgumentParser(description="Gradients through rounds in float32.")
    parser.add_argument("--methods", default=",".join(algorithms.REGISTRY), help="comma-separated")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="steps, epochs, or a number of clients")
    parser.add_argument("--save", type=Path, help="a CSV file of all rows")
    parser.add_argument("--before", type=Path, help="rows of another version")
    parser.add_argument("--out", type=Path, help="a Markdown file")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.methods.split(","):
        for setting in options.settings.split(","):
            rows += measured(name, setting)
        if options.save:
            with options.save.open("w", newline="") as file:
                csv.writer(file).writerows([Row._fields, *rows])
        print(f"{name}: {np.nanmax([row[3:] for row in rows if row.method == name]):.1e}", flush=True)
    text = table(rows, read(options.before) if options.before else None)
    print(text)
    if options.out:
        options.out.write_text(f"# Gradients in float32, {datetime.date.today()}\n\n{text}")


def measured(name: str, setting: str) -> list[Row]:
    """The rows of one method in one setting. Floats that are flat must have gradients of exactly 0."""
    single, double = both(name, setting)
    flat = [key for key in double.reverse if key in algorithms.REGISTRY[name].flat]
    wrong = [key for key in flat if np.any(single.reverse[key]) or np.any(double.reverse[key])]
    if wrong:
        raise SystemExit(f"expected gradients of 0 of {name} in {', '.join(wrong)}")
    return [row(name, key, setting, single, double) for key in double.reverse if key not in flat]


def row(name: str, key: str, setting: str, single: Single, double: Double) -> Row:
    """Compares the derivatives in one float."""
    expected, direction = double.reverse[key], along(double.reverse[key])
    size = float(np.vdot(np.abs(expected), direction))
    if size < NOTHING:
        return Row(name, key, setting, *[np.nan] * 4)
    slope = np.vdot(single.reverse[key].astype(np.float64), direction)
    others = (np.nan if single.forward is None else float(single.forward[key]), double.differences[key])
    forward, differences = (abs(float(slope) - other) / size for other in others)
    return Row(
        name,
        key,
        setting,
        forward,
        differences,
        apart(single.reverse[key], expected),
        apart(single.small[key], expected),
    )


def read(path: Path) -> list[Row]:
    """Rows that ``--save`` has written."""
    with path.open(newline="") as file:
        found = list(csv.reader(file))[1:]
    return [Row(*each[:3], *map(float, each[3:])) for each in found]  # pyright: ignore[reportArgumentType]


def table(rows: Sequence[Row], before: Sequence[Row] | None) -> str:
    """A line for each float of each method, with the largest difference of all settings."""
    lines = [f"| method | float | {' | '.join(COLUMNS)} |", "|---|---|" + "---|" * len(COLUMNS)]
    for method, key in dict.fromkeys((row.method, row.float) for row in rows):
        cells = [cell(found, method, key) for found in (before, rows) if found is not None]
        lines.append(f"| `{method}` | {key} | {' | '.join(' to '.join(each) for each in zip(*cells, strict=True))} |")
    flat = [f"`{name}`: {', '.join(entry.flat)}" for name, entry in algorithms.REGISTRY.items() if entry.flat]
    return "\n".join([*lines, "", f"Flat, with gradients of exactly 0: {'; '.join(flat)}.", ""])


def cell(rows: Sequence[Row], method: str, key: str) -> list[str]:
    """The largest differences of one float."""
    found = np.array([row[3:] for row in rows if (row.method, row.float) == (method, key)])
    return ["none" if np.all(np.isnan(each)) else f"{np.nanmax(each):.1e}" for each in found.T]


if __name__ == "__main__":
    main()
