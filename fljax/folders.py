"""Run folders: ``config.toml``, ``log.jsonl``, ``results.nc`` and ``metrics.csv``, and how they are resumed."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from fljax.config import Config, dumps

# Metrics and records by label of the algorithm.
Parts = Mapping[str, tuple[xr.Dataset, xr.Dataset]]


class Event(NamedTuple):
    """What happens in a run, for progress bars and the log.

    Attributes:
      stage: "data", "standalone", "train", "note" or "saved".
      label: of the algorithm, or "".
      round: rounds done.
      rounds: rounds asked for.
      seconds: since the run began.
      message: one sentence, or "".
    """

    stage: str
    label: str
    round: int
    rounds: int
    seconds: float
    message: str


OnEvent = Callable[[Event], None]


def teller(directory: pathlib.Path | None, on_event: OnEvent | None) -> Callable[..., None]:
    began = time.perf_counter()

    def tell(stage: str, label: str, round: int, rounds: int, message: str) -> None:
        event = Event(stage, label, round, rounds, _rounded(time.perf_counter() - began), message)
        if directory is not None:
            with open(directory / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(event._asdict()) + "\n")
        if on_event is not None:
            on_event(event)

    return tell


def _rounded(seconds: float) -> float:
    """Milliseconds are enough for a log."""
    return float(np.round(seconds, 3))


def save(directory: pathlib.Path, metrics: xr.Dataset, records: xr.Dataset) -> None:
    """Written beside and moved into place, so that a run that dies leaves the last complete file."""
    fresh = directory / ".results.nc"
    metrics.to_netcdf(fresh, engine="h5netcdf")
    records.to_netcdf(fresh, engine="h5netcdf", mode="a", group="records")
    os.replace(fresh, directory / "results.nc")
    scalar = lambda dims: dims[:1] == ("algorithm",) and dims[-2:] == ("seed", "evaluated_round")  # noqa: E731
    scalars = [str(name) for name, values in metrics.items() if scalar(values.dims)]
    table = metrics[scalars].to_dataframe().reset_index()
    table.to_csv(directory / ".metrics.csv", index=False)
    os.replace(directory / ".metrics.csv", directory / "metrics.csv")


def load(directory: pathlib.Path) -> tuple[xr.Dataset, xr.Dataset]:
    """(metrics, records) of a run folder.

    Raises:
      ValueError: if the folder holds no results.
    """
    path = directory / "results.nc"
    if not path.is_file():
        raise ValueError(f"expected a run folder with results.nc, got {directory}")
    return (
        xr.load_dataset(path, engine="h5netcdf"),
        xr.load_dataset(path, engine="h5netcdf", group="records"),
    )


def resumed(
    config: Config, directory: pathlib.Path, grid: str | None = None
) -> dict[str, tuple[xr.Dataset, xr.Dataset]]:
    """Results of an interrupted run by label, if it was of the same config (and of the same grid, if it is a sweep)."""
    if not (directory / "results.nc").is_file():
        return {}
    stored = directory / "config.toml"
    if stored.is_file() and stored.read_text(encoding="utf-8") != dumps(config):
        raise ValueError(f"expected the config of the results in {directory} to resume them, got a changed one")
    metrics, records = load(directory)
    if metrics.attrs.get("grid") != grid:
        kinds = {True: "fljax run", False: "fljax sweep"}
        other, own = kinds["grid" not in metrics.attrs], kinds[grid is None]
        raise ValueError(f"expected results of {own} in {directory} to resume them, got those of another {other}")
    labels = [str(label) for label in metrics["algorithm"].values]
    return {
        label: (metrics.sel(algorithm=label, drop=True), records.sel(algorithm=label, drop=True)) for label in labels
    }
