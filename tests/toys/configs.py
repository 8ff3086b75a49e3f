"""Small configs of tests of experiments, and results that no run has computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from fljax import config as configuration
from fljax.experiments.inputs.setup import resolve_setup
from fljax.protocol import Federation, Task
from fljax.results import Results

DIGITS = 'dataset = "digits"\npartition = "iid"\nclients = 4'
BLOBS = 'dataset = "blobs"\npartition = "iid"\nclients = 4'
BASE: dict[str, Any] = {
    "seeds": 2,
    "rounds": 4,
    "evaluate_every": 2,
    "data": {
        "dataset": "blobs",
        "partition": "cluster_labels",
        "clients": 6,
        "unseen": 2,
        "partition_options": {"groups": 2, "minimum": 2},
    },
    "model": {"name": "logistic_regression"},
    "local": {"learning_rate": 0.1, "batch_size": 4, "steps": 2},
    "standalone": {"steps": 3},
    "participation": {"clients_per_round": 3},
    "algorithms": [{"name": "fedavg"}, {"name": "incfl"}],
}
SWEPT: dict[str, Any] = BASE | {
    "data": BASE["data"] | {"valid_fraction": 0.3},
    "sweep": {"grid": {"local.learning_rate": [0.02, 0.1, 0.3], "algorithms.incfl.eps": [1e-8, 1.0]}},
}
THREE_CLIENTS: dict[str, Any] = BASE | {
    "data": {"dataset": "blobs", "partition": "iid", "clients": 3},
    "algorithms": [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}],
    "seeds": [0],
}


def build(**changes: Any) -> configuration.Config:
    """``BASE`` with changes."""
    return configuration.parse(BASE | changes, name="tiny")


def text(config: configuration.Config | None = None) -> str:
    """A config as a run folder keeps it."""
    return configuration.dumps(config or build())


def results(*labels: str, size: int = 1) -> Results:
    """Metrics and records of algorithms, without training any."""
    dims = ("algorithm", "seed", "evaluated_round")
    values = np.arange(len(labels) * 2.0).reshape(len(labels), 2, 1)
    metrics = xr.Dataset(
        {"average_accuracy": (dims, values)}, {"algorithm": list(labels), "seed": [0, 1], "evaluated_round": [4]}
    )
    weight = (("algorithm", "seed", "round"), np.random.default_rng(0).random((len(labels), 2, size)))
    return Results(metrics, xr.Dataset({"weight": weight}, {"algorithm": list(labels)}))


def config_text(
    data: str,
    *algorithms: str,
    head: str = "rounds = 1",
    model: str = "logistic_regression",
    batch_size: int = 4,
    steps: int = 2,
    standalone: int | None = None,
    more: str = "",
) -> str:
    """A config in TOML; ``head``, ``data`` and ``more`` are lines, and lines may follow the name of an algorithm."""
    local = f"learning_rate = 0.1\nbatch_size = {batch_size}\nsteps = {steps}"
    tables = [("data", data), ("model", f'name = "{model}"'), ("local", local)]
    if standalone is not None:
        tables.append(("standalone", f"steps = {standalone}"))
    parts = [head, *(f"[{name}]\n{lines}" for name, lines in tables), *([more] if more else [])]
    for each in algorithms or ("fedavg",):
        name, _, options = each.partition("\n")
        parts.append(f'[[algorithms]]\nname = "{name}"' + (f"\n{options}" if options else ""))
    return "\n".join(parts) + "\n"


def build_federation(config: configuration.Config) -> tuple[Federation, Task]:
    """The federations of all seeds, stacked, and the task on them."""
    setup = resolve_setup(config)
    return setup.federation, setup.task
