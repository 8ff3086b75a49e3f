"""Scores of the task in results (``fljax.metrics.scores``): their direction, and clients that have none."""

from __future__ import annotations

import numpy as np
import xarray as xr

from fljax.metrics.registry import is_lower_better
from fljax.results.endings import weights_in_words

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
