"""Metrics and records of algorithms, and the last evaluation of every run, after any number of rounds.

Joined results have NaN after the end of a run that stopped early. A value may be NaN for other reasons, so
``rounds_done`` says where the end is. A baseline that ended earlier is held at its last evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr


class Results(NamedTuple):
    """What is saved of an algorithm, or of several along ``algorithm``.

    Attributes:
      metrics: over ``seed, evaluated_round, client | unseen``.
      records: over ``seed, round, row``.
    """

    metrics: xr.Dataset
    records: xr.Dataset


# The results of finished algorithms, by label.
Parts = Mapping[str, Results]
# Attribute of metrics: how the clients of each algorithm count that has such an option, as JSON by label.
WEIGHTS = "weights"


def joined_weights(parts: Parts) -> dict[str, str]:
    """The attribute ``WEIGHTS`` of joined metrics."""
    found: dict[str, str] = {}
    for part in parts.values():
        found |= json.loads(part.metrics.attrs.get(WEIGHTS, "{}"))
    return {WEIGHTS: json.dumps(found)} if found else {}


def weights_in_words(metrics: xr.Dataset) -> str:
    """``weights of clients differ: size (fedavg), uniform (scaffold)``; empty if they do not differ."""
    by_kind: dict[str, list[str]] = {}
    for label, kind in json.loads(metrics.attrs.get(WEIGHTS, "{}")).items():
        by_kind.setdefault(kind, []).append(label)
    told = ", ".join(f"{kind} ({', '.join(labels)})" for kind, labels in by_kind.items())
    return f"weights of clients differ: {told}" if len(by_kind) > 1 else ""


def ends(metrics: xr.Dataset) -> xr.DataArray:
    """The position of the last evaluation along ``evaluated_round``, over the dimensions of ``rounds_done``."""
    rounds = metrics["evaluated_round"].values
    # Results of an earlier version, without it, end at the last position.
    if "rounds_done" not in metrics:
        return xr.DataArray(len(rounds) - 1)
    done = metrics["rounds_done"]
    known = np.where(np.isnan(done.values), np.inf, done.values)
    return done.copy(data=np.maximum(np.searchsorted(rounds, known, side="right") - 1, 0))


def end_of(metrics: xr.Dataset, algorithm: str) -> int:
    """The position of one algorithm's last evaluation; of results without axes of a sweep."""
    place = ends(metrics)
    return int(place.sel(algorithm=algorithm) if "algorithm" in place.dims else place)


def at_end(metrics: xr.Dataset) -> xr.Dataset:
    """The metrics at the last evaluation of every run, without the dimension ``evaluated_round``."""
    place = ends(metrics)
    return metrics.isel(evaluated_round=xr.DataArray(place.values, dims=place.dims))


def held_after_end(values: xr.DataArray, place: xr.DataArray) -> np.ndarray:
    """``[..., evaluated_round, x]``: the values, and after the end of a run (by ``ends``) those at its end."""
    count = values.sizes["evaluated_round"]
    end = place.broadcast_like(values.isel(dict.fromkeys(values.dims[-2:], 0)))
    end = end.transpose(*values.dims[:-2]).values
    at = np.minimum(np.arange(count), end[..., None])[..., None]
    return np.take_along_axis(values.values, at, axis=-2)
