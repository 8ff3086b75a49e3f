"""Records of rounds as labelled arrays, with what they say by client and the bytes on the wire.

Scores of the task (``fljax.metrics.scores``) have a direction, and some clients have none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Integer

from fljax.metrics.registry import is_lower_better
from fljax.protocol import Labelled, unlabelled
from fljax.results.events import weights_in_words

_BY_CLIENT = "score_"


def is_lower(values: xr.DataArray) -> bool:
    """Whether lower values of a metric are better: as its attribute ``lower`` says, or else as its name does."""
    return bool(values.attrs.get("lower", is_lower_better(str(values.name))))


def better(metrics: xr.Dataset, name: str) -> str:
    """ "lower" or "higher": the better values of a metric in results."""
    return "lower" if is_lower(metrics[name]) else "higher"


def names_of(metrics: xr.Dataset) -> list[str]:
    """The names of the scores in results, in their order."""
    names = [str(name).removeprefix(_BY_CLIENT) for name in metrics.data_vars if str(name).startswith(_BY_CLIENT)]
    return [name for name in names if f"pooled_score_{name}" in metrics]


def directions(metrics: xr.Dataset) -> str:
    """``scores: auroc and f1, higher is better``, then weights that differ; empty if there is neither."""
    told = []
    for lower, words in ((False, "higher is better"), (True, "lower is better")):
        names = [name for name in names_of(metrics) if is_lower(metrics[f"pooled_score_{name}"]) == lower]
        if names:
            told.append(f"{' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}, {words}")
    weights = weights_in_words(metrics)
    return "; ".join([*([f"scores: {'; '.join(told)}"] if told else []), *([weights] if weights else [])])


def without_value(metrics: xr.Dataset) -> list[str]:
    """A sentence for each score that some client lacks at the last evaluation although it has test rows."""
    told, one_class = [], "their test rows have one class only"
    for prefix, axis in (("", "client"), ("unseen_", "unseen")):
        losses = f"{prefix}test_loss"
        for name in names_of(metrics) if losses in metrics else ():
            last = metrics[[losses, f"{prefix}{_BY_CLIENT}{name}"]].isel(evaluated_round=-1)
            judged, values = (last[name_of_values].transpose("seed", axis).values for name_of_values in last.data_vars)
            lacking = ~np.isnan(judged) & np.isnan(values)
            if lacking.any():
                count, seeds = int(lacking.any(axis=0).sum()), len(lacking)
                where = " in some seed" if seeds > 1 else ""
                why = "its function failed" if "failed" in last[f"{prefix}{_BY_CLIENT}{name}"].attrs else one_class
                told.append(
                    f"{prefix}score_{name} is NaN for {count} of {lacking.shape[1]} clients{where}: {why}, or outputs "
                    "are not finite"
                )
    return told


# Largest number of entries of a table over rounds and clients; larger tables are left out of the
# records, and ``by_client`` derives them.
LARGEST_TABLE = 10**7
# Records of clusters: a number by row, or how much a row or a client belongs to each, of which the largest counts.
CLUSTERS = ("chosen_cluster", "importance", "mixture", "membership")


class Wire(NamedTuple):
    """Bytes of messages."""

    down: int  # received by one client that trains
    shown: int  # received by one client before its ballot
    up: int  # sent by one row of the cohort
    ballot: int  # sent by one polled client


def dataset(
    seeds: Sequence[int],
    first: int,
    blocks: Sequence[Mapping[str, Any]],
    wire: Wire,
    population: int,
    rounds: int | None = None,  # of the run, if the blocks are only some of it
) -> xr.Dataset:
    """Joins the Info of blocks ``[seeds, rounds, ...]`` from round ``first`` on; adds bytes and tables by client."""
    if not blocks:
        return xr.Dataset(coords={"seed": list(seeds), "round": np.arange(first, first)})
    parts = [unlabelled(dict(block)) for block in blocks]
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    variables: dict[str, Any] = {}
    for name, entry in blocks[0].items():
        numbered = tuple(f"{name}_axis_{i}" for i in range(joined[name].ndim - 2))
        extra = entry.dimensions if isinstance(entry, Labelled) else numbered
        variables[name] = (("seed", "round", *extra), joined[name])
    rows = joined["cohort_present"].sum(axis=-1, dtype=np.int64)
    polled = joined["polled"].astype(np.int64)
    by_row = "weight" in variables and variables["weight"][0] == ("seed", "round", "row")
    count = joined["polled"].shape[1]
    # ``by_client`` derives tables that are left out here.
    if len(seeds) * (count if rounds is None else rounds) * population <= LARGEST_TABLE:
        variables |= _by_client(joined, by_row, population)
    variables["bytes_down"] = (("seed", "round"), rows * wire.down + polled * wire.shown)
    variables["bytes_up"] = (("seed", "round"), rows * wire.up + polled * wire.ballot)
    records = xr.Dataset(variables, {"seed": list(seeds), "round": np.arange(first, first + count)})
    # With coordinates, so that algorithms with cohorts of different sizes can be joined.
    missing = {dim: np.arange(size) for dim, size in records.sizes.items() if dim not in records.coords}
    return records.assign_coords(missing)


def by_client(records: xr.Dataset, population: int) -> xr.Dataset:
    """``participation`` and the other tables over ``client`` of ``dataset``, from the rows of cohorts."""
    # They are large: callers choose rounds first.
    names = [name for name in ("cohort_id", "cohort_present", "weight", "dropped") if name in records]
    dims = ("seed", "round", "row")
    joined = {name: records[name].transpose("seed", "round", ...).values for name in names}
    weighed = "weight" in records and set(records["weight"].dims) == set(dims)
    tables = xr.Dataset(_by_client(joined, weighed, population), {"client": np.arange(population)})
    return tables.assign_coords(seed=records["seed"], round=records["round"])


def last_clusters(records: xr.Dataset, population: int) -> np.ndarray | None:
    """``[seed, client]``: the last cluster that is recorded for a client, NaN where none is; None without clusters."""
    known = [name for name in CLUSTERS if name in records and bool(records[name].notnull().any())]
    # Joined with a record of this name over other dimensions, as AFL's and FedEM's are, it says nothing.
    names = [name for name in known if not {"row", "client"}.issubset(records[name].dims)]
    name = next((name for name in names if ("cluster" in records[name].dims) != (name == CLUSTERS[0])), None)
    if name is None:
        return None
    who = "row" if "row" in records[name].dims else "client"
    values = records[name].transpose("seed", "round", who, ...).fillna(-1).values
    weights = values if values.ndim == 4 else values[..., None] == np.arange(values.max(initial=0) + 1)
    known, id = weights.max(axis=-1) > 0, np.arange(population)
    if who == "row":
        cohort = records[["cohort_id", "cohort_present"]].transpose("seed", "round", who).fillna(0).astype(int)
        known, id = known & (cohort["cohort_present"].values == 1), cohort["cohort_id"].values
    place = np.nonzero(known)
    last = np.full((len(values), population), np.nan)
    last[place[0], np.broadcast_to(id, known.shape)[place]] = weights[place].argmax(
        axis=-1
    )  # in the order of rounds: the last value stays
    return last


def with_compute(
    metrics: xr.Dataset, records: xr.Dataset, counts: Mapping[str, Integer[np.ndarray, "seeds N"]]
) -> xr.Dataset:
    """Adds what clients computed until each evaluation, in all and by client, by ``counts`` of one training."""
    done = metrics["evaluated_round"].values - (int(records["round"][0]) if records.sizes["round"] else 0)
    trainings = np.zeros((len(metrics["seed"]), len(done), next(iter(counts.values())).shape[1]), np.int64)
    for place, (begin, end) in enumerate(itertools.pairwise(done), 1):
        here = records.isel(round=slice(int(begin), int(end)))
        new = by_client(here, trainings.shape[2])["participation"].transpose("seed", "round", "client")
        trainings[:, place] = trainings[:, place - 1] + new.values.sum(axis=1, dtype=np.int64)
    dims = ("seed", "evaluated_round")
    for name, count in counts.items():
        of_client = trainings * count[:, None]
        metrics = metrics.assign({name: (dims, of_client.sum(-1)), f"client_{name}": ((*dims, "client"), of_client)})
    return metrics


def datasets(
    seeds: Sequence[int], first: int, blocks: Iterable[Mapping[str, Any]], wire: Wire, population: int, rounds: int
) -> Iterator[xr.Dataset]:
    """``dataset`` of each block of a run of ``rounds`` rounds, without the others in memory."""
    for block in blocks:
        records = dataset(seeds, first, [block], wire, population, rounds)
        yield records
        first += records.sizes["round"]


def _by_client(joined: Mapping[str, np.ndarray], weighed: bool, population: int) -> dict[str, Any]:
    """Cohort rows that trained, by client; dropped messages if there may be some; and, if ``weighed``, weights."""
    id, present = joined["cohort_id"], joined["cohort_present"]
    seeds, rounds, _ = id.shape
    seed, round, row = np.nonzero(present)
    place = (seed, round, id[seed, round, row])
    count = np.zeros((seeds, rounds, population), np.int16)
    np.add.at(count, place, 1)
    dims = ("seed", "round", "client")
    tables: dict[str, Any] = {"participation": (dims, count)}
    if "dropped" in joined:
        dropped = np.zeros_like(count)
        np.add.at(dropped, place, joined["dropped"][seed, round, row])
        tables["dropped_by_client"] = (dims, dropped)
    if weighed:
        weight = np.zeros(count.shape, joined["weight"].dtype)
        np.add.at(weight, place, joined["weight"][seed, round, row])
        tables["client_weight"] = (dims, np.where(count > 0, weight, np.nan))
    return tables
