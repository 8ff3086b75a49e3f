"""``Scoring``: scores of the task (``fljax.metrics.scores``) at chosen evaluations of a run.

Predictions come from one compiled program, which is made at the first evaluation that has scores, and never where no
score is asked for. Where examples or states of clients are on the host, it takes a block of clients at a time.
Evaluations without scores have NaN. The last evaluation has scores, also of a run that is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fljax.engine.loop.checkpointing import function_name
from fljax.engine.loop.compilation import Programs
from fljax.engine.loop.schedule import Schedule
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs.predictions import predictions
from fljax.engine.rounds.states import State
from fljax.metrics.scores import Predicted, Score, rare_class, scores_of_clients, sentences_of
from fljax.protocol import Federation, Labelled, Task

_PREFIXES = {"client": "", "unseen": "unseen_"}


class Scoring(NamedTuple):
    """The scores of some runs.

    Attributes:
      scores: what is computed; nothing is if there are none.
      rounds: between two evaluations that have scores; None: only the last one has.
      classes: whether the task has classes.
      runs: their number.
      sizes: the number of clients by dimension, "client" and, if there are any, "unseen".
    """

    scores: tuple[Score, ...]
    rounds: int | None
    classes: bool
    runs: int
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, schedule: Schedule, task: Task, federation: Federation, runs: int) -> Scoring:
        """The scores that a schedule asks for.

        Raises:
          ValueError: if a score needs classes and the task has none, or ``score_every`` is out of range.
        """
        every = schedule.score_every
        if every is not None and every < 1:
            raise ValueError(f"expected score_every to be a positive number of evaluations, got {every}")
        for score in schedule.scores:
            if task.classes is None and not score.is_own:
                raise ValueError(
                    f"expected a task of classes for the score {score.name}, got one with classes = None; a function "
                    "of one's own, (labels, outputs) -> float, takes any task"
                )
        rounds = None if every is None or schedule.evaluate_every is None else every * schedule.evaluate_every
        sizes = {"client": federation.clients.id.shape[-1]}
        if federation.unseen is not None:
            sizes["unseen"] = federation.unseen.id.shape[-1]
        return cls(schedule.scores, rounds, task.classes is not None, runs, sizes)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with a run that goes on."""
        if not self.scores:
            return {}
        names = [f"{score.name} by {function_name(score.compute)}" for score in self.scores]
        return {"scores": names, "score_every": self.rounds}

    def measured(self, run: Programs | OffloadRun, state: State, done: int, last: bool) -> dict[str, Labelled]:
        """The scores after ``done`` rounds, by name, ``[runs, ...]``; NaN if they are not due."""
        if not self.scores:
            return {}
        if last or (self.rounds is not None and done % self.rounds == 0):
            return self._computed(run, state, done)
        names = sentences_of(self.scores)
        scores: dict[str, Labelled] = {}
        for dimension, size in self.sizes.items():
            for name in names:
                axes = (dimension,) if name.startswith("score_") else ()
                values = np.full((self.runs, *(size for _ in axes)), np.nan)
                scores[_PREFIXES[dimension] + name] = Labelled(values, axes)
        return scores

    def at_end(
        self, run: Programs | OffloadRun, state: State, done: int, scores: dict[str, Labelled]
    ) -> dict[str, Labelled]:
        """The evaluation ``scores`` of a run that was stopped after it, with its scores."""
        due = self.rounds is not None and done % self.rounds == 0
        return scores if due or not self.scores else scores | self._computed(run, state, done)

    def _computed(self, run: Programs | OffloadRun, state: State, done: int) -> dict[str, Labelled]:
        if isinstance(run, Programs):
            made = predictions(run.spec, run.layout, run.inputs, state, jnp.int32(done))
        else:
            made = run.predictions(state)
        of_all = {dimension: Predicted(*jax.tree.map(np.asarray, part)) for dimension, part in made.items()}
        rare = rare_class(list(of_all.values())) if self.classes else None  # one for all seeds and clients
        scores: dict[str, Labelled] = {}
        for dimension, predicted in of_all.items():
            of_runs = [
                scores_of_clients(self.scores, Predicted(*(leaf[place] for leaf in predicted)), rare, self.classes)
                for place in range(self.runs)
            ]
            for name in of_runs[0]:
                axes = (dimension,) if name.startswith("score_") else ()
                scores[_PREFIXES[dimension] + name] = Labelled(np.array([part[name] for part in of_runs]), axes)
        return scores

    def described(self, metrics: xr.Dataset) -> xr.Dataset:
        """Results whose scores say what they are (``long_name``) and whether lower is better (``lower``, 0 or 1)."""
        lower = {score.name: int(score.lower) for score in self.scores}
        for name, sentence in sentences_of(self.scores).items():
            for variable in (name, f"unseen_{name}"):
                if variable in metrics:
                    about = {"long_name": sentence, "lower": lower[name.split("score_", 1)[1]]}
                    metrics[variable] = metrics[variable].assign_attrs(about)
        return metrics
