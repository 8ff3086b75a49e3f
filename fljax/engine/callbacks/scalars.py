"""The numbers of one evaluation: every metric that has one value for each run of a block.

Trackers get ``LABEL/mean/METRIC``, ``LABEL/seed_0/METRIC``, and in a sweep ``LABEL/cell_3/mean/METRIC``. For
TensorBoard the metric is the tag and the rest is the folder, so that algorithms and seeds are curves of one picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fljax.engine.callbacks.contract import Block
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
