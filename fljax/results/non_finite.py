"""Values that are not finite in a run: what the run does about them, who sent them, and where results say so.

A NaN or infinity in the server, or in the state of a client that trains, freezes that seed at its last sound state.
``non_finite`` says what happens to a client whose Up or new Client is not finite. Infinities inside a ``Report`` do not
count, since infinite losses and thresholds are honest answers; NaN there counts. Values of a Client count if they were
finite before. Ballots do not count.

- "drop": the client is absent from the moment its message arrives (a law compares the two rounds bit for bit). Records,
  participation and bytes still count it, since it trained and sent. Clients that are polled and have NaN data are
  exempt: their ballots change who is selected.
- "stop": the seed is frozen in this round, even if the server would not have noticed; a resumed run repeats the
  algorithm.
- "freeze": the program knows nothing of messages. Who made a seed diverge is computed after the run, by its last round
  once more, on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import xarray as xr

from fljax.results.events import Parts

NonFinite = Literal["freeze", "drop", "stop"]


class Divergence(NamedTuple):
    """A seed that was frozen because of values that are not finite."""

    seed: int
    round: int  # in which they appeared
    clients: tuple[int, ...] | None = None  # by whose messages or states; (): the server's own step; None: not known

    def __str__(self) -> str:
        return f"diverged in round {self.round} of seed {self.seed}{in_which(self.clients)}"


class NotFinite(ArithmeticError):
    """A run with ``non_finite="stop"`` in which a message, a client's state or the server was not finite.

    Attributes:
      seed: the first seed in which this happened.
      round: the round in which it happened.
      clients: ids of the clients whose messages or new states were not finite; empty if the server's own step gave such
        values; None if it is not known.
      results: the ``Result`` of each plan up to the end of the block in which it happened; ``simulate`` has one.
      plan: position of the plan; 0 in ``simulate``.
      label: of the algorithm in a config, or "".
      cell: values by axis, in a sweep of a config.
    """

    def __init__(
        self,
        first: Divergence,
        results: Sequence[Any] = (),
        plan: int = 0,
        label: str = "",
        cell: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(first, results, plan, label, cell)  # all arguments, so that it can be pickled
        self.seed, self.round, self.clients = first
        self.results, self.plan, self.label, self.cell = tuple(results), plan, label, dict(cell or {})

    def of(self, label: str, cell: Mapping[str, Any] | None = None) -> NotFinite:
        """The same for an algorithm of a config, and a cell of a sweep."""
        return NotFinite(Divergence(self.seed, self.round, self.clients), self.results, self.plan, label, cell)

    def __str__(self) -> str:
        where = "".join(f", {name} = {value}" for name, value in self.cell.items())
        why = in_which(self.clients).removeprefix(", in which ") or "values that are not finite appeared"
        return f"{self.label or 'the run'} was stopped, since {why} in round {self.round} of seed {self.seed}{where}"


def check_mode(non_finite: Any) -> None:
    """Raises a ValueError unless ``non_finite`` is a valid name."""
    if non_finite not in get_args(NonFinite):
        names = ", ".join(get_args(NonFinite))
        raise ValueError(f"expected a known non_finite, got {non_finite!r}; valid names are {names}")


def in_which(clients: Sequence[int] | None) -> str:
    """Who sent values that are not finite, as the end of a sentence; "" if it is not known."""
    if clients is None:
        return ""
    if not clients:
        return ", in which the server's step gave values that are not finite, from messages that are"
    shown = ", ".join(map(str, clients[:5])) + ("" if len(clients) <= 5 else f" and {len(clients) - 5} more")
    return f", in which client{'s' if len(clients) > 1 else ''} {shown} sent values that are not finite"


def with_anomalies(
    metrics: xr.Dataset, records: xr.Dataset, divergences: Sequence[Divergence], clients: int
) -> xr.Dataset:
    """Adds who was not finite to the metrics of one run: ``diverged_by``, and the ``dropped_messages`` until then."""
    seeds = metrics["seed"].values.tolist()
    senders = np.zeros((len(seeds), clients), bool)
    for divergence in divergences:
        senders[seeds.index(divergence.seed), list(divergence.clients or ())] = True
    metrics = metrics.assign(diverged_by=(("seed", "client"), senders))
    if "dropped_messages" not in records:
        return metrics
    counts = records["dropped_messages"].transpose("seed", "round").values
    total = np.concatenate([np.zeros((len(seeds), 1), np.int64), np.cumsum(counts, axis=1, dtype=np.int64)], axis=1)
    done = metrics["evaluated_round"].values
    return metrics.assign(dropped_messages=(("seed", "evaluated_round"), total[:, done - int(records["round"][0])]))


def senders_of(metrics: xr.Dataset, run: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids of the clients by which a run (coordinates: algorithm, seed, axes) diverged; empty if it is not known."""
    if "diverged_by" not in metrics:
        return ()
    marks = metrics["diverged_by"].sel(dict(run))
    return tuple(marks["client"].values[marks.values > 0].tolist())


