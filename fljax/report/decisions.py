"""Who would leave, and why: what each client has, requires and gets under every method, in one table."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd
import xarray as xr

from fljax.metrics import incentivised_participation_rate, opt_outs
from fljax.report.kinds.sources import HasResults, Material, Source, at_last, having, of_clients, rates, read
from fljax.results import folders
from fljax.results.clients import names_of
from fljax.results.endings import Results, end_of
from fljax.results.records import last_clusters
from fljax.results.sweeps import axes_of

# Columns of the table that are metrics by client, with their names in results.
_METRICS = {
    "test_accuracy": "test_accuracy",
    "standalone_accuracy": "standalone_test_accuracy",
    "test_loss": "test_loss",
    "standalone_loss": "standalone_test_loss",
    "global_loss": "global_test_loss",
    "required_loss": "required_loss",
    "gain": "personalised_model_accuracy_gain",
    "opt_out_threshold": "opt_out_threshold",
}
# Columns that are the last recorded values by client, with the names of the records, the first that exists.
_RECORDS = {"contribution": ("contribution",), "reward": ("rate", "share"), "tokens": ("tokens",)}
# Why a client would leave, by the column that says so.
REASONS = {
    "prefers_standalone": "no lower loss than alone",
    "requirement_unmet": "requirement not met",
    "opts_out": "gain below its threshold",
}


def leaving(source: Source) -> pd.DataFrame:
    """Who would leave each method at its last evaluation, and why: a line for each algorithm, seed and client.

    A client would leave for one or several ``reasons``:

    - ``prefers_standalone``: not ``test_loss < standalone_loss``, as the incentivised participation rate counts;
    - ``requirement_unmet``: not ``global_loss < required_loss``, as the appeal of the global model counts;
    - ``opts_out``: ``gain < opt_out_threshold``, as IP-FL's opt-outs count. The gain is the accuracy gained over the
      baseline of the comparison.

    Of a sweep there is a line for each cell, too, and its axes are columns behind the algorithm.

    What a method does for the client stands beside them: its ``contribution``, its ``reward`` (IAFL's rate, or CGSV's
    share of the entries of the model), its ``tokens`` in the last round, its ``cluster`` (``client_clusters``), and its
    ``participation`` (the share of rounds in which it trained). ``left``: whether it left (scenario ``opting_out``).

    Args:
      source: a ``Result``, a ``Comparison``, a run that ``fljax.load`` opened, or the path of a run folder.

    Returns:
      The table. Missing numbers are NaN, missing decisions ``pd.NA``: ``would_leave`` is missing where results decide
      by no reason. ``clients`` is "seen" or "unseen", ``client`` the number among these, and ``name`` the client's name
      where it has one in all seeds (and cells), or else the number.

    Raises:
      ValueError: if a folder has no results.
    """
    results = folders.load(pathlib.Path(source)) if isinstance(source, str | pathlib.Path) else source
    if not isinstance(results, Material) and isinstance(results, HasResults) and axes_of(results.metrics):
        return _of_cells(results.metrics, results.records)
    material = read(source)
    parts = [
        _part(material, label, kind)
        for label in material.labels
        for kind in ("client", "unseen")
        if material.metrics.sizes.get(kind, 0)
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _of_cells(metrics: xr.Dataset, records: xr.Dataset) -> pd.DataFrame:
    """The table of every cell of a sweep, one behind the other."""
    axes, tables = axes_of(metrics), list[pd.DataFrame]()
    for place in np.ndindex(*(metrics.sizes[name] for name in axes)):
        at = dict(zip(axes, place, strict=True))
        cell = metrics.isel(at, drop=True).assign_attrs(grid="{}")
        table = leaving(Results(cell, records.isel(at, drop=True, missing_dims="ignore")))
        for column, (name, number) in enumerate(at.items(), 1):
            table.insert(column, name, metrics[name].values[number].item(), allow_duplicates=True)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _part(material: Material, label: str, kind: str) -> pd.DataFrame:
    """The lines of one algorithm's seen or unseen clients."""
    metrics, prefix = material.metrics, "unseen_" if kind == "unseen" else ""
    seeds, count = metrics.sizes["seed"], metrics.sizes[kind]
    nothing = np.full((seeds, count), np.nan)
    values = {
        column: at_last(metrics, prefix + name, label) if label in having(material, prefix + name) else nothing
        for column, name in _METRICS.items()
    }
    decisions = _decisions(material, label, prefix, values)
    records = material.records(label)
    for column, names in _RECORDS.items():
        last = (None if prefix else _last_record(records, name, count, metrics, label) for name in names)
        values[column] = next((known for known in last if known is not None), nothing)
    clusters = None if prefix else last_clusters(records, count)
    values["cluster"] = nothing if clusters is None else clusters
    participation = None if prefix else rates(material, label, "participation")
    values["participation"] = nothing if participation is None else participation
    left = None if prefix else _last_record(records, "opted_out", count, metrics, label)
    decisions["left"] = nothing if left is None else left
    seed, client = np.repeat(metrics["seed"].values, count), np.tile(np.arange(count), seeds)
    kinds, names = "unseen" if prefix else "seen", np.tile(names_of(metrics, kind), seeds)
    table = pd.DataFrame({"algorithm": label, "seed": seed, "clients": kinds, "client": client, "name": names})
    table = table.assign(**{column: numbers.ravel() for column, numbers in values.items()})
    table = table.assign(**{column: _as_bools(numbers) for column, numbers in decisions.items()})
    why = [
        "; ".join(words for column, words in REASONS.items() if decisions[column].ravel()[at] == 1)
        for at in range(seeds * count)
    ]
    return table.assign(reasons=why)


