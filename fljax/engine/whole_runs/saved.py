"""Finished blocks of whole runs in a folder: each is written when it ends, and the same call goes on without them."""
# Each ``runs-00000.npz`` has the checksum of the identity in ``runs.json``, so a file of other runs is not read.

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax.core.files import read_npz, write, write_npz
from fljax.core.sameness.record import FORCED, forced_in
from fljax.engine.loop.checkpointing import check_identity

_IDENTITY, _PLACE, _DIVERGED, _MEASURE, _MARKS = "runs.json", "place", "diverged", "measure/", "marks"


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

    @property
    def mark(self) -> int:
        """The checksum of the identity."""
        return _mark(self.identity)


def _mark(identity: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(identity, sort_keys=True).encode())


def finished(folder: RunFolder, shapes: Mapping[str, tuple[int, ...]], runs: int) -> tuple[list[FinishedRuns], str]:
    """The blocks that a folder has, and what differs by force; runs of damaged files are noted and computed anew."""
    folder.path.mkdir(parents=True, exist_ok=True)
    described = folder.path / _IDENTITY
    try:
        there = json.loads(described.read_bytes())
    except FileNotFoundError:
        there = None
    except ValueError:
        folder.note(f"{_IDENTITY} is damaged; the runs begin anew")
        there = None
    marks, forced = {folder.mark}, ""
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
        except ValueError:
            folder.note(f"{path.name} is damaged or of other runs; its runs are computed anew")
            path.unlink(missing_ok=True)
    return found, forced


def _read(path: pathlib.Path, marks: set[int], shapes: Mapping[str, tuple[int, ...]], runs: int) -> FinishedRuns:
    arrays = read_npz(path, "finished runs")
    place, diverged = arrays.get(_PLACE), arrays.get(_DIVERGED)
    measures = {name: arrays.get(_MEASURE + name) for name in shapes}
    whole = [array for array in measures.values() if array is not None]
    if place is None or diverged is None or len(whole) < len(measures) or int(arrays.get("mark", -1)) not in marks:
        raise ValueError(f"expected runs of this call in {path.name}")
    alike = all(array.shape == (len(place), *shapes[name]) for name, array in measures.items() if array is not None)
    if not alike or len(diverged) != len(place) or np.any((place < 0) | (place >= runs)):
        raise ValueError(f"expected whole runs in {path.name}")
    return FinishedRuns(place, {name: array for name, array in measures.items() if array is not None}, diverged)


def save(folder: RunFolder, block: FinishedRuns) -> None:
    """Writes a block; the folder has it as a whole or not at all."""
    numbers = [int(path.stem.removeprefix("runs-")) for path in folder.path.glob("runs-*.npz") if _is_numbered(path)]
    arrays = {_MEASURE + name: array for name, array in block.measures.items()}
    arrays |= {_PLACE: block.place, _DIVERGED: block.diverged, "mark": np.asarray(folder.mark)}
    write_npz(folder.path / f"runs-{max(numbers, default=-1) + 1:05d}.npz", arrays)


def _is_numbered(path: pathlib.Path) -> bool:
    return path.stem.removeprefix("runs-").isdigit()
