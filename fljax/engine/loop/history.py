"""What a run has so far: ``History`` has its records and evaluations, ``BestSoFar`` the best models of each run."""
# Best models are on the host, so that the device holds no second state, and are chosen by validation rows only.

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fljax import metrics
from fljax.core import processes
from fljax.engine.checkpoints import Series
from fljax.engine.devices.layout import of_this_process
from fljax.engine.loop.schedule import OnEvaluated
from fljax.engine.programs.program import Spec
from fljax.engine.rounds.states import State, arrays_of, with_arrays
from fljax.protocol import Info, Labelled

_RECORDS, _EVALUATIONS = "records", "evaluations"
# Bytes of records from which they are long.
LONG = 2**28


class History:
    """Records of all rounds and all evaluations of several runs, in memory or in the folder of checkpoints."""

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
        values = self._records.read()
        axes = self._axes[_RECORDS]
        return [{name: _entry(values[name], axes[name]) for name in axes if name in values}] if values else []

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
        values, axes = self._scores.read(), self._axes[_EVALUATIONS]
        return [
            (done, {name: Labelled(values[name][:, place], axes[name] or ()) for name in axes})
            for place, done in enumerate(self._evaluated)
        ]

    def saved(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and the description that ``resume`` needs; whole chunks are written to the folder."""
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
        """The history of a checkpoint; raises OSError, ValueError or KeyError if the folder lacks what it needs."""
        history = cls()
        history._evaluated = [int(done) for done in about["evaluated"]]

        def series(name: str, length: int) -> Series:
            told = about[name]
            history._axes[name] = {key: None if axes is None else tuple(axes) for key, axes in told["axes"].items()}
            rows = {key: arrays[f"{name}/{key}"] for key in history._axes[name] if f"{name}/{key}" in arrays}
            return Series.resume(folder / name, length, told["written"], told["chunk"], told["checksums"], rows)

        history._records, history._scores = series(_RECORDS, rounds), series(_EVALUATIONS, evaluations)
        return history


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


_STATE, _ROUND, _VALUE = "state", "round", "value"


def criterion(scores: Mapping[str, Labelled]) -> tuple[np.ndarray, bool]:
    """The number of each run by which its best models are chosen, ``[runs]``, and whether lower is better."""
    # It is of validation rows, never of test rows.
    lower = "valid_accuracy" not in scores
    values = np.asarray(scores["valid_loss" if lower else "valid_accuracy"].values)
    return np.asarray(metrics.average_accuracy(values)), lower


class BestSoFar:
    """Keeps the best models of each run, and calls a function after every evaluation."""

    # ``best`` may be the numbers of rounds done of the evaluations that count.

    def __init__(self, best: bool | Collection[int] = False, on_evaluated: OnEvaluated | None = None) -> None:
        self._counting = None if isinstance(best, bool) else frozenset(best)
        self._on = best if isinstance(best, bool) else True
        self._on_evaluated = on_evaluated
        self._state: dict[str, np.ndarray] = {}
        self._round = self._value = np.zeros(0)

    @property
    def is_on(self) -> bool:
        """Whether the best models are kept."""
        return self._on

    def check(self, spec: Spec) -> None:
        """Raises a ValueError if no client has rows by which models could be chosen."""
        if self._on and not spec.valid:
            raise ValueError(
                "expected clients with validation rows, by which the best models are chosen, got none; set "
                "valid_fraction (data.valid_fraction in a config)"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a checkpoint and the run that resumes it must have in common."""
        if not self._on:
            return {}
        return {"keep_best": True if self._counting is None else sorted(self._counting)}

    def begin(self) -> None:
        """Forgets the best models; called when a run begins, also anew with a smaller layout."""
        self._state = {}

    def evaluated(self, done: int, scores: Mapping[str, Labelled], state: State) -> None:
        """Takes the models of an evaluation if they are better: of equal values the first stays; NaN is never best."""
        state = of_this_process(state)
        if self._on_evaluated is not None and processes.is_first():
            self._on_evaluated(done, state)
        if not self._on or not (self._counting is None or done in self._counting or not self._state):
            return
        value, lower = criterion(scores)
        if not self._state:  # also where no value is finite
            self._state = {name: np.array(values) for name, values in arrays_of(state).items()}
            self._round = np.full(value.shape, done, np.int32)
            self._value = np.where(np.isfinite(value), value, np.nan)
            return
        ahead = value < self._value if lower else value > self._value
        better = np.isfinite(value) & (ahead | np.isnan(self._value))
        if not better.any():
            return
        # New arrays, since a checkpoint of the old ones may be being written.
        self._state = {name: _rows(better, values, self._state[name]) for name, values in arrays_of(state).items()}
        self._round = np.where(better, np.int32(done), self._round)
        self._value = np.where(better, value, self._value)

    def saved(self) -> dict[str, np.ndarray]:
        """The arrays that ``resume`` needs."""
        if not self._state:
            return {}
        state = {f"{_STATE}/{name}": values for name, values in self._state.items()}
        return state | {_ROUND: self._round, _VALUE: self._value}

    def resume(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on with the arrays of a checkpoint."""
        if self._on and arrays:
            prefix = f"{_STATE}/"
            self._state = {
                name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)
            }
            self._round, self._value = arrays[_ROUND], arrays[_VALUE]

    def result(self, like: State) -> tuple[State, np.ndarray, np.ndarray] | None:
        """The best state of all runs, the rounds after which it was, and its values; ``like`` has its structure."""
        return (with_arrays(like, self._state), self._round, self._value) if self._state else None


def _rows(chosen: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    merged = old.copy()
    merged[chosen] = new[chosen]
    return merged


def runs_of(best: tuple[State, np.ndarray, np.ndarray], runs: slice) -> tuple[State, np.ndarray, np.ndarray]:
    """The entries of ``best`` for some of the runs: best states, their rounds and values, ``[runs, ...]``."""
    return jax.tree.map(lambda leaf: leaf[runs], best)