def _decisions(material: Material, label: str, prefix: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """1 (leaves), 0 or NaN (unknown) ``[seed, client]`` by column; the last one is whether any reason holds."""
    gain = values["gain"]
    if (name := f"{prefix}personalised_model_accuracy_gain") in material.metrics:
        gain = gain.astype(material.metrics[name].dtype)  # which says how far rounding may move a gain
    # Metrics over one client alone are the decisions of that client.
    alone = values["test_loss"][..., None], values["standalone_loss"][..., None]
    required = values["global_loss"][..., None], values["required_loss"][..., None]
    decided = {
        "prefers_standalone": 1 - np.asarray(incentivised_participation_rate(*alone), float),
        "requirement_unmet": 1 - np.asarray(incentivised_participation_rate(*required), float),
        "opts_out": np.asarray(
            opt_outs(gain[..., None], threshold=values["opt_out_threshold"].astype(gain.dtype)[..., None]), float
        ),
    }
    # Standalone training itself cannot be preferred to itself: its metric is NaN in results.
    if label not in having(material, f"{prefix}incentivised_participation_rate"):
        decided["prefers_standalone"] = np.full_like(values["test_loss"], np.nan)
    every = np.stack(list(decided.values()))
    decided["would_leave"] = np.where((every == 1).any(axis=0), 1.0, np.where(np.isnan(every).all(axis=0), np.nan, 0.0))
    return decided


def _last_record(records: xr.Dataset, name: str, count: int, metrics: xr.Dataset, label: str) -> np.ndarray | None:
    """``[seed, client]`` in the last round before the last evaluation that has values; None if there is no record."""
    values = of_clients(records, name, count)
    if values is None:
        return None
    done = metrics["evaluated_round"].values[end_of(metrics, label)]
    known = (records["round"].values < done) & np.isfinite(values).any(axis=(0, 2))
    return values[:, np.flatnonzero(known)[-1]] if known.any() else None


def _as_bools(values: np.ndarray) -> pd.Series:
    """1, 0 and NaN as True, False and missing."""
    flat = values.ravel()
    return pd.Series(pd.array([None if np.isnan(number) else bool(number) for number in flat], dtype="boolean"))
