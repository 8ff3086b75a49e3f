"""The schedule and the hooks of a run: the two values that ``simulate``, ``sweep`` and estimates of a run share."""

from __future__ import annotations

import bisect
import pathlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from fljax.core.names import shown
from fljax.core.signatures import is_whole
from fljax.engine.callbacks.contract import Callback
from fljax.engine.checkpoints import Checkpoint
from fljax.engine.devices.layout import Memory
from fljax.engine.programs.execution import Execution
from fljax.engine.rounds.keys import Seeds
from fljax.engine.rounds.states import State
from fljax.metrics.registry import needs_of
from fljax.metrics.scores import Score
from fljax.protocol.rounds import usual_spacing
from fljax.results.non_finite import NonFinite

OnMemory = Callable[[Memory], Any]
OnEvaluated = Callable[[int, State], Any]


class Stops(Sequence[int]):
    """Ascending numbers: those of a range, which takes no memory since a run may stop early, and some more."""

    def __init__(self, usual: range, more: Iterable[int]) -> None:
        self._usual = usual
        # By their place among all.
        others = sorted({number for number in more if number not in usual})
        below = (bisect.bisect_left(usual, number) for number in others)
        self._more = {count + place: number for place, (count, number) in enumerate(zip(below, others, strict=True))}

    def __len__(self) -> int:
        return len(self._usual) + len(self._more)

    def __getitem__(self, place: Any) -> Any:
        place = range(len(self))[place]
        return self._more[place] if place in self._more else self._usual[place - sum(at < place for at in self._more)]

    def __repr__(self) -> str:
        return f"{self._usual} and {self._more}"


class Schedule(NamedTuple):
    """Rounds, seeds, evaluations and execution of a run; ``simulate`` explains the fields."""

    rounds: int
    seeds: Seeds = (0,)
    evaluate_every: int | None = None
    evaluate_at: Sequence[int] = ()
    execution: Execution = Execution()
    non_finite: NonFinite = "freeze"
    extra_metrics: Sequence[str] = ()
    scores: tuple[Score, ...] = ()
    score_every: int | None = None

    @property
    def spacing(self) -> int:
        """Rounds between two evaluations."""
        return usual_spacing(self.rounds) if self.evaluate_every is None else self.evaluate_every

    def needs(self, valid: bool) -> tuple[str, ...]:
        """What evaluations judge for ``extra_metrics``; ``valid``: whether some client has validation rows.

        Raises:
          ValueError: if a name is unknown, or no client has the validation rows that a metric is about.
        """
        needs = needs_of(self.extra_metrics)
        if any("_valid_" in name for name in needs) and not valid:
            about = ", ".join(name for name in self.extra_metrics if name.startswith("valid_"))
            raise ValueError(f"expected clients with validation rows for {about}, got none (valid_fraction keeps some)")
        return needs

    def evaluations(self, first: int) -> Sequence[int]:
        """The rounds done after which a run from round ``first`` is evaluated, its first evaluation left out."""
        given: Any = self.evaluate_at  # a user may give anything
        chosen = [*given] if isinstance(given, Iterable) else [given]
        if not isinstance(given, Iterable) or not all(map(is_whole, chosen)):
            raise ValueError(f"expected evaluate_at to be a list of whole numbers, got {shown(given)}")
        end = first + self.rounds
        usual = range(first + self.spacing, end, self.spacing)
        return Stops(usual, [done for done in (*chosen, end) if first < done <= end])


class Hooks(NamedTuple):
    """Callbacks and checkpoints of a run; ``simulate`` explains the fields."""

    callbacks: Sequence[Callback] = ()
    on_memory: OnMemory | None = None
    checkpoint: str | pathlib.Path | Checkpoint | None = None
    keep_best: bool | Collection[int] = False
    on_evaluated: OnEvaluated | None = None
