"""Callbacks that end a run: when a metric no longer improves, or when a function of the block says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fljax.core.names import unknown
from fljax.core.signatures import is_whole
from fljax.engine.callbacks.contract import Block, Callback
from fljax.metrics.registry import OF_ONE_EVALUATION, is_lower_better


def stop_early(metric: str, *, patience: int = 5, minimum_change: float = 0.0, lower: bool | None = None) -> StopEarly:
    """A callback that stops a run after ``patience`` evaluations in a row without improvement.

    An evaluation improves if the mean over seeds is better than the best one before by more than ``minimum_change``.
    The evaluation before the first round does not count. Seeds whose value is NaN are left out of the mean, and a mean
    of no value is no improvement. All seeds stop together. In a sweep the cells that run together stop once the rule
    holds for each of them.

    A metric of test rows is allowed, but what was chosen by test rows looks better on them than on new ones: prefer
    ``average_valid_accuracy`` and ``average_valid_loss``, of validation rows.

    Args:
      metric: one of ``fljax.metrics.registry.OF_ONE_EVALUATION``. Those that compare with standalone models need
        ``reference=``.
      patience: a number of evaluations, at least 1.
      minimum_change: at least 0, in the units of the metric.
      lower: whether lower is better; None: as for sweeps (losses and numbers of opt-outs).

    Raises:
      ValueError: if an argument is out of range; in a run, if its evaluations do not have the metric.
    """
    if metric not in OF_ONE_EVALUATION:
        raise ValueError(unknown("metric", metric, OF_ONE_EVALUATION))
    if not is_whole(patience) or patience < 1:
        raise ValueError(f"expected patience to be a positive number of evaluations, got {patience!r}")
    if not 0 <= minimum_change < math.inf:
        raise ValueError(f"expected minimum_change to be a finite number of at least 0, got {minimum_change!r}")
    return StopEarly(metric, patience, minimum_change, is_lower_better(metric) if lower is None else lower)


def stop_when(reached: Callable[[Block], bool]) -> Callback:
    """Stops the run after the first block for which ``reached(block)`` is True.

    ``stop_when(lambda block: block.metrics["incentivised_participation_rate"].mean() > 0.5)`` needs ``reference=``.
    """
    return lambda block: bool(reached(block))


class StopEarly:
    """The callback of ``stop_early``; what it answers depends on the evaluations of the run so far alone.

    Attributes:
      metric: its name.
      history: ``(round, means)`` of every evaluation, with a mean over seeds for each cell of a sweep (one in a run).
    """

    def __init__(self, metric: str, patience: int, minimum_change: float, lower: bool) -> None:
        self.metric = metric
        self.history: list[tuple[int, list[float]]] = []
        self._patience, self._minimum_change, self._lower = patience, minimum_change, lower

    def __call__(self, block: Block) -> bool:
        """Adds the evaluation to the history; whether the run stops."""
        self._add(block)
        return self._is_over()

    def replay(self, blocks: Iterable[Block]) -> bool:
        """Sets the history to the evaluations of a run that goes on; whether the run had stopped after them.

        Args:
          blocks: in order; of each only ``round``, ``ran``, ``metrics`` and the seeds of ``state`` are read. A block of
            no rounds, the evaluation before the first one, is passed over.
        """
        self.history = []
        for block in blocks:
            if block.ran:
                self._add(block)
        return self._is_over()

    @property
    def reason(self) -> str:
        """Why the run stops, in words."""
        change = f" by more than {self._minimum_change:g}" if self._minimum_change else ""
        evaluations = f"{self._patience} evaluation" + ("s" if self._patience > 1 else "")
        best = best_place([means[0] for _, means in self.history], self._minimum_change, self._lower)
        words = f"{self.metric} has not improved{change} in {evaluations}"
        if best is None or len(self.history[0][1]) > 1:
            return words
        round, (mean,) = self.history[best]
        return f"{words}, best {mean:.4g} after round {round}"

    def _add(self, block: Block) -> None:
        if self.metric not in block.metrics:
            valid = ", ".join(name for name in OF_ONE_EVALUATION if name in block.metrics)
            raise ValueError(
                f"expected evaluations with {self.metric}, by which the run may stop early, got none; valid names are "
                f"{valid}"
            )
        seeds = len(np.unique(np.asarray(block.state.seed)))
        values = np.asarray(block.metrics[self.metric], float).reshape(-1, seeds)
        known = ~np.isnan(values)  # infinity counts, unlike in ``metrics.over_seeds``: a diverged seed does not improve
        count = known.sum(axis=-1)
        means = np.where(count > 0, np.where(known, values, 0.0).sum(axis=-1) / np.maximum(count, 1), math.nan)
        self.history.append((block.round, means.tolist()))

    def _is_over(self) -> bool:
        if not self.history:
            return False
        cells = zip(*(means for _, means in self.history), strict=True)
        return all(self._has_ended(means) for means in cells)

    def _has_ended(self, means: Sequence[float]) -> bool:
        best = best_place(means, self._minimum_change, self._lower)
        return len(means) - (0 if best is None else best + 1) >= self._patience


def best_place(values: Sequence[float], minimum_change: float, lower: bool) -> int | None:
    """The last place that is better than the best one before by more than ``minimum_change``; None if all are NaN."""
    sign = -1.0 if lower else 1.0
    best, place = -math.inf, None
    for at, value in enumerate(values):
        score = sign * value
        if not math.isnan(score) and (place is None or score > best + minimum_change):
            best, place = score, at
    return place
