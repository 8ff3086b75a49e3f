"""Measures of whole runs on the host: their names, shapes and dimensions, and the labelled table of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Bool

from fljax.engine.whole_runs.program import RunEnd
from fljax.engine.whole_runs.saved import FinishedRuns
from fljax.protocol import Labelled

_TAKEN = ("run", "seed", "diverged", "member")


class MeasureKind(NamedTuple):
    """One measure: its shape for one run, the dtype in which it is kept, and the names of its dimensions."""

    shape: tuple[int, ...]
    dtype: Any
    dimensions: tuple[str, ...]


class RunTable(NamedTuple):
    """The results of all runs so far, as arrays that are filled in place."""

    measures: dict[str, np.ndarray]  # by name, [runs, ...]
    diverged: Bool[np.ndarray, " runs"]
    left: Bool[np.ndarray, " runs"]  # whether a run is not finished yet


def measure_kinds(end: RunEnd) -> dict[str, MeasureKind]:
    """The measures of a block, whose arrays have an axis of runs in front; only shapes and dtypes are read."""
    found = {}
    for name, entry in end.measures.items():
        values = _values(entry)
        if name in _TAKEN or "/" in name:
            raise ValueError(f"expected names of measures without '/' and other than {', '.join(_TAKEN)}, got {name!r}")
        shape = tuple(values.shape[1:])
        numbered = tuple(f"{name}_axis_{axis}" for axis in range(len(shape)))
        dimensions = entry.dimensions if isinstance(entry, Labelled) else numbered
        found[name] = MeasureKind(shape, _float_of(values.dtype), dimensions)
    return found


def computed_rows(end: RunEnd, place: np.ndarray) -> FinishedRuns:
    """The runs at ``place`` from the first rows of a program's results, with measures as floats."""
    count = len(place)
    measures = {
        name: np.asarray(_values(entry)[:count], _float_of(_values(entry).dtype))
        for name, entry in end.measures.items()
    }
    return FinishedRuns(place, measures, np.asarray(end.diverged[:count]))


def empty_table(kinds: Mapping[str, MeasureKind], runs: int) -> RunTable:
    """The table before any run is finished."""
    measures = {name: np.full((runs, *kind.shape), np.nan, kind.dtype) for name, kind in kinds.items()}
    return RunTable(measures, np.zeros(runs, bool), np.ones(runs, bool))


def enter(table: RunTable, done: FinishedRuns) -> None:
    """Writes finished runs into the table. Measures of runs that diverged are NaN."""
    for name, values in done.measures.items():
        table.measures[name][done.place] = values
        table.measures[name][done.place[done.diverged]] = np.nan
    table.diverged[done.place], table.left[done.place] = done.diverged, False


def labelled_table(
    table: RunTable, kinds: Mapping[str, MeasureKind], seeds: Sequence[int], member: Bool[np.ndarray, "R N"] | None
) -> xr.Dataset:
    """The table over ``run``, ``seed`` and the dimensions of each measure; ``member`` is a coordinate."""
    shape = (len(table.diverged) // len(seeds), len(seeds))
    variables: dict[str, Any] = {
        name: (("run", "seed", *kinds[name].dimensions), values.reshape(*shape, *values.shape[1:]))
        for name, values in table.measures.items()
    }
    variables["diverged"] = (("run", "seed"), table.diverged.reshape(shape))
    coordinates: dict[str, Any] = {"run": np.arange(shape[0]), "seed": list(seeds)}
    if member is not None:
        coordinates["member"] = (("run", "client"), member)
    found = xr.Dataset(variables, coordinates)
    return found.assign_coords({dim: np.arange(size) for dim, size in found.sizes.items() if dim not in found.coords})


def _values(entry: Any) -> Any:
    return entry.values if isinstance(entry, Labelled) else entry


def _float_of(dtype: Any) -> Any:
    """The floating dtype that a measure is kept in, so that a diverged run can be NaN."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.float64
    return np.float32 if jnp.finfo(dtype).bits < 32 else dtype
