"""``Scoring``: scores of the task (``fljax.metrics.scores``) at chosen evaluations of a run, and NaN at the others.

The last evaluation has scores, also of a run that is stopped. A function of one's own is called on made rows before
anything is trained, and refused if no rows could mend it. A client for which it fails later has NaN and is named.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fljax.engine.loop.checkpointing import function_name
from fljax.engine.loop.compilation import Programs
from fljax.engine.loop.schedule import Schedule
from fljax.engine.offload.run import OffloadRun
from fljax.engine.programs.evaluation import predictions
from fljax.engine.rounds.states import State
from fljax.metrics.scores import (
    SCORES,
    NoValue,
    Predicted,
    Score,
    probabilities,
    rare_class,
    scores_of_clients,
    sentences_of,
    value_of,
)
from fljax.protocol import Federation, Labelled, Names, Task
from fljax.training import prepare

_PREFIXES = {"client": "", "unseen": "unseen_"}
_ROWS = 64  # made rows of each class, or of a task without classes
_MOST = 2**20  # numbers in made rows, and in the matrices of all clients
_MISTAKES = (NameError, AttributeError, TypeError, ImportError, KeyError, IndexError, NotImplementedError)
_NAMED = 5  # clients in a sentence


def check_scores(scores: Sequence[Score], task: Task, federation: Federation) -> None:
    """Raises a ValueError if a score needs classes and the task has none, or a function fails on any rows."""
    for score in scores:
        if task.classes is None and not score.is_own:
            raise ValueError(
                f"expected a task of classes for the score {score.name}, got one with classes = None; a function "
                "of one's own, (labels, outputs) -> float, takes any task"
            )
        if score.wants == "matrix" and (size := federation.clients.id.shape[-1] * (task.classes or 0) ** 2) > _MOST:
            raise ValueError(f"expected at most {_MOST:,} numbers (clients x classes^2) of {score.name}, got {size:,}")
    own = [score for score in scores if SCORES.get(score.name) is not score]
    rows = _made_rows(task, federation) if own else None
    if rows is None:
        return
    for score in own:
        try:
            value_of(score, rows[0], rows[1], rare=0)
        except NoValue as error:
            told, cause = NoValue(score.name, f"{len(rows[0])} made rows", error.got), error.__cause__
            row = isinstance(cause, IndexError) and re.search(r"axis 0|(list|tuple) index|positional", str(cause))
            if cause is None or (isinstance(cause, _MISTAKES) and not row):
                raise told from cause
            warnings.warn(f"{told}; the run goes on, as its rows may differ", RuntimeWarning, stacklevel=1)


def _made_rows(task: Task, federation: Federation) -> tuple[np.ndarray, np.ndarray] | None:
    """Labels with all classes and probabilities; without classes real rows and the untrained model's outputs."""
    draw, examples = np.random.default_rng(0), federation.examples
    if task.classes is not None:
        count = max(2, min(_ROWS * task.classes, _MOST // task.classes))
        made = probabilities(draw.normal(size=(count, task.classes)))
        return (np.arange(count) % task.classes).astype(examples.y.dtype), made
    x, y = (np.asarray(leaf[:_ROWS]) for leaf in (examples.x, examples.y))
    try:
        outputs = jax.jit(lambda key, x: task.logits(task.init(key), prepare(task, x)))(jax.random.key(0), x)
    except jax.errors.UnexpectedTracerError:  # what the builder of a plan made
        return None
    return y, np.asarray(outputs)


class Scoring(NamedTuple):
    """The scores of some runs; nothing is computed if there are none."""

    scores: tuple[Score, ...]
    rounds: int | None  # between two evaluations that have scores; None: only the last one has
    offset: int  # evaluations are so much after multiples of ``rounds``, if a run goes on between two
    classes: int | None
    runs: int
    sizes: Mapping[str, int]  # the number of clients by dimension, "client" and maybe "unseen"
    names: Names
    failed: dict[tuple[str, str], str]  # by score and client, what a function of one's own did; it grows during the run

    @classmethod
    def of(cls, schedule: Schedule, first: int, task: Task, federation: Federation, runs: int, names: Names) -> Scoring:
        """The scores that a schedule from round ``first`` on asks for."""
        every = schedule.score_every
        if every is not None and every < 1:
            raise ValueError(f"expected score_every to be a positive number of evaluations, got {every}")
        check_scores(schedule.scores, task, federation)
        rounds = None if every is None else every * schedule.spacing
        sizes = {"client": federation.clients.id.shape[-1]}
        if federation.unseen is not None:
            sizes["unseen"] = federation.unseen.id.shape[-1]
        return cls(schedule.scores, rounds, first % schedule.spacing, task.classes, runs, sizes, names, {})

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
        if last or self._due(done):
            return self._computed(run, state, done)
        scores: dict[str, Labelled] = {}
        for dimension, size in self.sizes.items():
            none = Predicted(np.zeros((size, 0, self.classes or 1)), np.zeros((size, 0)), *np.zeros((2, size), int))
            for name, value in scores_of_clients(self.scores, none).items():
                values = np.full((self.runs, *np.shape(value)), np.nan, np.asarray(value).dtype)
                scores[_PREFIXES[dimension] + name] = _labelled(dimension, values)
        return scores

    def at_end(
        self, run: Programs | OffloadRun, state: State, done: int, scores: dict[str, Labelled]
    ) -> dict[str, Labelled]:
        """The evaluation ``scores`` of a run that was stopped after it, with its scores."""
        return scores if self._due(done) or not self.scores else scores | self._computed(run, state, done)

    def _due(self, done: int) -> bool:
        return self.rounds is not None and (done - self.offset) % self.rounds == 0

    def _computed(self, run: Programs | OffloadRun, state: State, done: int) -> dict[str, Labelled]:
        if isinstance(run, Programs):
            made = predictions(run.spec, run.layout, run.inputs, state, jnp.int32(done))
        else:
            made = run.predictions(state)
        of_all: dict[str, Predicted] = jax.tree.map(np.asarray, made)
        rare = rare_class(list(of_all.values())) if self.classes else None  # one for all seeds and clients
        scores: dict[str, Labelled] = {}
        for dimension, predicted in of_all.items():
            note = functools.partial(self._note, dimension)
            of_each = [Predicted(*(leaf[place] for leaf in predicted)) for place in range(self.runs)]
            of_runs = [scores_of_clients(self.scores, each, rare, self.classes is not None, note) for each in of_each]
            for name in of_runs[0]:
                values = np.array([part[name] for part in of_runs])
                scores[_PREFIXES[dimension] + name] = _labelled(dimension, values)
        return scores

    def _note(self, dimension: str, score: str, client: int | None, got: str) -> None:
        """Remembers that a client of a population (None: all of them together) has no value."""
        names = self.names.clients if dimension == "client" else self.names.unseen
        whose = f"{'unseen ' * (dimension == 'unseen')}client {client if names is None else names[client or 0]}"
        self.failed.setdefault((score, "all test rows" if client is None else whose), got)

    def notes(self, known: int = 0) -> dict[str, str]:
        """A sentence by score on the clients without a value, but for the first ``known`` of them."""
        by_score: dict[str, list[tuple[str, str]]] = {}
        for (score, whose), got in list(self.failed.items())[known:]:
            by_score.setdefault(score, []).append((whose, got))
        return {score: _no_values(score, failed) for score, failed in by_score.items()}

    def described(self, metrics: xr.Dataset) -> xr.Dataset:
        """Results whose scores say their ``long_name``, whether ``lower`` (0 or 1) is better, and who ``failed``."""
        lower, failed = {score.name: int(score.lower) for score in self.scores}, self.notes()
        for name, sentence in sentences_of(self.scores).items():
            for variable in (name, f"unseen_{name}"):
                if variable in metrics:
                    score = name.split("score_", 1)[1]
                    about = {"long_name": sentence, "lower": lower[score]}
                    about |= {"failed": failed[score]} if score in failed else {}
                    metrics[variable] = metrics[variable].assign_attrs(about)
        return metrics


def _labelled(dimension: str, values: np.ndarray) -> Labelled:
    """A score ``[runs]``, ``[runs, clients]`` or ``[runs, clients, C, C]``."""
    return Labelled(values, (dimension, "label", "predicted")[: values.ndim - 1])


def _no_values(score: str, failed: Sequence[tuple[str, str]]) -> str:
    """A sentence on clients for which a function of one's own has no value, and what it did for the first of them."""
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return f"{NoValue(score, ', '.join(whose for whose, _ in failed[:_NAMED]) + more, failed[0][1])}; it is NaN there"
