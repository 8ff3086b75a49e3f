"""How exact gradients through two rounds are in single precision.

Every method of the registry and every float that it declares, on the federations of law 17
(``tests/laws/slopes.py``): the tiny one in steps and in epochs, and 16 clients with rows of digits. Reverse mode in
float32 is compared with forward mode in float32, where there is one, with central differences in float64, and with
reverse mode in float64, also of a small multiple of the objective. The table has the largest difference of all
settings; floats that are flat have gradients of exactly 0, or the measurement ends.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.reporting import Row as Cells
from fljax import algorithms
from tests.laws.slopes import Double, Single, along, apart, both

NOTHING = 1e-7  # a slope below this is none


class Row(NamedTuple):
    """Relative differences of one float in one setting; NaN without forward mode, or if the float has no influence."""

    method: str
    float: str
    setting: str
    forward: float  # of reverse mode and forward mode, along a direction, by the sum of the slopes' sizes along it
    differences: float  # of reverse mode and central differences in float64, in the same way
    double: float  # of reverse mode and reverse mode in float64, by the largest entry
    small: float  # the same of ``SMALL`` times the objective


def measure(options: Namespace) -> Iterator[Cells]:
    """A row for each float of each method."""
    for name in options.methods.split(",") if options.methods else algorithms.REGISTRY:
        rows = [row for setting in options.settings.split(",") for row in measured(name, setting)]
        for key in dict.fromkeys(row.float for row in rows):
            found = np.array([row[3:] for row in rows if row.float == key])
            cells = ["none" if np.all(np.isnan(each)) else f"{np.nanmax(each):.1e}" for each in found.T]
            yield f"`{name}`", key, *cells


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
