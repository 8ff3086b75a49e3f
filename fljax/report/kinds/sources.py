"""What figures are drawn from: results in memory or a run folder, read in one form, with their arrays and titles.

Results of one algorithm get a label, so that every figure reads results of several. Long records, which are on the
disk, are opened when a figure asks for them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fljax.core.names import shown, unknown
from fljax.metrics.uncertainty import over_seeds
from fljax.report.style import finish, has, head, panel, percent, printable
from fljax.report.tables import is_share as is_share_of_tables
from fljax.results import folders, stores
from fljax.results.events import array_of
from fljax.results.non_finite import diverged_seeds
from fljax.results.records import by_client
from fljax.results.sweeps import axes_of
from fljax.results.values import join

ACROSS = 3  # panels in a row
MARKERS = ("o", "s", "D", "^", "v", "P")


def frame(count: int, *, share: bool = True, across: int = ACROSS) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels, ``across`` in a row; with ``share``, all have the same axes."""
    across = min(across, max(1, count))
    down = -(-count // across)
    width, height = (5.6, 4.0) if count == 1 else (4.4 * across, 3.6 * down)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels: list[Axes] = []
    for place in range(count):
        first = panels[0] if panels and share else None
        panels.append(panel(figure, down, across, place, sharex=first, sharey=first))
    return figure, panels


def close(figure: Figure, heading: str) -> Figure:
    """Sets fonts and the heading of a figure whose panels are drawn."""
    for axes in figure.axes:
        if axes.get_subplotspec() is not None:
            finish(axes)
    head(figure, heading, size=12)
    return figure


def label_in_words(metrics: xr.Dataset, label: str) -> str:
    """A label as figures show it, with a word where a seed diverged."""
    return printable(label) + (" (diverged)" if label in diverged_seeds(metrics) else "")


def is_share(name: str) -> bool:
    """Whether a metric, or an array over clients, is a share of 1 or a difference of shares."""
    plain = name.removeprefix("unseen_")
    others = plain.endswith("loss") or plain.startswith("score_") or plain == "threshold"
    return is_share_of_tables(plain) and not others


def _share(value: float, place: int | None = None) -> str:
    """A tick in percent; none where margins reach beyond 100%."""
    return percent(value) if value < 1.0001 else ""


def in_percent(axis: Axis, name: str, values: Sequence[float] | np.ndarray) -> None:
    """Writes the numbers of an axis in percent, if the metric is a share and its values are no larger than shares."""
    finite = np.abs(np.asarray(values, float))
    finite = finite[np.isfinite(finite)]
    if is_share(name) and not (finite > 1).any():
        axis.set_major_formatter(FuncFormatter(_share))


ALONE = "result"  # the label of results of one algorithm, which have none
# What a client gives or gets, in words, by the name of its record.
RATES = {"contribution": "contribution", "rate": "reward rate", "participation": "participation rate"}


@runtime_checkable
class HasResults(Protocol):
    """What has ``metrics`` and ``records``: a ``Result``, a ``Comparison``, or what ``fljax.load`` returns."""

    @property
    def metrics(self) -> xr.Dataset:
        """Over seed, evaluated_round and client or unseen; of several algorithms over algorithm, too."""
        ...

    @property
    def records(self) -> xr.Dataset:
        """Over seed, round and row or client; of several algorithms over algorithm, too."""
        ...


class MissingError(ValueError):
    """Results lack what a figure is drawn from."""

    @classmethod
    def of(cls, what: str, figure: str, got: str = "results without it") -> MissingError:
        """``expected WHAT for the figure FIGURE, got GOT``."""
        return cls(f"expected {what} for the figure {figure}, got {got}")


class Material(NamedTuple):
    """Results in one form."""

    metrics: xr.Dataset  # over ``algorithm`` too
    records: Callable[[str], xr.Dataset]  # by label: over seed, round and row or client; empty if it has none
    labels: tuple[str, ...]  # of the chosen algorithms, in order


Source = HasResults | Material | str | pathlib.Path


def read(source: Source, algorithms: Sequence[str] | None = None) -> Material:
    """The results of a source (``Result``, ``Comparison``, loaded run, path of a run folder) with these labels."""
    if isinstance(source, Material):
        return source._replace(labels=_checked(source.labels, algorithms))
    folder, results = None, source
    if isinstance(results, str | pathlib.Path):
        folder = pathlib.Path(results)
        results = folders.load_results(folder)
    if not isinstance(results, HasResults):
        raise ValueError(
            "expected a Result, a Comparison, a run of fljax.load or the path of a run folder, "
            f"got {type(results).__name__}"
        )
    metrics, records = results.metrics, results.records
    if axes_of(metrics):
        raise ValueError("expected results of a run for a figure, got those of a sweep")
    if "algorithm" not in metrics.dims:
        (label,) = _checked((ALONE,), algorithms)
        return Material(join({label: metrics}), {label: records}.__getitem__, (label,))
    labels = _checked(tuple(map(str, metrics["algorithm"].values)), algorithms)

    def of(label: str) -> xr.Dataset:
        if "algorithm" not in records.coords or label not in records["algorithm"].values:
            return xr.Dataset()
        short = records.sel(algorithm=label, drop=True)
        if "stored_apart" not in short or short["stored_apart"] != 1:
            return short
        if folder is not None:
            return stores.load_records(folders.records_of(folder, label))
        long = getattr(results, "results", {}).get(label)  # of a Comparison
        opened = getattr(results, "records_of", None)  # of a loaded run
        return long.records if long is not None else short if opened is None else opened(label)

    return Material(metrics, of, labels)


def _checked(labels: tuple[str, ...], chosen: Sequence[str] | None) -> tuple[str, ...]:
    for label in chosen or ():
        if label not in labels:
            raise ValueError(unknown("label", label, labels))
    return labels if chosen is None else tuple(chosen)


def check_clients(clients: Iterable[Any], count: int) -> tuple[int, ...]:
    """The ids of chosen clients, each once."""
    ids = tuple(dict.fromkeys(clients))
    if not ids:
        raise ValueError(f"expected ids of clients from 0 to {count - 1}, got none")
    for client in ids:
        if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < count:
            raise ValueError(f"expected ids of clients from 0 to {count - 1}, got {shown(client)}")
    return tuple(map(int, ids))


# --- Arrays -------------------------------------------------------------------------------------------------


def of_rows(records: xr.Dataset, name: str) -> np.ndarray | None:
    """``[seed, round, row]``, with NaN for rows without a client that trained; None if it is no record by row."""
    values, present = (array_of(records, each, "seed", "round", "row") for each in (name, "cohort_present"))
    return values if values is None or present is None else np.where(np.nan_to_num(present) > 0, values, np.nan)


def of_clients(records: xr.Dataset, name: str, count: int) -> np.ndarray | None:
    """``[seed, round, client]`` of a record by client, if there is one; ``participation`` is 1 where it trained."""
    # In many rounds it is not recorded by client, and is derived from cohorts.
    if name == "participation" and name not in records and "cohort_id" in records:
        cohorts = records[["cohort_id", "cohort_present"]]
        records = by_client(cohorts.fillna(0).astype(int), count).where(cohorts["cohort_present"].notnull().any("row"))
    values = array_of(records, name, "seed", "round", "client")
    if values is None or name != "participation":
        return values
    return np.where(np.isfinite(values), values > 0, np.nan)


def rates(material: Material, label: str, name: str) -> np.ndarray | None:
    """``[seed, client]``: the mean over the recorded rounds of one of ``RATES``; None if the algorithm has none."""
    values = of_clients(material.records(label), name, material.metrics.sizes.get("client", 0))
    return None if values is None or not np.isfinite(values).any() else over_seeds(values, axis=1).mean


def having(material: Material, name: str) -> tuple[str, ...]:
    """The chosen algorithms that have a finite value of a metric."""
    if name not in material.metrics:
        return ()
    values = material.metrics[[name]]
    of_all = "algorithm" not in values[name].dims
    return tuple(label for label in material.labels if has(values if of_all else values.sel(algorithm=label), name))


def first_of(material: Material, names: Iterable[str]) -> str | None:
    """The first metric that a chosen algorithm has; None if there is none."""
    return next((name for name in names if having(material, name)), None)


def check_metric(material: Material, name: str, *dimensions: str) -> None:
    """Raises a ValueError unless results have numbers of a metric over these dimensions and algorithms."""
    valid = [
        str(known)
        for known, values in material.metrics.items()
        if set(values.dims) == {"algorithm", *dimensions} and has(material.metrics, str(known))
    ]
    if name not in valid:
        raise ValueError(unknown("metric", name, valid))
