"""Which clients gain, by name: accuracies beside those of standalone models and of the first algorithm.

Clients of several seeds (or cells) are matched by their numbers, and have names where all of them call one the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from fljax.metrics.uncertainty import over_seeds
from fljax.protocol import Names
from fljax.results.events import at_end
from fljax.results.sweeps import axes_of, best, by_problem, cells_of, label_of, places_of, problem_axes

if TYPE_CHECKING:
    import pandas as pd

_NAMES = {"client": "client_name", "unseen": "unseen_name"}


class ClientGain(NamedTuple):
    """What a client has of an algorithm at its last evaluation; means over the seeds that have a number."""

    algorithm: str  # the label
    client: str  # its name, or else its number
    unseen: bool  # whether it did not train
    measure: str  # "accuracy", or "loss" for a task without accuracies, of the model that the client would use
    value: float  # the measure on the client's test rows
    standalone: float  # the same of its standalone model; NaN if there is none
    gain: float  # how much better ``value`` is than ``standalone``: above 0 the client gains
    std: float  # of the gain over seeds (n - 1); NaN for fewer than two
    seeds: int  # with a gain
    prefers: float  # share of these seeds with ``test_loss < standalone_test_loss`` (INCFL, equation 1)
    over_baseline: float  # how much better ``value`` is than that of the first algorithm


def with_names(metrics: xr.Dataset, names: Sequence[Names]) -> xr.Dataset:
    """Metrics with coordinates ``client_name`` and ``unseen_name``, where ``names`` of all seeds are the same."""
    for dimension, field in (("client", "clients"), ("unseen", "unseen")):
        of_seeds = {getattr(of_seed, field) for of_seed in names}
        called = of_seeds.pop() if len(of_seeds) == 1 else None
        if called is not None and metrics.sizes.get(dimension) == len(called):
            metrics = metrics.assign_coords({_NAMES[dimension]: (dimension, [str(name) for name in called])})
    return metrics


def names_of(metrics: xr.Dataset, dimension: str) -> list[str]:
    """The names along "client" or "unseen", or else the numbers."""
    coordinate = _NAMES[dimension] if _NAMES[dimension] in metrics.coords else dimension
    return [str(name) for name in metrics[coordinate].values]


def with_common_names(datasets: Iterable[xr.Dataset]) -> list[xr.Dataset]:
    """Results that will be joined, without the names of clients if some of them have others or none."""
    joined = list(datasets)
    for name in _NAMES.values():
        called = {tuple(map(str, each[name].values)) if name in each.coords else None for each in joined}
        if len(called) > 1:
            joined = [each.drop_vars(name, errors="ignore") for each in joined]
    return joined


# --- Gains ------------------------------------------------------------------------------------------------------


def gains(metrics: xr.Dataset) -> list[ClientGain]:
    """The gain of every client by every algorithm, seen clients first; empty without metrics by client."""
    if not _has_clients(metrics):
        return []
    last, lines = at_end(metrics), list[ClientGain]()
    labels = [str(label) for label in metrics["algorithm"].values]
    for label in labels:
        for population in _populations(last):
            value, alone, prefers = population.arrays(last, label)
            first = population.arrays(last, labels[0])[0]
            gain = over_seeds(population.gain(value, alone))
            columns = (
                over_seeds(value).mean,
                over_seeds(alone).mean,
                gain.mean,
                gain.std,
                gain.count,
                over_seeds(prefers).mean,
                over_seeds(population.gain(value, first)).mean,
            )
            names = names_of(metrics, population.dimension)
            for client, *numbers in zip(names, *(column.tolist() for column in columns), strict=True):
                lines.append(ClientGain(label, client, population.unseen, population.measure, *numbers))
    return lines


def gains_at_best(metrics: xr.Dataset) -> list[ClientGain]:
    """The gain of every client by every algorithm of a sweep, in its best cell (of each data set and model)."""
    # Along an axis that makes no difference to the metric, this is the first cell; ``gain_shares`` has all.
    metric, lines = str(metrics.attrs["metric"]), list[ClientGain]()
    for choice in best(metrics, metric) if _has_clients(metrics) else ():
        if choice.criterion == metric:
            label = label_of(choice.algorithm, {name: choice.cell[name] for name in problem_axes(metrics)})
            of_cell = gains(metrics.isel(places_of(metrics, choice.cell)))
            lines += [line._replace(algorithm=label) for line in of_cell if line.algorithm == choice.algorithm]
    return lines


class GainShare(NamedTuple):
    """In how many cells and seeds of a sweep a client is better off than with its standalone model."""

    algorithm: str
    client: str  # its name, or else its number
    unseen: bool
    share: float  # of the cells and seeds with a gain, those in which it is above 0; NaN if there are none
    count: int  # of the cells and seeds with a gain


def gain_shares(metrics: xr.Dataset) -> list[GainShare]:
    """In which share of the cells and seeds every client gains, by algorithm, seen clients first."""
    return [
        line._replace(algorithm=label_of(line.algorithm, values))
        for values, cells in (by_problem(metrics) if _has_clients(metrics) else [])
        for line in _shares(cells)
    ]


def _shares(metrics: xr.Dataset) -> list[GainShare]:
    last, lines = at_end(metrics), list[GainShare]()
    for label in map(str, metrics["algorithm"].values):
        for population in _populations(last):
            value, alone, _ = population.arrays(last, label)
            gain = population.gain(value, alone)
            known = np.isfinite(gain)
            count = known.sum(axis=0)
            share = np.where(count > 0, (known & (gain > 0)).sum(axis=0) / np.maximum(count, 1), np.nan)
            names = names_of(metrics, population.dimension)
            for client, *numbers in zip(names, share.tolist(), count.tolist(), strict=True):
                lines.append(GainShare(label, client, population.unseen, *numbers))
    return lines


def gains_frame(metrics: xr.Dataset) -> pd.DataFrame:
    """``gains`` as a table whose columns are the fields of ``ClientGain``, and the axes of a sweep: of every cell."""
    import pandas as pd

    axes, lines = axes_of(metrics), list[list[object]]()
    for values, cell in cells_of(metrics, axes):
        lines += [[line.algorithm, *values.values(), *line[1:]] for line in gains(cell)]
    label, *others = ClientGain._fields
    return pd.DataFrame(lines, columns=pd.Index([label, *axes, *others]))


class _Population(NamedTuple):
    """The seen or the unseen clients of results."""

    unseen: bool
    measure: str

    @property
    def dimension(self) -> str:
        return "unseen" if self.unseen else "client"

    def gain(self, value: np.ndarray, other: np.ndarray) -> np.ndarray:
        """How much better values of the measure are than others; NaN where both are infinite."""
        with np.errstate(invalid="ignore"):
            return value - other if self.measure == "accuracy" else other - value

    def arrays(self, last: xr.Dataset, algorithm: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values of the model and the standalone one, and whether the loss is lower; NaN where it is unknown."""
        value, alone, loss, loss_alone = (
            self._of(last, f"{start}test_{measure}", algorithm)
            for measure in (self.measure, "loss")
            for start in ("", "standalone_")
        )
        with np.errstate(invalid="ignore"):  # infinite losses
            prefers = np.where(np.isfinite(loss - loss_alone), loss < loss_alone, np.nan)
        return value, alone, prefers

    def _of(self, last: xr.Dataset, name: str, algorithm: str) -> np.ndarray:
        """A variable of one algorithm; NaN if the results have no such variable."""
        name, axes = f"{'unseen_' * self.unseen}{name}", axes_of(last)
        sizes = {axis: last.sizes[axis] for axis in (*axes, "seed", self.dimension) if axis in last.sizes}
        values = xr.DataArray(np.nan) if name not in last else last[name]
        values = values.sel(algorithm=algorithm) if "algorithm" in values.dims else values
        values = values.expand_dims({axis: size for axis, size in sizes.items() if axis not in values.dims})
        return np.asarray(values.transpose(*sizes).values, float).reshape(-1, sizes[self.dimension])


def _has_clients(metrics: xr.Dataset) -> bool:
    return "algorithm" in metrics.coords and bool(metrics.sizes.get("evaluated_round"))


def _populations(metrics: xr.Dataset) -> list[_Population]:
    """Those that results have; the measure is the accuracy, or the loss of a task without accuracies."""
    populations: list[_Population] = []
    for unseen in (False, True):
        start = "unseen_" * unseen
        measure = "accuracy" if f"{start}test_accuracy" in metrics else "loss"
        if f"{start}test_{measure}" in metrics:
            populations.append(_Population(unseen, measure))
    return populations