def diverged_seeds(metrics: xr.Dataset) -> dict[str, str]:
    """Which seeds diverged, by label, such as ``2 of 3 seeds, round 14`` (the first); in a sweep, runs."""
    if "diverged" not in metrics:
        return {}
    words_by_label = {}
    kind = "seed" if set(metrics["diverged"].dims) == {"algorithm", "seed"} else "run"
    for label in metrics["algorithm"].values:
        rounds = metrics["diverged"].sel(algorithm=label).values.ravel()
        if words := diverged_words(rounds[rounds >= 0].tolist(), rounds.size, kind):
            words_by_label[str(label)] = words
    return words_by_label


def diverged_words(rounds: Sequence[int], runs: int, kind: str = "seed") -> str:
    """``2 of 3 seeds, from round 14``, or nothing. ``kind`` is what a run is called."""
    if not rounds:
        return ""
    first = f"{'from ' if len(set(rounds)) > 1 else ''}round {int(min(rounds))}"
    return f"{len(rounds)} of {runs} {kind}{'s' * (runs > 1)}, {first}"


def unstopped(finished: Parts, non_finite: NonFinite) -> Parts:
    """Metrics and records of the algorithms that ran to their end; without those that were stopped."""
    return {
        label: part
        for label, part in finished.items()
        if non_finite != "stop" or not np.any(part.metrics["diverged"].values >= 0)
    }


class InfiniteLoss(NamedTuple):
    """The first evaluation of a run in which some model has an infinite loss."""

    run: dict[str, Any]  # its coordinates by name: the seed, and the algorithm and axes of a sweep if there are any
    round: int | None  # rounds done at that evaluation; None for a loss of standalone models
    metric: str  # e.g. ``test_loss`` or ``unseen_test_loss``
    clients: tuple[int, ...]  # by number, unseen ones if the metric is of those; () for the server's own models

    def __str__(self) -> str:
        run = ", ".join(f"{name} {value}" for name, value in self.run.items())
        shown = ", ".join(map(str, self.clients[:5])) + ("" if len(self.clients) <= 5 else ", ...")
        whose = "unseen client" if self.metric.startswith("unseen_") else "client"
        many = "s" if len(self.clients) > 1 else ""
        of = f" of {whose}{many} {shown}" if self.clients else ""
        when = "" if self.round is None else f" after round {self.round}"
        return f"the {self.metric}{of} is infinite{when} ({run})"


def infinite_losses(metrics: xr.Dataset) -> tuple[InfiniteLoss, ...]:
    """The first evaluation of each run, and of standalone models, with an infinite loss of finite parameters."""
    # A loss is infinite, too, if it cannot be computed: a client's NaN row makes that of the first evaluation so.
    first_of_runs: dict[tuple[Any, ...], tuple[int, InfiniteLoss]] = {}
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
            if kind in first_of_runs and first_of_runs[kind][0] <= first:
                continue
            run = {dim: values[dim].values.tolist()[i] for dim, i in zip(runs, place, strict=True)}
            person = inner[0] if inner and inner[0] in ("client", "unseen") else None
            clients = () if person is None else tuple(values[person].values[at[at[:, 0] == first, 1]].tolist())
            done = int(values["evaluated_round"].values[first]) if rounds else None
            first_of_runs[kind] = (first, InfiniteLoss(run, done, name, clients))
    return tuple(first_of_runs[kind][1] for kind in sorted(first_of_runs))
