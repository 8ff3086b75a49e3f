"""What tests of runs have in common: numbers of a result, results that are the same, and a run that dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xarray as xr

from fljax.engine import Block, arrays_of
from fljax.results import Result
from fljax.testing.laws import assert_close, assert_same


class Killed(Exception):
    """In place of a process that dies."""


def kill_at(round: int) -> Callable[[Block], None]:
    """A callback that ends the process at the first evaluation after so many rounds."""

    def callback(block: Block) -> None:
        if block.round >= round:
            raise Killed

    return callback


def numbers_of(result: Result) -> dict[str, Any]:
    """All numbers of a result by name, without times and execution."""
    found: dict[str, Any] = {f"state/{name}": each for name, each in arrays_of(result.state).items()}
    for kind, table in (("metrics", result.metrics), ("records", result.records)):
        names = [name for name in table.data_vars if not str(name).startswith(("seconds", "execution"))]
        found |= {f"{kind}/{name}": table[name].values for name in names}
    return found


def assert_close_results(found: Result, expected: Result, tolerance: float = 1e-5) -> None:
    """Equal up to rounding, with the same dtypes."""
    one, other = numbers_of(found), numbers_of(expected)
    assert set(one) == set(other)
    for name, values in one.items():
        assert values.dtype == other[name].dtype, name
        assert_close(values, other[name], tolerance)


def assert_same_results(found: Result, expected: Result) -> None:
    """Bit for bit; only times differ."""
    clock = [name for name in expected.metrics if str(name).startswith("seconds_")]
    xr.testing.assert_identical(found.metrics.drop_vars(clock), expected.metrics.drop_vars(clock))
    xr.testing.assert_identical(found.records, expected.records)
    assert_same(found.state, expected.state)
    assert found.diverged == expected.diverged
