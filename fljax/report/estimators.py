"""Estimators of what clients are worth beside retraining: ``fljax.games.compare_estimators`` as text and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float, Int

from fljax.core.plain import as_csv

TABLE = "estimators.csv"
HEADINGS = {
    "kendall": "tau-b",
    "spearman": "Spearman",
    "share_error": "share error",
    "best_found": "best",
    "worst_found": "worst",
    "stability": "stability",
    "compared": "clients",
    "trainings": "trainings",
    "evaluations": "evaluations",
    "gradients": "gradients",
    "seconds": "seconds",
}
_WHOLE = ("trainings", "evaluations", "gradients")


def estimator_rows(compared: xr.Dataset) -> list[list[str]]:
    """The table of one algorithm as text: headings, and a row for each estimator, the best order of clients first."""
    means = {name: _known_mean(compared[name]) for name in HEADINGS}
    names, clients = [str(name) for name in compared["estimator"].values], compared.sizes["client"]
    rows = [
        [names[place], *(_cell(name, float(means[name][place]), clients) for name in HEADINGS)]
        for place in ranked(compared)
    ]
    return [["estimator", *HEADINGS.values()], *rows]


def of_all_clients(compared: xr.Dataset) -> Bool[np.ndarray, " estimators"]:
    """Which estimators say something of as many clients as any does, in every seed."""
    values = compared["compared"].transpose("seed", ...)
    return (values == values.max("estimator")).all("seed").values


def ranked(compared: xr.Dataset) -> Int[np.ndarray, " estimators"]:
    """The places of estimators by mean tau-b, the best first, and those without all clients apart, after the others."""
    return np.lexsort((-np.nan_to_num(_known_mean(compared["kendall"]), nan=-2), ~of_all_clients(compared)))


def _known_mean(values: xr.DataArray) -> Float[np.ndarray, " estimators"]:
    """The mean over seeds without NaN; NaN where nothing is known."""
    if "seed" not in values.dims:
        return values.values.astype(float)
    known = values.notnull().sum("seed")
    return (values.sum("seed") / known.where(known > 0)).values.astype(float)


def _cell(name: str, value: float, clients: int) -> str:
    if np.isnan(value):
        return "-"
    if name == "compared":
        return f"{value:.3g} of {clients}"
    return f"{value:,.0f}" if name in _WHOLE else f"{value:.2f}"


def estimator_sentences(compared: xr.Dataset) -> list[str]:
    """What the columns of one algorithm's table are."""
    sentences = [
        "tau-b, Spearman and share error: beside the Shapley values of all coalitions, with the same seed. best, "
        "worst: how often the client that is worth the most, and the least, is named."
    ]
    if np.isfinite(compared["ceiling"]):
        sentences.append(
            f"stability: tau-b between seeds; of the Shapley values it is {float(compared['ceiling']):.2f}."
        )
    return sentences + estimator_notes(compared)


def estimator_notes(compared: xr.Dataset) -> list[str]:
    """What is special about some estimators of the table, and which are left out."""
    sentences: list[str] = []
    if not of_all_clients(compared).all():
        few = [str(name) for name in compared["estimator"].values[~of_all_clients(compared)]]
        sentences.append(f"Last, and of some clients alone, by which they are not comparable: {', '.join(few)}.")
    for name, settled in compared["converged"].groupby("estimator"):
        if not settled.all():
            count = int((~settled).sum())
            sentences.append(f"{name} has not settled in {count} of {settled.size} seeds: more sweeps may change it.")
    if words := compared.attrs.get("left_out"):
        sentences.append(f"{words[0].upper()}{words[1:]}.")
    return sentences


def estimator_table(comparisons: Mapping[str, xr.Dataset]) -> bytes:
    """All comparisons as CSV: a line for each algorithm, estimator and seed."""
    frames: list[Any] = []
    for label, compared in comparisons.items():
        columns = [*HEADINGS, "converged"]
        frame = compared[columns].to_dataframe().reset_index()[["estimator", "seed", *columns]]
        frame.insert(0, "algorithm", label)
        frames.append(frame)
    return as_csv(pd.concat(frames)).encode()
