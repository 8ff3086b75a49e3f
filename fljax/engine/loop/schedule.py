"""The schedule and the hooks of a run: the two values that ``simulate``, ``sweep`` and estimates of a run share."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from fljax.engine.callbacks.contract import Callback
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Memory
from fljax.engine.programs.execution import Execution
from fljax.engine.rounds.keys import Seeds
from fljax.engine.rounds.states import State
from fljax.results.non_finite import NonFinite

OnMemory = Callable[[Memory], Any]
OnEvaluated = Callable[[int, State], Any]


class Schedule(NamedTuple):
    """Rounds, seeds, evaluations and execution of a run; ``simulate`` explains the fields."""

    rounds: int
    seeds: Seeds = (0,)
    evaluate_every: int | None = None
    evaluate_at: Sequence[int] = ()
    execution: Execution = Execution()
    non_finite: NonFinite = "freeze"

    def evaluations(self, first: int) -> list[int]:
        """The rounds done after which a run from round ``first`` is evaluated, its first evaluation left out."""
        end = first + self.rounds
        usual = range(first + self.evaluate_every, end, self.evaluate_every) if self.evaluate_every else ()
        last = [end] if end > first else []
        return sorted({*usual, *(done for done in self.evaluate_at if first < done < end), *last})


class Hooks(NamedTuple):
    """Callbacks and checkpoints of a run; ``simulate`` explains the fields."""

    callbacks: Sequence[Callback] = ()
    on_memory: OnMemory | None = None
    checkpoint: str | pathlib.Path | Checkpoint | None = None
    keep_best: bool | Collection[int] = False
    on_evaluated: OnEvaluated | None = None
