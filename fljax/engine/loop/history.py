"""What a run has recorded and measured so far, in memory or in the folder of its checkpoints."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fljax.engine.checkpoints import Series
from fljax.protocol import Info, Labelled

_RECORDS, _EVALUATIONS = "records", "evaluations"
# Bytes of records from which they are long.
LONG = 2**28


class History:
    """Records of all rounds and results of all evaluations of several runs.

    Args:
      folder: of the checkpoints; None: everything stays in memory.
      rounds: the largest number of rounds.
      evaluations: the largest number of evaluations.
    """

    def __init__(self, folder: pathlib.Path | None = None, rounds: int = 0, evaluations: int = 0) -> None:
        self._records = Series(None if folder is None else folder / _RECORDS, rounds)
        self._scores = Series(None if folder is None else folder / _EVALUATIONS, evaluations)
        self._axes: dict[str, dict[str, tuple[str, ...] | None]] = {_RECORDS: {}, _EVALUATIONS: {}}
        self._evaluated: list[int] = []

    def ran(self, info: Info, count: int) -> None:
        """Adds the records of ``count`` rounds, the first ones of ``info`` ``[runs, capacity, ...]``."""
        self._axes[_RECORDS] = _axes(info)
        self._records.append({name: _first(_values(entry), count) for name, entry in info.items()})
        if self._records.is_due:
            with contextlib.suppress(OSError):  # the next checkpoint will tell, and the rows stay in memory
                self._records.write()

    def measured(self, done: int, scores: Mapping[str, Labelled]) -> None:
        """Adds an evaluation ``[runs, ...]`` after ``done`` rounds."""
        self._axes[_EVALUATIONS] = _axes(scores)
        self._scores.append({name: _values(entry)[:, None] for name, entry in scores.items()})
        self._evaluated.append(done)

    def records(self) -> list[Info]:
        """The records as one block ``[runs, rounds, ...]``; empty without rounds."""
        found = self._records.read()
        axes = self._axes[_RECORDS]
        return [{name: _entry(found[name], axes[name]) for name in axes if name in found}] if found else []

    @property
    def is_long(self) -> bool:
        """Whether the records are in a folder and too many for the memory."""
        return self._records.written > 0 and self._records.nbytes > LONG

    def blocks(self) -> Iterator[Info]:
        """The records in blocks ``[runs, rounds, ...]``, of which few are in memory at once."""
        axes = self._axes[_RECORDS]
        for block in self._records.blocks():
            yield {name: _entry(block[name], axes[name]) for name in axes}

    def evaluations(self) -> list[tuple[int, dict[str, Labelled]]]:
        """``(rounds done, scores [runs, ...])`` of all evaluations."""
        found, axes = self._scores.read(), self._axes[_EVALUATIONS]
        return [
            (done, {name: Labelled(found[name][:, place], axes[name] or ()) for name in axes})
            for place, done in enumerate(self._evaluated)
        ]

    def saved(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and the description that ``resume`` needs; whole chunks are written to the folder.

        Raises:
          OSError: if the disk has no room.
        """
        arrays: dict[str, np.ndarray] = {}
        about: dict[str, Any] = {"evaluated": list(self._evaluated)}
        for name, series in ((_RECORDS, self._records), (_EVALUATIONS, self._scores)):
            series.write()
            arrays |= {f"{name}/{key}": values for key, values in series.rest().items()}
            told = {"written": series.written, "chunk": series.chunk, "checksums": dict(series.checksums)}
            about[name] = told | {"axes": self._axes[name]}
        return arrays, about

    def __reduce__(self) -> Any:
        """Pickles all of it; the copy is in memory."""
        return _in_memory, (self._axes, self._evaluated, self._records.read(), self._scores.read())

    def fill(self, axes: Any, evaluated: list[int], records: dict[str, Any], scores: dict[str, Any]) -> History:
        """Takes everything from another history; returns itself."""
        self._axes, self._evaluated = axes, evaluated
        self._records.append(records)
        self._scores.append(scores)
        return self

    @classmethod
    def resume(
        cls,
        folder: pathlib.Path,
        rounds: int,
        evaluations: int,
        arrays: Mapping[str, np.ndarray],
        about: Mapping[str, Any],
    ) -> History:
        """The history of a checkpoint.

        Raises:
          OSError, ValueError, KeyError: if what it needs of the folder is not there.
        """
        found = cls()
        found._evaluated = [int(done) for done in about["evaluated"]]

        def series(name: str, length: int) -> Series:
            told = about[name]
            found._axes[name] = {key: None if axes is None else tuple(axes) for key, axes in told["axes"].items()}
            own = {key: arrays[f"{name}/{key}"] for key in found._axes[name] if f"{name}/{key}" in arrays}
            return Series.resume(folder / name, length, told["written"], told["chunk"], told["checksums"], own)

        found._records, found._scores = series(_RECORDS, rounds), series(_EVALUATIONS, evaluations)
        return found


def _in_memory(*parts: Any) -> History:
    return History().fill(*parts)


def _values(entry: Any) -> np.ndarray:
    """The values in a dtype of NumPy: bfloat16 becomes float32."""
    values = np.asarray(entry.values if isinstance(entry, Labelled) else entry)
    return values.astype(np.float32) if values.dtype.kind == "V" else values


def _first(values: np.ndarray, count: int) -> np.ndarray:
    """The first rows; copied if there are others, whose memory is then free."""
    return values if values.shape[1] == count else values[:, :count].copy()


def _axes(info: Mapping[str, Any]) -> dict[str, tuple[str, ...] | None]:
    return {name: entry.dimensions if isinstance(entry, Labelled) else None for name, entry in info.items()}


def _entry(values: np.ndarray, axes: tuple[str, ...] | None) -> Any:
    return values if axes is None else Labelled(values, axes)
