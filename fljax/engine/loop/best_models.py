"""``BestSoFar``: the best models of each run so far, chosen by the loop after every evaluation.

The best models are on the host and are copied when an evaluation is better, so that the device holds no second state.
They are chosen by validation rows only. The rows of a state are seeds, each of its own round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fljax import metrics
from fljax.core import processes
from fljax.engine.devices.layout import of_this_process
from fljax.engine.loop.schedule import OnEvaluated
from fljax.engine.programs.program import Spec
from fljax.engine.rounds.states import State, arrays_of, with_arrays
from fljax.protocol import Labelled

_STATE, _ROUND, _VALUE = "state", "round", "value"


def criterion(scores: Mapping[str, Labelled]) -> tuple[np.ndarray, bool]:
    """The number of each run by which its best models are chosen, ``[runs]``, and whether lower is better.

    It is the mean over clients of ``valid_accuracy``, or of ``valid_loss`` if the task has no score; never one of test
    rows.
    """
    lower = "valid_accuracy" not in scores
    values = np.asarray(scores["valid_loss" if lower else "valid_accuracy"].values)
    return np.asarray(metrics.average_accuracy(values)), lower


class BestSoFar:
    """Keeps the best models of each run, and calls a function after every evaluation.

    The best state is on the host, so that the memory of the device stays as estimated.

    Args:
      best: whether the best models are kept; or the numbers of rounds done of the evaluations that count.
      on_evaluated: called with the number of rounds done and the state.
    """

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
        """What a checkpoint must have in common with a run that keeps its best models."""
        if not self._on:
            return {}
        return {"keep_best": True if self._counting is None else sorted(self._counting)}

    def begin(self) -> None:
        """Forgets what was kept; a run that had no memory begins anew."""
        self._state = {}

    def evaluated(self, done: int, scores: Mapping[str, Labelled], state: State) -> None:
        """Looks at an evaluation: the first of equal values stays, and NaN or infinity is never the best."""
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
        own = {f"{_STATE}/{name}": values for name, values in self._state.items()}
        return own | {_ROUND: self._round, _VALUE: self._value}

    def resume(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on with the arrays of a checkpoint."""
        if self._on and arrays:
            prefix = f"{_STATE}/"
            self._state = {name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)}
            self._round, self._value = arrays[_ROUND], arrays[_VALUE]

    def result(self, like: State) -> tuple[State, np.ndarray, np.ndarray] | None:
        """The best state of all runs, the rounds after which it was, and its values; ``like`` has its structure."""
        return (with_arrays(like, self._state), self._round, self._value) if self._state else None


def _rows(chosen: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    found = old.copy()
    found[chosen] = new[chosen]
    return found


def runs_of(found: tuple[State, np.ndarray, np.ndarray], own: slice) -> tuple[State, np.ndarray, np.ndarray]:
    """The best models of some of the runs."""
    return jax.tree.map(lambda leaf: leaf[own], found)
