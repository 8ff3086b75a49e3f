"""Which clients gain, by name: accuracies beside those of standalone models and of the first algorithm.

Clients of several seeds are matched by their numbers. Results have names where all seeds call a client the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

from fljax.metrics.summaries import over_seeds
from fljax.protocol import Names
from fljax.results.endings import at_end

if TYPE_CHECKING:
    import pandas as pd

_NAMES = {"client": "client_name", "unseen": "unseen_name"}


class ClientGain(NamedTuple):
    """What a client has of an algorithm at its last evaluation; means over the seeds that have a number.

    Attributes:
      algorithm: the label.
      client: its name, or else its number.
      unseen: whether it did not train.
      measure: "accuracy", or "loss" for a task without accuracies, of the model that the client would use.
      value: the measure on the client's test rows.
      standalone: the same of its standalone model; NaN if there is none.
      gain: how much better ``value`` is than ``standalone``: above 0 the client gains.
      std: standard deviation of the gain over seeds (n - 1); NaN for fewer than two.
      seeds: the number of seeds with a gain.
      prefers: the share of these seeds in which ``test_loss < standalone_test_loss`` (INCFL, equation 1).
      over_baseline: how much better ``value`` is than that of the first algorithm.
    """

    algorithm: str
    client: str
    unseen: bool
    measure: str
    value: float
    standalone: float
    gain: float
    std: float
    seeds: int
    prefers: float
    over_baseline: float


def with_names(metrics: xr.Dataset, names: Sequence[Names]) -> xr.Dataset:
    """Metrics whose clients have their names as coordinates ``client_name`` and ``unseen_name``.

    Args:
      metrics: over client and unseen.
      names: of each seed; a population whose names differ between seeds, or that has none, gets none.
    """
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


def gains(metrics: xr.Dataset) -> list[ClientGain]:
    """The gain of every client by every algorithm, seen clients first; empty without metrics by client.

    Args:
      metrics: of a run, over algorithm, seed, evaluated_round, client and unseen.
    """
    if "algorithm" not in metrics.coords or not metrics.sizes.get("evaluated_round"):
        return []
    last = at_end(metrics)
    lines: list[ClientGain] = []
    for algorithm in metrics["algorithm"].values:
        for prefix, dimension in (("", "client"), ("unseen_", "unseen")):
            measure = "accuracy" if f"{prefix}test_accuracy" in metrics else "loss"
            name = f"test_{measure}"
            if prefix + name in metrics:
                value = _of(last, f"{prefix}{name}", algorithm, dimension)
                alone = _of(last, f"{prefix}standalone_{name}", algorithm, dimension)
                first = _of(last, f"{prefix}{name}", metrics["algorithm"].values[0], dimension)
                losses = [_of(last, f"{prefix}{start}test_loss", algorithm, dimension) for start in ("", "standalone_")]
                sign = 1 if measure == "accuracy" else -1
                for place, client in enumerate(names_of(metrics, dimension)):
                    gain = over_seeds(sign * (value - alone)[:, place])
                    known = np.isfinite(losses[0] - losses[1])[:, place]
                    prefers = np.mean((losses[0] < losses[1])[known, place]) if known.any() else np.nan
                    lines.append(
                        ClientGain(
                            algorithm=str(algorithm),
                            client=client,
                            unseen=bool(prefix),
                            measure=measure,
                            value=over_seeds(value[:, place]).mean,
                            standalone=over_seeds(alone[:, place]).mean,
                            gain=gain.mean,
                            std=gain.std,
                            seeds=gain.count,
                            prefers=float(prefers),
                            over_baseline=over_seeds(sign * (value - first)[:, place]).mean,
                        )
                    )
    return lines


def gains_frame(metrics: xr.Dataset) -> pd.DataFrame:
    """``gains`` as a table whose columns are the fields of ``ClientGain``."""
    import pandas as pd

    return pd.DataFrame(gains(metrics), columns=list(ClientGain._fields))


def _of(last: xr.Dataset, name: str, algorithm: str, dimension: str) -> np.ndarray:
    """``[seed, client]`` of one algorithm; NaN if the results have no such variable."""
    if name not in last:
        return np.full((last.sizes["seed"], last.sizes[dimension]), np.nan)
    values = last[name]
    values = values.sel(algorithm=algorithm) if "algorithm" in values.dims else values
    return np.asarray(values.transpose("seed", dimension).values, float)
