"""What a round of every method costs beside one of FedAvg.

Digits, MLP 64-64-30-10, 100 of 100 clients, 20 steps of 8; passes are interleaved. Hyper-parameters have their
defaults; `fedbn` keeps the last layer, as the network has no BatchNorm, and `lg_fedavg` the first. `afl` takes one
local step in a round; `fedsoft` and `ipfl` train 10 of the clients, at their defaults. What an algorithm asks of
clients beside local training is part of a round. Ratios are of one pass each.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import fljax
from benchmarks.reporting import Row
from fljax import algorithms, config
from fljax.experiments import run
from fljax.experiments.inputs.setup import resolve_setup

OPTIONS: dict[str, dict[str, Any]] = {"fedbn": {"own": ["head/bias", "head/kernel"]}, "lg_fedavg": {"shared": 2}}


def measure(options: Namespace) -> Iterator[Row]:
    """The rows, after all passes."""
    fljax.use_cores()
    names = dict.fromkeys(["fedavg", *(options.methods.split(",") if options.methods else algorithms.REGISTRY)])
    rows = {"valid_fraction": 0.2, "held_fraction": 0.1}  # some methods judge models by them
    raw: dict[str, Any] = {
        "rounds": options.rounds,
        "data": {"dataset": "digits", "partition": "dirichlet", "clients": 100, **rows},
        "model": {"name": "mlp", "hidden": [64, 30]},
        "local": {"learning_rate": 0.05, "batch_size": 8, "steps": 20},
        "standalone": {"steps": 1},
        "algorithms": [{"name": name, **OPTIONS.get(name, {})} for name in names],
    }
    setup = resolve_setup(config.parse(raw, name="methods"))
    plans = run.check_setup(setup, rehearsed=False)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for done in range(options.passes + 1):
        for name, plan in plans.items():
            found = fljax.simulate(plan, setup.federation, rounds=options.rounds, evaluate_every=options.rounds)
            if done:  # the first pass compiles
                seconds[name].append(float(found.metrics["seconds_train"]) / options.rounds)
    for name, spent in seconds.items():
        ratios = [own / other for own, other in zip(spent, seconds["fedavg"], strict=True)]
        cells = (f"{1000 * statistics.median(spent):.2f}", f"{statistics.median(ratios):.2f}")
        yield f"`{name}`", *cells, f"{min(ratios):.2f} to {max(ratios):.2f}"
