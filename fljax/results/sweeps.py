"""Results of the cells of a sweep, joined over the axes of its grid.

A cell that differs from another in the requirement alone is not run for an algorithm that does not read it. Its results
are judged again (``judged_by`` in ``fljax.results.values``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.metrics.uncertainty import over_seeds
from fljax.results.events import Parts, Results, at_end
from fljax.results.records import is_lower


def unstack_cells(datasets: Sequence[xr.Dataset], axes: Sequence[Axis]) -> xr.Dataset:
    """Joins datasets of cells (last axis fastest) to one Dataset with the axes in front of every variable."""
    numbers = [
        dataset.assign({name: values.astype(np.int8) for name, values in dataset.items() if values.dtype == bool})
        for dataset in datasets
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


# Along each axis, the places of the values that a part of a sweep has.
Places = tuple[tuple[int, ...], ...]


def joined_parts(axes: Sequence[Axis], pieces: Sequence[tuple[Places, xr.Dataset]]) -> xr.Dataset:
    """Joins the results of one algorithm in the parts of a sweep along every axis of its grid."""
    how: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "outer"}
    for axis in range(len(axes) - 1, -1, -1):
        together: dict[Any, list[tuple[Places, xr.Dataset]]] = {}
        for places, dataset in pieces:
            together.setdefault(places[:axis], []).append((places, dataset))
        joined = []
        for places, neighbours in together.items():
            ordered = sorted(neighbours, key=lambda piece: piece[0][axis])
            joined.append((places, xr.concat([dataset for _, dataset in ordered], dim=axes[axis].name, **how)))
        pieces = joined
    return pieces[0][1]


def divergences_in(metrics: xr.Dataset) -> tuple[tuple[Any, ...], ...]:
    """``(label, seed, round)`` of the runs with NaN or infinity; of a sweep ``(label, cell, seed, round)``."""
    if "diverged" not in metrics:
        return ()
    names, diverged = axes_of(metrics), []
    table = metrics["diverged"].transpose("algorithm", *names, "seed")
    for place in np.argwhere(table.values >= 0):
        label, *cell, seed = (table[dim].values.tolist()[i] for dim, i in zip(table.dims, place, strict=True))
        of_cell = [dict(zip(names, cell, strict=True))] if names else []
        diverged.append((label, *of_cell, seed, int(table.values[tuple(place)])))
    return tuple(diverged)


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
    return {label: Results(metrics.isel(at), records.isel(at)) for label, (metrics, records) in parts.items()}


def _positions(axes: Sequence[Axis], place: int) -> dict[str, int]:
    """The position of a cell along each axis, from its place among the cells (last axis fastest)."""
    places = np.unravel_index(place, [len(axis.values) for axis in axes])
    return {axis.name: int(position) for axis, position in zip(axes, places, strict=True)}


# The criteria by validation rows; the first one that results have is used, so that of losses for tasks without a score.
VALIDATION = ("average_valid_accuracy", "average_valid_loss")


# Tables of a config whose values make another problem, and not another method.
_OF_THE_PROBLEM = ("data", "model")


class Best(NamedTuple):
    """The best cell of one algorithm at the last evaluation, of the cells with one data set and one model."""

    algorithm: str  # its label
    criterion: str  # of the choice: the sweep's metric or one of ``VALIDATION``
    cell: dict[str, Any]  # value by axis; None on an axis without effect on the algorithm
    chosen_by: float  # mean of the criterion over seeds in this cell
    mean: float  # of the sweep's metric over seeds in this cell
    std: float  # over these seeds (n - 1; NaN for one seed)
    seeds: int  # number of seeds with a finite value
    edges: tuple[str, ...]  # numeric axes of more than two values on which the cell has the least or the largest value


def axes_of(metrics: xr.Dataset) -> list[str]:
    """Names of the axes of a sweep's results; empty for results of a run."""
    return list(_paths(metrics))


def problem_axes(metrics: xr.Dataset) -> list[str]:
    """Names of the axes that change the data or the model: cells that differ in them are not compared."""
    return [axis for axis, path in _paths(metrics).items() if path.split(".")[0].strip() in _OF_THE_PROBLEM]


def _paths(metrics: xr.Dataset) -> dict[str, str]:
    """The paths of a sweep's axes in the config, by name."""
    return json.loads(metrics.attrs.get("grid", "{}"))


def by_problem(metrics: xr.Dataset) -> list[tuple[dict[str, Any], xr.Dataset]]:
    """The values of the axes of the problem, and the cells with these, for each combination of values."""
    return list(cells_of(metrics, problem_axes(metrics)))


