"""Infinite losses of models with finite parameters: the first evaluation in which each run has one.

A NaN row of a client makes the loss of the first evaluation infinite, before training, and ``Result.infinite`` names
the client.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr


class InfiniteLoss(NamedTuple):
    """The first evaluation of a run in which some model has an infinite loss.

    Attributes:
      run: the run's coordinates by name: the seed, and the algorithm and axes of a sweep if there are any.
      round: rounds done at that evaluation; None for a loss of standalone models.
      metric: the metric with the infinite loss, e.g. ``test_loss`` or ``unseen_test_loss``.
      clients: the clients with an infinite loss, by number; unseen clients if ``metric`` is of unseen clients; empty
        for a loss of the server's own models.
    """

    run: dict[str, Any]
    round: int | None
    metric: str
    clients: tuple[int, ...]

    def __str__(self) -> str:
        run = ", ".join(f"{name} {value}" for name, value in self.run.items())
        shown = ", ".join(map(str, self.clients[:5])) + ("" if len(self.clients) <= 5 else ", ...")
        whose = "unseen client" if self.metric.startswith("unseen_") else "client"
        many = "s" if len(self.clients) > 1 else ""
        of = f" of {whose}{many} {shown}" if self.clients else ""
        when = "" if self.round is None else f" after round {self.round}"
        return f"the {self.metric}{of} is infinite{when} ({run})"


def infinite_losses(metrics: xr.Dataset) -> tuple[InfiniteLoss, ...]:
    """Runs in which a model's loss is infinite, although no parameter is NaN or infinite.

    A loss is also infinite if it cannot be computed, e.g. because a client's examples have NaN.

    Args:
      metrics: of one run, or joined over algorithms and the axes of a sweep.

    Returns:
      For each algorithm, cell and seed, the first evaluation with infinite losses; of several metrics, the one with the
      shortest name. One more entry for standalone models.
    """
    found: dict[tuple[Any, ...], tuple[int, InfiniteLoss]] = {}
    names = [str(name) for name in metrics.data_vars if str(name).endswith(("test_loss", "valid_loss", "cluster_loss"))]
    for name in sorted(names, key=len):  # shorter names first
        inner = [dim for dim in metrics[name].dims if dim in ("client", "unseen", "cluster", "distribution")]
        rounds = "evaluated_round" in metrics[name].dims
        values = metrics[name] if rounds else metrics[name].expand_dims("evaluated_round")
        values = values.transpose(..., "evaluated_round", *inner)
        runs = [str(dim) for dim in values.dims[: values.ndim - 1 - len(inner)]]
        bad = np.isposinf(values.values)
        for place in np.ndindex(bad.shape[: len(runs)]):
            at = np.argwhere(bad[place])
            if not len(at):
                continue
            first = int(at[0, 0])
            kind = (rounds, *place)
            if kind in found and found[kind][0] <= first:
                continue
            run = {dim: values[dim].values.tolist()[i] for dim, i in zip(runs, place, strict=True)}
            person = inner[0] if inner and inner[0] in ("client", "unseen") else None
            clients = () if person is None else tuple(values[person].values[at[at[:, 0] == first, 1]].tolist())
            done = int(values["evaluated_round"].values[first]) if rounds else None
            found[kind] = (first, InfiniteLoss(run, done, name, clients))
    return tuple(found[kind][1] for kind in sorted(found))
