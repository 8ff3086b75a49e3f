"""The numbers of an evaluation, and one callback for every tracker that takes a dictionary of numbers and a step.

The numbers are every metric that has one value for each run of a block. Trackers get ``LABEL/mean/METRIC``,
``LABEL/seed_0/METRIC``, and in a sweep ``LABEL/cell_3/mean/METRIC``. For TensorBoard the metric is the tag and the rest
is the folder, so that algorithms and seeds are curves of one picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.engine.callbacks.contract import Block, Callback
from fljax.metrics import mean


class Scalars(NamedTuple):
    """The metrics of a block that are one number for each run.

    Attributes:
      seeds: the seed of every run. In a sweep all seeds of the first cell come first, then all seeds of the second.
      values: ``[runs]`` by the name of the metric; None in place of NaN and infinities, which JSON does not have.
    """

    seeds: tuple[int, ...]
    values: dict[str, list[float | None]]

    @property
    def cells(self) -> int:
        """The number of cells of a sweep in the block; 1 in a run."""
        return len(self.seeds) // max(1, len(set(self.seeds)))

    def by_cell(self, name: str) -> list[list[float | None]]:
        """The values of a metric, a list over seeds for each cell."""
        count = len(set(self.seeds))
        return [self.values[name][cell * count : (cell + 1) * count] for cell in range(self.cells)]

    def named(
        self, label: str = "", cells: Sequence[int] = (), by_seed: bool = True
    ) -> Iterator[tuple[str, str, float]]:
        """``(whose, metric, value)`` of every finite mean over seeds and of every finite value.

        Args:
          label: of the algorithm.
          cells: numbers of the cells of a sweep; empty in a run.
          by_seed: whether to give the values of single seeds too.

        Yields:
          ``whose`` is ``incfl/mean`` or ``incfl/seed_0``, and ``incfl/cell_3/mean`` in a sweep; without a label it
          begins with the cell or the mean.
        """
        count = len(set(self.seeds))
        for name in self.values:
            for place, row in enumerate(self.by_cell(name)):
                start = [label] * bool(label) + ([f"cell_{cells[place]}"] if cells else [])
                value = mean(row)
                if value is not None:
                    yield "/".join([*start, "mean"]), name, value
                for seed, each in zip(self.seeds[:count], row, strict=True):
                    if by_seed and each is not None:
                        yield "/".join([*start, f"seed_{seed}"]), name, each


def scalars_of(block: Block) -> Scalars:
    """The metrics of a block that are one number for each run, with seven digits."""
    seeds = tuple(np.asarray(block.state.seed).tolist())
    values = {
        name: [finite(value) for value in np.asarray(each, float).tolist()]
        for name, each in block.metrics.items()
        if np.ndim(each) == 1
    }
    return Scalars(seeds, values)


def finite(value: float) -> float | None:
    """The value with seven digits, more than float32 has; None if it is NaN or infinite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


# The methods of trackers that take (dictionary, step=): W&B's runs; MLflow, Comet and Lightning; Aim.
METHODS = ("log", "log_metrics", "track")


def track(
    run: Any, *, label: str = "", cells: Sequence[int] = (), by_seed: bool = True, with_step: bool = True
) -> Callback:
    """A callback that logs every metric of each evaluation, the one before the first round included.

    ``simulate(..., callbacks=[track(wandb.init())])``. The names are ``LABEL/mean/METRIC`` for the mean over seeds with
    a finite value, and ``LABEL/seed_0/METRIC`` for single seeds, for example
    ``incfl/mean/incentivised_participation_rate``; in a sweep ``LABEL/cell_3/mean/METRIC``. Without a label they begin
    with ``mean`` and ``seed_0``. Values that are NaN or infinite are left out. ``LABEL/round`` is the number of rounds
    done, and ``LABEL/seconds`` the seconds of the block.

    Args:
      run: has ``log(values, step=)`` (a run of W&B), ``log_metrics(values, step=)`` (the module ``mlflow``) or
        ``track(values, step=)`` (a run of Aim); fljax imports none of them.
      label: of the algorithm, the beginning of all names.
      cells: in a sweep, the numbers of the cells in a block; an experiment gives them.
      by_seed: whether to log single seeds too.
      with_step: whether to give the round as ``step``. W&B ignores steps that do not grow, so for several algorithms in
        one of its runs set False, and let ``LABEL/round`` be the axis: ``run.define_metric("incfl/*", "incfl/round")``.

    Raises:
      ValueError: if ``run`` has no such method.
    """
    log = _method(run)
    start = f"{label}/" if label else ""

    def callback(block: Block) -> None:
        named = scalars_of(block).named(label, cells, by_seed)
        values: dict[str, float] = {f"{whose}/{name}": value for whose, name, value in named}
        values |= {f"{start}round": block.round, f"{start}seconds": block.seconds}
        if with_step:
            log(values, step=block.round)
        else:
            log(values)

    marked: Any = callback
    marked.at_start = True
    return callback


def _method(run: Any) -> Callable[..., Any]:
    for name in METHODS:
        found = getattr(run, name, None)
        if callable(found):
            return found
    valid = " or ".join(f"{name}(values, step=)" for name in METHODS)
    raise ValueError(f"expected a run of a tracker, with {valid}, got {type(run).__name__}")