def cells_of(metrics: xr.Dataset, axes: Sequence[str]) -> Iterator[tuple[dict[str, Any], xr.Dataset]]:
    """Each combination of values of some axes, and the results at it, which lack these axes."""
    rest = {axis: path for axis, path in _paths(metrics).items() if axis not in axes}
    whole = metrics.assign_attrs(grid=json.dumps(rest)) if axes else metrics
    for place in itertools.product(*(range(metrics.sizes[axis]) for axis in axes)):
        at = dict(zip(axes, place, strict=True))
        yield {axis: metrics[axis].values[at[axis]].item() for axis in axes}, whole.isel(at, drop=True)


def places_of(metrics: xr.Dataset, cell: Mapping[str, Any]) -> dict[str, int]:
    """The position of a cell along each axis, from its values; 0 where None stands for all."""
    known = {name: metrics[name].values.tolist() for name in cell}
    return {name: 0 if value is None else known[name].index(value) for name, value in cell.items()}


def number(value: Any) -> str:
    """A value of an axis as text; ``any`` for None."""
    if value is None:
        return "any"
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_words(value: Any) -> str:
    """A value of an axis as a label of a picture: tables of a config have their texts before their numbers by name."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except ValueError:  # a text that begins so
            return value
    if isinstance(value, list):
        tables = all(isinstance(entry, dict) for entry in value)
        return (" + " if tables else ", ").join(map(in_words, value)) or "none"
    if isinstance(value, dict):
        texts = " ".join(entry.replace("_", " ") for entry in value.values() if isinstance(entry, str))
        rest = [f"{name} {in_words(entry)}" for name, entry in value.items() if not isinstance(entry, str)]
        return ", ".join(filter(None, [texts, *rest])) or "none"
    return number(value)


def label_of(algorithm: str, values: Mapping[str, Any]) -> str:
    """An algorithm with its values of axes, ``fedavg (rate = 0.1)``; None is left out."""
    told = ", ".join(f"{axis} = {number(value)}" for axis, value in values.items() if value is not None)
    return f"{algorithm} ({told})" if told else algorithm


def best(metrics: xr.Dataset, metric: str) -> tuple[Best, ...]:
    """Every algorithm's best cells, with each data set and model, by ``metric`` and by validation rows, if any."""
    if metric not in metrics:
        raise ValueError(f"expected metric to be in the results, got {metric!r}")
    # Cells with a diverged seed only if there are no others; of equal ones the first.
    return tuple(
        choice._replace(cell={name: (choice.cell | values)[name] for name in axes_of(metrics)})
        for values, cells in by_problem(metrics)
        for choice in _best_of_one(cells, metric)
    )


def _best_of_one(metrics: xr.Dataset, metric: str) -> list[Best]:
    """``best`` of the cells of one problem."""
    names = axes_of(metrics)
    by_validation = () if metric in VALIDATION else [name for name in VALIDATION if name in metrics][:1]
    best_cells = []
    for algorithm in metrics["algorithm"].values:
        last = at_end(metrics).sel(algorithm=algorithm)
        judged = last[metric].transpose(*names, "seed")
        for criterion in dict.fromkeys([metric, *by_validation]):
            mean = over_seeds(last[criterion].transpose(*names, "seed").values, axis=-1).mean
            sound = (last["diverged"].transpose(*names, "seed").values < 0).all(axis=-1)
            score = np.where(np.isfinite(mean), -mean if is_lower(metrics[criterion]) else mean, -np.inf)
            if (sound & np.isfinite(score)).any():
                score = np.where(sound, score, -np.inf)
            if not np.isfinite(score).any():
                continue
            at = np.unravel_index(int(np.argmax(score)), score.shape)
            both = (judged.values, last[criterion].transpose(*names, "seed").values)
            same = [all(_makes_no_difference(values, place) for values in both) for place in range(len(names))]
            cell = {
                name: None if same[place] else metrics[name].values.tolist()[at[place]]
                for place, name in enumerate(names)
            }
            edges = tuple(
                name
                for place, name in enumerate(names)
                if cell[name] is not None and _at_edge(metrics[name].values, at[place])
            )
            summary = over_seeds(judged.values[at])
            best_cells.append(Best(str(algorithm), criterion, cell, float(np.asarray(mean)[at]), *summary, edges))
    return best_cells


def _makes_no_difference(values: np.ndarray, axis: int) -> bool:
    return values.shape[axis] > 1 and np.array_equal(
        values, np.broadcast_to(values.take([0], axis), values.shape), equal_nan=True
    )


def _at_edge(values: np.ndarray, place: Any) -> bool:
    """Whether the value is the least or the largest of more than two numbers."""
    numeric = np.issubdtype(values.dtype, np.number)
    return bool(numeric and len(values) > 2 and values[place] in (values.min(), values.max()))


class Axis(NamedTuple):
    """One axis of a grid: its name in results, the path of the key, and the values in the given order."""

    name: str
    path: str
    values: tuple[Any, ...]
