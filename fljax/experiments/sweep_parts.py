"""A sweep in parts, which run apart, for example as jobs of a cluster, and are joined afterwards.

A part is a sweep of some of the algorithms over some of the values of each axis, in a run folder of its own:
``parts/NUMBER-of-COUNT`` of the folder of the sweep. So each part has its own lock, checkpoints, log and results. The
names say how the sweep was divided.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.config import dumps
from fljax.config.sweeping import Grid
from fljax.core.files import write
from fljax.experiments import sweep
from fljax.experiments.inputs.setup import CallbackSetup
from fljax.experiments.outputs.progress_files import Saving
from fljax.results.differences import difference
from fljax.results.environment import join_environments
from fljax.results.folders import (
    CONFIG,
    ENVIRONMENT,
    PARTS,
    PATIENCE,
    OnEvent,
    Parts,
    check_new,
    claim,
    config_of,
    is_used,
    locked,
    read_finished,
    save,
)
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


def folder_of(directory: pathlib.Path, number: int, count: int) -> pathlib.Path:
    """The run folder of part ``number``, from 1, of ``count``."""
    return directory / PARTS / f"{number}-of-{count}"


def count_of(directory: pathlib.Path) -> int | None:
    """Into how many parts the sweep of a folder was divided; None if no part has begun.

    Raises:
      ValueError: if there are parts of several divisions.
    """
    names = (re.fullmatch(r"\d+-of-(\d+)", each.name) for each in (directory / PARTS).glob("*"))
    counts = sorted({int(name[1]) for name in names if name})
    if len(counts) > 1:
        raise ValueError(
            f"expected the parts of one division, got those of {counts} in {str(directory / PARTS)!r}: "
            "remove those of all but one"
        )
    return counts[0] if counts else None


def begin(grid: Grid, directory: pathlib.Path, number: int, count: int) -> Part | None:
    """Makes the folder of the sweep, with its config, and that of a part.

    Parts may begin in the same instant: each waits for the others. JAX does not start, here and in ``join``.

    Args:
      grid: the whole sweep.
      directory: its folder.
      number: of the part, from 1.
      count: as for ``split``.

    Returns:
      The part; None if the sweep is divided into fewer than ``number`` parts.

    Raises:
      ValueError: if the folder has results of something else or parts of another config or ``count``, or if
        ``sweep.check`` refuses the grid.
    """
    sweep.check(grid)
    text, parts, used = dumps(grid.config), split(grid, count), is_used(directory)
    with locked(directory, PATIENCE):
        if (directory / PARTS).exists():
            _check_same(directory, text, number, count)
        else:
            check_new(directory, used, remedy="")
            write(directory / CONFIG, text.encode())
            (directory / PARTS).mkdir()  # also by a part without cells: others that wait here see whose config it is
        if number > len(parts):
            return None
        folder_of(directory, number, count).mkdir(parents=True, exist_ok=True)
    return parts[number - 1]


def _check_same(directory: pathlib.Path, text: str, number: int, count: int) -> None:
    """Raises a ValueError if the parts of a folder are of another config or division."""
    where, written, before = str(directory), config_of(directory), count_of(directory)
    if written is None:
        raise ValueError(f"expected {CONFIG} of the sweep beside its parts in {where!r}, got none that can be read")
    if (changed := difference(written, text)) is not None:
        raise ValueError(
            f"expected the config of the parts in {where!r}, got a changed one: {changed} (take another folder for it)"
        )
    if before not in (None, count):
        raise ValueError(f"expected a part of {before}, as those in {where!r} are, got {number}/{count}")


def run_part(
    part: Part,
    directory: pathlib.Path,
    saving: Saving | None = None,
    on_event: OnEvent | None = None,
    callbacks: Sequence[CallbackSetup] = (),
) -> sweep.Outcome:
    """Runs a part in its folder ``directory``, as ``sweep.run`` does, and goes on with what is there."""
    return sweep.run(
        part.grid,
        directory=directory,
        resume=True,
        on_event=on_event,
        saving=saving,
        callbacks=callbacks,
        whole=False,
    )


def is_finished(part: Part, directory: pathlib.Path) -> bool:
    """Whether the part's folder ``directory`` has the results of all of its algorithms.

    Raises:
      ValueError: if the folder is of something else.
    """
    return set(part.labels) <= _results(part, directory).keys()


def _results(part: Part, directory: pathlib.Path) -> Parts:
    if not directory.is_dir():
        return {}
    return read_finished(directory, dumps(part.grid.config), sweep.paths(part.grid))


class Joined(NamedTuple):
    """What the parts of a sweep have.

    Attributes:
      outcome: of the algorithms whose parts have ended; None if there are none.
      unfinished: the numbers of the parts, from 1, that do not have all of their results.
      parts: the number of parts that have cells.
    """

    outcome: sweep.Outcome | None
    unfinished: tuple[int, ...]
    parts: int


def join(grid: Grid, directory: pathlib.Path, count: int) -> Joined:
    """The results of all algorithms whose parts have ended, also written to the folder of the sweep.

    Its ``environment.json`` has the environments of the parts.

    Args:
      grid: the whole sweep.
      directory: the folder of the sweep.
      count: as for ``split``.

    Raises:
      ValueError: if a folder is of something else.
    """
    parts = dict(enumerate(split(grid, count), 1))
    held = {number: _results(part, folder_of(directory, number, count)) for number, part in parts.items()}
    unfinished = tuple(number for number, part in parts.items() if set(part.labels) - held[number].keys())
    whole: dict[str, tuple[xr.Dataset, xr.Dataset]] = {}
    environments: dict[int, pathlib.Path] = {}
    for label in (entry.label for entry in grid.config.algorithms):
        own = [number for number, part in parts.items() if label in part.labels]
        if all(label in held[number] for number in own):
            metrics, records = (
                _along(grid, [(parts[number].places, held[number][label][which]) for number in own]) for which in (0, 1)
            )
            whole[label] = metrics, records
            environments |= {number: folder_of(directory, number, count) / ENVIRONMENT for number in own}
    if not whole:
        return Joined(None, unfinished, len(parts))
    with claim(directory, dumps(grid.config), True, sweep.paths(grid), computes=False):
        metrics, records = sweep.join(grid, whole)
        join_environments(directory / ENVIRONMENT, dict(sorted(environments.items())))
        save(directory, metrics, records, dumps(grid.config))
    return Joined(sweep.outcome_of(metrics, records), unfinished, len(parts))


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as Slurm writes those of an array: ``2,5-7``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in found)


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
