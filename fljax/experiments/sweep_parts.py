"""A sweep in parts, which run apart, for example as jobs of a cluster, and are joined afterwards.

A part is a sweep of some of the algorithms over some of the values of each axis, in a run folder of its own:
``parts/NUMBER`` of the folder of the sweep. So each part has its own checkpoints, log and results.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.config import dumps
from fljax.config.sweeping import Grid
from fljax.experiments import sweep
from fljax.experiments.outputs.progress_files import Saving
from fljax.results.environment import join_environments
from fljax.results.folders import ENVIRONMENT, PARTS, OnEvent, Parts, claim, read_finished, save
from fljax.results.sweeps import Axis


class Part(NamedTuple):
    """Some algorithms over some values of each axis of a sweep.

    Attributes:
      grid: of the part alone.
      places: along each axis, the places of the values in the whole sweep.
    """

    grid: Grid
    places: tuple[tuple[int, ...], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its algorithms."""
        return tuple(entry.label for entry in self.grid.config.algorithms)


def split(grid: Grid, count: int) -> tuple[Part, ...]:
    """At most ``count`` parts of about the same number of cells; every cell of every algorithm is in one of them.

    The algorithms and the axes are cut into pieces; a part is one piece of each. The same grid and ``count`` give the
    same parts.

    Raises:
      ValueError: if ``count`` is not positive.
    """
    if count < 1:
        raise ValueError(f"expected a positive number of parts, got {count}")
    lengths = [len(grid.config.algorithms), *(len(axis.values) for axis in grid.axes)]
    pieces = _pieces(lengths, count)
    cuts = [
        [tuple(piece.tolist()) for piece in np.array_split(np.arange(n), k)]
        for n, k in zip(lengths, pieces, strict=True)
    ]
    found = []
    for place in np.ndindex(*pieces):
        algorithms, *places = (cuts[axis][at] for axis, at in enumerate(place))
        found.append(Part(_narrow(grid, algorithms, places), tuple(places)))
    return tuple(found)


def _pieces(lengths: Sequence[int], count: int) -> list[int]:
    """Into how many pieces each of several axes is cut: the longest pieces first, at most ``count`` in all."""
    pieces = [1] * len(lengths)
    while True:
        room = [
            axis
            for axis, length in enumerate(lengths)
            if pieces[axis] < length and math.prod(pieces) // pieces[axis] * (pieces[axis] + 1) <= count
        ]
        if not room:
            return pieces
        pieces[max(room, key=lambda axis: lengths[axis] / pieces[axis])] += 1


def _narrow(grid: Grid, algorithms: Sequence[int], places: Sequence[Sequence[int]]) -> Grid:
    axes = tuple(
        Axis(axis.name, axis.path, tuple(axis.values[at] for at in own))
        for axis, own in zip(grid.axes, places, strict=True)
    )
    number = np.arange(len(grid.cells)).reshape([len(axis.values) for axis in grid.axes])
    cells = [grid.cells[at] for at in number[np.ix_(*places)].ravel()]

    def some(config: Any, **changes: Any) -> Any:
        return config.model_copy(update={"algorithms": tuple(config.algorithms[at] for at in algorithms), **changes})

    assert grid.config.sweep is not None
    values = grid.config.sweep.model_copy(update={"grid": {axis.path: axis.values for axis in axes}})
    return Grid(some(grid.config, sweep=values), axes, tuple(some(cell) for cell in cells))


def folder_of(directory: pathlib.Path, number: int) -> pathlib.Path:
    """The run folder of a part."""
    return directory / PARTS / str(number)


def run_part(
    part: Part, directory: pathlib.Path, number: int, saving: Saving | None = None, on_event: OnEvent | None = None
) -> sweep.Outcome:
    """Runs one part in its folder; goes on with what is there."""
    folder = folder_of(directory, number)
    folder.mkdir(parents=True, exist_ok=True)
    return sweep.run(part.grid, directory=folder, resume=True, saving=saving, on_event=on_event)


def begin(grid: Grid, directory: pathlib.Path, resume: bool) -> None:
    """Makes the folder of the sweep, with its config. JAX does not start, here and in the functions below.

    Raises:
      ValueError: if ``fljax.results.folders.claim`` refuses the folder, or ``fljax.experiments.sweep.check`` the grid.
    """
    sweep.check(grid)
    with claim(directory, dumps(grid.config), resume, sweep.paths(grid), computes=False):
        pass


def open_parts(parts: Sequence[Part], directory: pathlib.Path, busy: Collection[int] = ()) -> list[int]:
    """The numbers of the parts whose folders do not have all of their results yet.

    Args:
      parts: from ``split``.
      directory: the folder of the sweep.
      busy: parts on which somebody works; they are left out, and their folders are not read.

    Raises:
      ValueError: if a folder is of another sweep, or a process works in it.
    """
    idle = [number for number in range(len(parts)) if number not in busy]
    return [number for number in idle if set(parts[number].labels) - _results(parts[number], directory, number).keys()]


def _results(part: Part, directory: pathlib.Path, number: int) -> Parts:
    folder = folder_of(directory, number)
    if not folder.is_dir():
        return {}
    return read_finished(folder, dumps(part.grid.config), sweep.paths(part.grid))


def join(grid: Grid, parts: Sequence[Part], directory: pathlib.Path) -> sweep.Outcome | None:
    """The results of all algorithms whose parts have ended, also written to the folder of the sweep.

    Its ``environment.json`` has the environments of the parts.

    Args:
      grid: the whole sweep.
      parts: from ``split``.
      directory: the folder of the sweep.

    Returns:
      The outcome; None if no algorithm has all of its parts.
    """
    held = [_results(part, directory, number) for number, part in enumerate(parts)]
    whole: dict[str, tuple[xr.Dataset, xr.Dataset]] = {}
    environments: dict[int, pathlib.Path] = {}
    for label in (entry.label for entry in grid.config.algorithms):
        own = [number for number, part in enumerate(parts) if label in part.labels]
        if all(label in held[number] for number in own):
            metrics, records = (
                _along(grid, [(parts[number].places, held[number][label][which]) for number in own]) for which in (0, 1)
            )
            whole[label] = metrics, records
            environments |= {number: folder_of(directory, number) / ENVIRONMENT for number in own}
    if not whole:
        return None
    with claim(directory, dumps(grid.config), True, sweep.paths(grid), computes=False):
        metrics, records = sweep.join(grid, whole)
        join_environments(directory / ENVIRONMENT, dict(sorted(environments.items())))
        save(directory, metrics, records, dumps(grid.config))
    return sweep.outcome_of(metrics, records)


def _along(grid: Grid, pieces: Sequence[tuple[tuple[tuple[int, ...], ...], xr.Dataset]]) -> xr.Dataset:
    """Joins the pieces of one algorithm along every axis of the grid."""
    found = list(pieces)
    for axis in range(len(grid.axes) - 1, -1, -1):
        together: dict[Any, list[tuple[tuple[tuple[int, ...], ...], xr.Dataset]]] = {}
        for places, each in found:
            together.setdefault(places[:axis], []).append((places, each))
        found = []
        for places, own in together.items():
            ordered = [each for _, each in sorted(own, key=lambda one: one[0][axis])]
            name = grid.axes[axis].name
            joined = xr.concat(
                ordered, dim=name, data_vars="minimal", coords="minimal", compat="override", join="outer"
            )
            found.append((places, joined))
    return found[0][1]
