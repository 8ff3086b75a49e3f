"""Results of the cells of a sweep, joined over the axes of its grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from fljax.config.sweeping import Axis
from fljax.folders import Parts


def unstack_cells(datasets: Sequence[xr.Dataset], axes: Sequence[Axis]) -> xr.Dataset:
    """Joins datasets of cells (last axis fastest) to one Dataset with the axes in front of every variable."""
    numbers = [
        each.assign({name: values.astype(np.int8) for name, values in each.items() if values.dtype == bool})
        for each in datasets
    ]
    joined = xr.concat(numbers, dim="cell", data_vars="all", coords="minimal", compat="override", join="outer")
    shape = tuple(len(axis.values) for axis in axes)
    names = tuple(axis.name for axis in axes)
    variables = {}
    for name, values in joined.items():
        rest = values.transpose("cell", ...)
        # A record may have the name of an axis.
        free = f"{name}_recorded" if name in names else str(name)
        variables[free] = ((*names, *rest.dims[1:]), rest.values.reshape(*shape, *rest.shape[1:]), values.attrs)
    return xr.Dataset(variables, {**joined.coords, **{axis.name: coordinate(axis.values) for axis in axes}})


def coordinate(values: Sequence[Any]) -> np.ndarray:
    """The coordinate of an axis: numbers unchanged, other values as text."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return np.asarray(values)
    return np.asarray([value if isinstance(value, str) else json.dumps(value) for value in values])


def shape_in_words(axes: Sequence[Axis]) -> str:
    """The numbers of values of all axes."""
    return ", ".join(f"{len(axis.values)} of {axis.name}" for axis in axes)


def values_of(axes: Sequence[Axis], place: int) -> dict[str, Any]:
    """The values of a cell by axis, from its place among the cells (last axis fastest)."""
    positions = _positions(axes, place)
    return {axis.name: axis.values[positions[axis.name]] for axis in axes}


def parts_of(parts: Parts, axes: Sequence[Axis], place: int) -> Parts:
    """Metrics and records of one cell by label, from its place among the cells (last axis fastest)."""
    at = _positions(axes, place)
    return {label: (metrics.isel(at), records.isel(at)) for label, (metrics, records) in parts.items()}


def _positions(axes: Sequence[Axis], place: int) -> dict[str, int]:
    """The position of a cell along each axis, from its place among the cells (last axis fastest)."""
    places = np.unravel_index(place, [len(axis.values) for axis in axes])
    return {axis.name: int(each) for axis, each in zip(axes, places, strict=True)}
