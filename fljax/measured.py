"""What an experiment measures before an algorithm runs and then gives to it: facts, baselines, where clusters start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fljax import clustering
from fljax.config import Clustering, Config
from fljax.engine import Execution
from fljax.folders import Parts
from fljax.local import Local, check_classes
from fljax.results import Reference
from fljax.types import Federation, Task


def started(
    config: Config,
    chosen: Clustering,
    build: Callable[..., Any],
    fixed: Mapping[str, Any],
    task: Task,
    local: Local,
    federation: Federation,
    trial: bool,
) -> Any:
    """Where clusters start, of all seeds."""
    parameters = inspect.signature(build).parameters
    count = fixed.get("clusters", parameters["clusters"].default if "clusters" in parameters else None)
    clustering.check(federation, chosen.rows, count)
    check_classes(task, "clustering")
    if trial:
        return clustering.placeholder(task, count, config.data.clients, len(config.seeds))
    return clustering.by_f1(
        task,
        local,
        federation,
        clusters=count,
        seeds=config.seeds,
        rounds=chosen.rounds,
        features=chosen.features,
        rows=chosen.rows,
        execution=Execution(**config.execution.model_dump()),
    )


def baselines_of(config: Config, parts: Parts) -> dict[str, np.ndarray] | None:
    """``[seeds, N]`` accuracies that the first algorithm has reached, by the rows that they are of."""
    if config.algorithms[0].label not in parts:
        return None
    metrics = parts[config.algorithms[0].label][0]
    return {
        split: metrics[f"{split}_accuracy"].transpose("evaluated_round", "seed", "client").values[-1]
        for split in ("valid", "test")
        if f"{split}_accuracy" in metrics
    }


def baseline(
    label: str, asking: Sequence[tuple[Callable[..., Any], Mapping[str, Any]]], baselines: Mapping[str, Any] | None
) -> Any:
    """The baseline of the scenarios that ask for one, on the rows on which they judge."""
    advice = "its baseline may be given as a number"
    if baselines is None:
        raise ValueError(
            "expected a scenario that asks for a baseline on an algorithm after the first one, which is the baseline, "
            f"and not in a sweep, got one on {label}; {advice}"
        )
    splits = set()
    for wrap, own in asking:
        parameters = inspect.signature(wrap).parameters
        splits.add(own.get("split", parameters["split"].default if "split" in parameters else "test"))
    if len(splits) > 1 or not splits <= baselines.keys():
        raise ValueError(
            f"expected the baseline of {label} on rows that the first algorithm is judged on, got "
            f"{', '.join(sorted(splits))}; valid names are {', '.join(baselines)} (valid needs "
            f"data.valid_fraction above 0); {advice}"
        )
    return baselines[splits.pop()]


def facts(federation: Federation, reference: Reference) -> dict[str, Any]:
    """What contribution measures may ask for, by id; a task without a score has no accuracies."""
    clients = federation.clients
    size = np.take_along_axis(np.asarray(clients.train.size), np.argsort(clients.id, axis=-1), axis=-1)
    alone = {"standalone_loss": reference.test_loss}
    if reference.test_accuracy is not None:
        alone["standalone_accuracy"] = reference.test_accuracy
    return {"size": size, "population": size.shape[-1], **alone}
