"""Finished blocks of whole runs in a folder: each is written when it ends, and the same call goes on without them.

The measures of all runs are one labelled table on the host.
"""

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Bool

from fljax.core.files import read_npz, write, write_npz
from fljax.core.sameness import FORCED, forced_in
from fljax.engine.loop.checkpointing import check_identity
from fljax.engine.whole_runs.program import RunEnd
from fljax.protocol import Labelled, unlabelled

# Each ``runs-00000.npz`` has the checksum of the identity in ``runs.json``, so a file of other runs is not read.


_IDENTITY, _PLACE, _DIVERGED, _MEASURE = "runs.json", "place", "diverged", "measure/"
_MARK, _MARKS = "mark", "marks"


class FinishedRuns(NamedTuple):
    """The results of some runs."""

    place: np.ndarray  # among all runs
    measures: Mapping[str, np.ndarray]  # by name, [b, ...]
    diverged: np.ndarray


class RunFolder(NamedTuple):
    """A folder of finished blocks."""

    path: pathlib.Path
    identity: dict[str, Any]  # what the runs are of, as in JSON
    note: Callable[[str], Any]  # called with sentences for the user
    force: bool = False


def _mark(identity: Mapping[str, Any]) -> int:
    """The checksum of an identity."""
    return zlib.crc32(json.dumps(identity, sort_keys=True).encode())


def finished(folder: RunFolder, shapes: Mapping[str, tuple[int, ...]], runs: int) -> tuple[list[FinishedRuns], str]:
    """The blocks that a folder has, and what differs by force; runs of damaged files are noted and computed anew."""
    folder.path.mkdir(parents=True, exist_ok=True)
    described, there = folder.path / _IDENTITY, None
    try:
        there = json.loads(described.read_bytes()) if described.exists() else None
    except ValueError:
        folder.note(f"{_IDENTITY} is damaged; the runs begin anew")
    marks, forced = {_mark(folder.identity)}, ""
    if there is not None:
        before, forced = there.pop(_MARKS, []), there.pop(FORCED, "")
        differ = check_identity(there, folder.identity, folder.path, folder.note, folder.force)
        marks, forced = {*marks, *before, _mark(there)}, forced_in(forced, differ)
    if there != folder.identity:
        write(described, json.dumps(folder.identity | {_MARKS: sorted(marks), FORCED: forced}).encode())
    found = []
    for path in sorted(folder.path.glob("runs-*.npz")):
        try:
            found.append(_read(path, marks, shapes, runs))
        except (ValueError, KeyError):
            folder.note(f"{path.name} is damaged or of other runs; its runs are computed anew")
            path.unlink(missing_ok=True)
    return found, forced


def _read(path: pathlib.Path, marks: set[int], shapes: Mapping[str, tuple[int, ...]], runs: int) -> FinishedRuns:
    arrays = read_npz(path, "finished runs")
    place, diverged, mark = (arrays[name] for name in (_PLACE, _DIVERGED, _MARK))
    measures = {name: arrays[_MEASURE + name] for name in shapes}
    alike = all(measures[name].shape == (len(place), *shape) for name, shape in shapes.items())
    if int(mark) not in marks or not alike or len(diverged) != len(place) or np.any((place < 0) | (place >= runs)):
        raise ValueError(f"expected whole runs of this call in {path.name}")
    return FinishedRuns(place, measures, diverged)


def save_runs(folder: RunFolder, block: FinishedRuns) -> None:
    """Writes a block; the folder has it as a whole or not at all."""
    numbers = [path.stem.removeprefix("runs-") for path in folder.path.glob("runs-*.npz")]
    number = 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)
    arrays = {_MEASURE + name: array for name, array in block.measures.items()}
    arrays |= {_PLACE: block.place, _DIVERGED: block.diverged, _MARK: np.asarray(_mark(folder.identity))}
    write_npz(folder.path / f"runs-{number:05d}.npz", arrays)


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
        values: Any = entry.values if isinstance(entry, Labelled) else entry
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
        name: np.asarray(values[:count], _float_of(values.dtype)) for name, values in unlabelled(end.measures).items()
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


def _float_of(dtype: Any) -> Any:
    """The floating dtype that a measure is kept in, so that a diverged run can be NaN."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.float64
    return np.float32 if jnp.finfo(dtype).bits < 32 else dtype
