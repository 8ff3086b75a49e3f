"""A finished run that goes on for more rounds: ``fljax run --resume --set rounds=MORE``.

Models after the last round (``save_models = "last"``) are an algorithm's whole state. A run may die meanwhile: the
attribute CONTINUES of the results has the rounds of the earlier run, and algorithms with so many have to go on.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from fljax.results import stores as long_records
from fljax.results.events import Parts
from fljax.results.identity import differences

CONTINUES = "continues"
# What may differ between the earlier config and the one with more rounds.
_MAY_DIFFER = {"rounds", "evaluate_every"}
# Counts from the first round of a run to an evaluation.
_RUNNING = (
    "dropped_messages",
    *(f"{of}{name}" for of in ("", "client_") for name in ("gradient_steps", "forward_passes")),
)
_AT_ONCE = 1000  # rounds of long records that are in memory


def rounds_before(metrics: xr.Dataset, old_text: str, text: str) -> int | None:
    """The rounds after which results of the config ``old_text`` go on; None: they do not, or not with ``text``."""
    asked, changed = tomllib.loads(text), differences(old_text, text)
    if not changed:
        return _goes_on(metrics)
    earlier = tomllib.loads(old_text)
    if "rounds" not in changed or set(changed) - _MAY_DIFFER or asked["rounds"] <= earlier["rounds"]:
        return None
    if "diverged" not in metrics or "rounds_done" not in metrics:
        return None
    before, wanted = int(earlier["rounds"]), "expected a finished run to give it more rounds, got"
    if "stop" in asked:
        raise ValueError("stop: expected none where a finished run gets more rounds, got early stopping")
    if _goes_on(metrics) is not None:
        raise ValueError(f"{wanted} one that goes on to {before} rounds; finish it with --set rounds={before} first")
    known = [str(label) for label in metrics["algorithm"].values]
    for entry in asked["algorithms"]:
        label = entry["label"]
        if label not in known:
            raise ValueError(f"{wanted} one without {label}; finish it with --set rounds={before} first")
        of_label = metrics.sel(algorithm=label)
        if np.any(of_label["diverged"].values >= 0):
            raise ValueError(f"{wanted} {label}, of which seeds diverged")
        if int(of_label["rounds_done"]) != before:
            raise ValueError(f"{wanted} {label}, which was stopped early after round {int(of_label['rounds_done'])}")
    return before


def _goes_on(metrics: xr.Dataset) -> int | None:
    """The rounds of the earlier run if some algorithms of the results have no more; None if all have."""
    before = metrics.attrs.get(CONTINUES)
    return int(before) if before is not None and np.any(metrics["rounds_done"].values == before) else None


def is_behind(metrics: xr.Dataset, old_text: str, written: str) -> bool:
    """Whether the written config is that of the earlier run, since a process died after it saved ``metrics``."""
    return CONTINUES in metrics.attrs and not set(differences(old_text, written)) - _MAY_DIFFER


def divided(parts: Parts, before: int | None) -> tuple[Parts, Parts]:
    """Results by label of the algorithms that have all rounds, and of those that go on after ``before`` rounds."""
    if before is None:
        return parts, {}
    begun = {label: part for label, part in parts.items() if int(part[0]["rounds_done"]) == before}
    return {label: part for label, part in parts.items() if label not in begun}, begun


def check_models(text: str, models: Mapping[str, pathlib.Path], stores: Mapping[str, pathlib.Path]) -> None:
    """Raises a ValueError if algorithms, by label of their last models' files and stores of records, cannot go on."""
    saved = tomllib.loads(text).get("save_models")
    if models and saved != "last":
        raise ValueError(
            "expected models after the last round, from which a run goes on for more rounds, and save_models = 'last' "
            f"(--save-models last), got {saved!r}"
        )
    for label, path in models.items():
        places = (path.parent / "best", *path.parent.glob("round-*"))
        others = [folder for folder in places if (folder / path.name).is_file()]
        if others:
            raise ValueError(
                f"expected models after the last round of {label} alone to go on for more rounds, got others in "
                f"{str(others[0])!r}, which would be of the earlier rounds"
            )
        if not path.is_file():
            raise ValueError(
                f"expected models after the last round of {label}, from which it goes on for more rounds, got none; "
                "a run with --save-models last keeps them"
            )
    for label, path in stores.items():
        if path.exists():
            raise ValueError(
                f"expected records of {label} that are short enough for results.nc to go on for more rounds, got those "
                f"in {str(path)!r}"
            )


def with_metrics(before: xr.Dataset, after: xr.Dataset, evaluate_every: int) -> xr.Dataset:
    """The metrics of a run and of its further rounds, at multiples of ``evaluate_every`` and at the end."""
    at = after["evaluated_round"].values
    usual = np.flatnonzero((at % evaluate_every == 0) | (at == at[-1]))
    return joined(before, after.isel(evaluated_round=usual), "evaluated_round")


def with_records(before: xr.Dataset, after: xr.Dataset) -> xr.Dataset:
    """The records of a run and of its further rounds; long ones stay in their store, with all rounds."""
    if not long_records.is_long(after):
        return joined(before, after, "round")

    def parts() -> Iterator[xr.Dataset]:
        fixed = {name: values for name, values in after.items() if "round" not in values.dims}
        count = int(np.searchsorted(before["round"].values, int(after["round"].values[0])))
        for source, end in ((before.isel(round=slice(count)), count), (after, after.sizes["round"])):
            for start in range(0, end, _AT_ONCE):
                part = source.isel(round=slice(start, start + _AT_ONCE))
                moving = {
                    name: part[name].transpose(*values.dims).astype(values.dtype)
                    for name, values in after.items()
                    if "round" in values.dims
                }
                yield xr.Dataset({**moving, **fixed}, after.drop_vars("round").coords).load()

    return long_records.save_records(long_records.place_of(after), parts())


def joined(before: xr.Dataset, after: xr.Dataset, along: str) -> xr.Dataset:
    """Metrics (along ``evaluated_round``) or records (along ``round``) of a run and of its further rounds."""
    # An evaluation after the last of the rounds before is that of ``before``; NaN after the end is left out.
    if along == "evaluated_round":
        first = int(before["rounds_done"])
        after = after.isel({along: np.flatnonzero(after[along].values > first)})
    else:
        first = int(after[along].values[0]) - 1 if after.sizes[along] else np.iinfo(np.int64).max
    before = before.isel({along: np.flatnonzero(before[along].values <= first)})
    axes = (along, *(["decision_round"] if "decision_round" in after.dims else []))
    # Seconds are added; others without evaluations or rounds are as ``after`` has them.
    variables: dict[str, Any] = {}
    for name, values in after.items():
        axis = next((dimension for dimension in axes if dimension in values.dims), None)
        if axis is not None and name in before:
            earlier = before[name]
            if name in _RUNNING:
                values = values + earlier.isel({along: -1}).fillna(0).drop_vars(along)
            values = xr.concat([earlier, values], axis, join="outer", coords="minimal", compat="override")
            values = values.transpose(*after[name].dims).astype(np.result_type(after[name].dtype, values.dtype))
        elif str(name).startswith("seconds_") and name in before:
            values = values + before[name]
        variables[str(name)] = values.assign_attrs(after[name].attrs)
    return xr.Dataset(variables, attrs=after.attrs)
