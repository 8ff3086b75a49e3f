"""Mechanisms found by search beside tuned baselines, certified on federations that no search had.

Eight clients of scikit-learn's digits train a logistic regression in 8 rounds of 3 steps, and may tell five lies.
``roles``: client k has 4 to 80 training rows, and 90 % of the labels of clients 3 and 6 are wrong. ``alike``: all have
24 rows with labels by Dirichlet(0.7), and half of the labels of clients 3 and 6 are wrong. Every federation draws its
rows anew, and a seed of the search has federations of its own; all are draws from the same 1,797 images.

*designed* is ``learnt``, with 36 numbers by CMA-ES. *plain* is ``weighted`` with its four numbers. Both have
``--budget`` runs; other baselines have ``--tuning`` runs for each number, one of which is a server rate. Robust rules
allow for two attackers. Finished parts stay in the folder of ``--runs``, and the same command goes on. ``--save STEM``
writes ``STEM.csv``, with the numbers found and the accuracy on each federation, and ``STEM.png``.

Accuracies and what *designed* has beyond them, paired by federation, have 95 % t-intervals over the fresh federations
of all seeds. *Above outside*: the share of clients that are better than alone. *Optimism*: at validation less fresh.
CPU-seconds have compiling in them. Cells with several numbers are by seed.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fljax
from benchmarks.reporting import Row, names_in
from fljax import Plan, algorithms, data, models, scenarios
from fljax.algorithms.weighted import FEATURES, parts_of
from fljax.contributions import error_bars
from fljax.core.files import write
from fljax.core.values import Count, NonNegative, Positive, checked
from fljax.games import Around, Baseline, Interval, design
from fljax.games.mechanisms.designing import DESIGNED, Chosen
from fljax.scenarios import ByReport, Strategy

ROUNDS, LOCAL, TEST, WRONG = 8, fljax.Local(learning_rate=1.0, batch_size=10, steps=3), 120, (3, 6)
ENDS = (1.8, 1.0, 0.5, 0.4, 0.6)  # of features in the picture, which are rarely beyond
BY_SEED = ("{regret:.3f} by {lie}", "{ends[0]:.3f} to {ends[1]:.3f}", "{verdict}", "{above:.3f}", "{optimism:+.3f}")
BY_SEED += ("{spent[0]:,}", "{spent[1]:.0f}")
TOLERANCE, RATE, CLIP = 0.03, Interval(0.5, 3.0), Interval(0.3, 30.0, log=True)
REPORTS = {"size x 10": ByReport(size=10.0), "loss x 10": ByReport(loss=10.0), "loss x 0.1": ByReport(loss=0.1)}
LIES = {name: Strategy(factor=report) for name, report in REPORTS.items()}
LIES |= {f"update x {by:g}": Strategy(own=by) for by in (4.0, 0.5)}
ROBUST = (
    "coordinate_median",
    "trimmed_mean",
    "multi_krum",
    "geometric_median",
    "centred_clipping",
    "mixing_trimmed_mean",
)
# Training rows of each client, the share of wrong labels of two of them, and Dirichlet's parameter of labels.
SETTINGS = {"roles": ((4, 5, 6, 8, 12, 30, 50, 80), 0.9, 2.0), "alike": ((24,) * 8, 0.5, 0.7)}


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """All images as vectors from 0 to 1, and their labels."""
    images = data.load("digits")
    return np.asarray(images.x, np.float32).reshape(len(images.y), -1) / 255, np.asarray(images.y, np.int32)


def federation(name: str, seed: int) -> fljax.Federation:
    """A federation whose training and test rows have the same labels by client, but for wrong ones."""
    (x, y), random, clients = digits(), np.random.default_rng(10_000 + seed), dict[int, Any]()
    parts, (sizes, share, beta) = np.split(random.permutation(len(x)), [len(x) // 2]), SETTINGS[name]
    for client, rows in enumerate(sizes):
        label, drawn = random.dirichlet(np.full(10, beta)), list[np.ndarray]()
        for part, count in zip(parts, (rows, TEST), strict=True):
            chance = label[y[part]] / np.bincount(y[part], minlength=10)[y[part]] + 1e-9
            drawn.append(random.choice(part, count, replace=False, p=chance / chance.sum()))
        train, test = drawn
        labels, wrong = y[train].copy(), random.random(rows) < share * (client in WRONG)
        labels[wrong] = (labels[wrong] + random.integers(1, 10, wrong.sum())) % 10
        clients[client] = {"train": (x[train], labels), "test": (x[test], y[test])}
    return data.from_clients(clients, classes=10)


@checked
def robust(
    task: fljax.Task,
    local: fljax.Local,
    *,
    rule: str,
    server_lr: NonNegative = 1.0,
    bound: Positive = 1.0,
    clients_per_round: Count | None = None,
) -> fljax.Algorithm:
    """FedAvg with uniform weights and a robust rule in place of the mean; the name may begin with "mixing"."""
    same: dict[str, Any] = {"weights": "uniform", "server_lr": server_lr, "clients_per_round": clients_per_round}
    options: dict[str, Any] = {"rule": rule.removeprefix("mixing_"), "bound": bound}
    options["before"] = "mixing" if rule.startswith("mixing") else None
    return scenarios.robust(algorithms.fedavg(task, local, **same), byzantine=len(WRONG), **options)


def mechanisms(seed: int, budget: int, tuning: int) -> dict[str, Baseline]:
    """The learnt mechanism, searched from random weights of its network, and all baselines."""
    task = models.task_from_module(nn.Dense(10), digits()[0][:1], classes=10)
    same = {"task": task, "local": LOCAL, "clients_per_round": None}

    def tuned(build: Any, *, over: Any = None, rate: Interval = RATE, runs: int = 0, **fixed: Any) -> Baseline:
        numbers = {**(over or {}), "server_lr": rate}
        return Baseline(Plan(build, {**same, **fixed}), numbers, runs or tuning * len(numbers))

    random, features = np.random.default_rng(seed), len(FEATURES)
    first, second = 0.3 * random.normal(size=4 * features), 0.3 * random.normal(size=4)
    start = np.concatenate([np.zeros(features), first, np.zeros(4), second, [1, np.log(4), np.log(1.5)]])
    scale = np.concatenate([np.ones(5 * features), np.full(4, 0.5), np.ones(5), [0.8, 0.35]])
    powers = {"size_power": Interval(-0.5, 1.5), "loss_power": Interval(-2.0, 2.0), "clip": CLIP}
    gap = {"threshold": Interval(0.05, 3.0, log=True), "gap_scale": Interval(0.1, 10.0, log=True)}
    bounds = {"centred_clipping": {"bound": Interval(0.1, 10.0, log=True)}}
    return {
        DESIGNED: Baseline(Plan(algorithms.learnt, same), {"theta": Around(start, scale)}, budget),
        "plain": tuned(algorithms.weighted, over=powers, runs=budget),
        "by size": tuned(algorithms.fedavg),
        "uniform": tuned(algorithms.fedavg, weights="uniform"),
        "uniform clipped": tuned(algorithms.weighted, over={"clip": CLIP}, size_power=0.0),
        "qffl": tuned(algorithms.qffl, rate=Interval(0.5, 10.0, log=True), over={"q": Interval(0.0, 3.0)}),
        "incfl": tuned(algorithms.incfl, over=gap),
        **{rule: tuned(robust, over=bounds.get(rule), rule=rule) for rule in ROBUST},
    }


def searched(name: str, seed: int, options: Namespace) -> dict[str, Any]:
    """What a search finds in a setting, by mechanism; from the disk if it is finished."""
    folder = Path(options.runs) / f"{name}-{seed}"
    if (done := folder / "found.json").exists():
        return json.loads(done.read_text())
    designed, *rest = (tried := mechanisms(seed, options.budget, options.tuning))
    labels = names_in(options.baselines or ",".join(rest), rest, "baseline")
    unseen, log = options.pool + max(1, options.pool // 4), folder / "spent.json"
    spent, before = json.loads(log.read_text()) if log.exists() else {}, [time.process_time()]
    places = unseen + options.fresh
    stacked = data.stack([federation(name, 1_000 * seed + place) for place in range(places)])

    def count(block: Any) -> None:
        """Adds the block to the mechanism that runs: the last one begins, and makes its folder."""
        at = min((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)
        label, now = ["outside", designed, *labels][at + 1], time.process_time()
        runs, seconds = spent.get(label, (0, 0.0))
        spent[label], before[0] = (runs + block.block, seconds + now - before[0]), now
        write(log, json.dumps(spent).encode())

    sizes = {"pool": options.pool, "resample": max(1, options.pool // 10), "validation": unseen - options.pool}
    sizes |= {"fresh": options.fresh, "budget": options.budget, "population": 10, "candidates": 20, "rounds": ROUNDS}
    same: dict[str, Any] = {"deviations": LIES, "seed": seed, "checkpoint": folder, "on_block": count, **sizes}
    same |= {"over": tried[designed].over, "baselines": {label: tried[label] for label in labels}}
    found = design(tried[designed].plan, stacked, tolerance=[TOLERANCE], **same)
    fresh, told = data.choose(stacked, np.arange(unseen, places)), dict[str, Any]()
    for label, (chosen,) in found.chosen.items():
        told[label] = {**summary(chosen, found.plan(TOLERANCE, label), fresh), "spent": spent[label]}
    write(done, json.dumps(told).encode())
    return told


def summary(chosen: Chosen, plan: Plan, fresh: fljax.Federation) -> dict[str, Any]:
    """What is kept of a mechanism; ``weights`` are those of clients, means over rounds and federations."""
    runs = fljax.simulate(plan, fresh, rounds=ROUNDS, seeds=len(chosen.objective), evaluate_every=ROUNDS)
    weights = runs.records["client_weight"].mean(("seed", "round")).values if "client_weight" in runs.records else []
    found = {"objective": np.round(chosen.objective, 5).tolist(), "weights": np.round(weights, 4).tolist()}
    found |= {"optimism": chosen.validated.objective - chosen.fresh.objective, "verdict": "a run diverged"}
    found |= {"regret": chosen.fresh.regret, "lie": chosen.fresh.lie, "ends": [np.nan, np.nan], "above": np.nan}
    found["arguments"] = {name: np.asarray(value).tolist() for name, value in chosen.arguments.items()}
    if (certificate := chosen.certificate) is not None and (attack := certificate.attack) is not None:
        gains, strategy = certificate.gains, dict(attack.strategy)
        found |= {"verdict": certificate.verdict, "ends": [certificate.epsilon_low, certificate.epsilon_high]}
        found["above"] = float(np.mean(gains.honest > gains.outside))
        found["attack"] = [attack.mean, attack.low, attack.high, attack.client, strategy]
    return found


def row_of(name: str, label: str, found: Sequence[Mapping[str, Any]]) -> Row:
    """The row of a mechanism; ``found`` are those of the seeds."""

    def told(form: str, *samples: np.ndarray) -> str:
        bars = [error_bars(sample) for sample in samples]
        return "; ".join(f"{each.mean:{form}} ({each.low:{form}} to {each.high:{form}})" for each in bars)

    own, designed = ([np.array(each[of]["objective"]) for each in found] for of in (label, DESIGNED))
    less = [mine - other for mine, other in zip(designed, own, strict=True)]
    compared = (told("+.3f", np.concatenate(less)), told("+.3f", *less))
    cells = ("; ".join(form.format(**each[label]) for each in found) for form in BY_SEED)
    return name, label, told(".3f", np.concatenate(own)), *compared, *cells


def measure(options: Namespace) -> Iterator[Row]:
    """Searches, seed after seed; rows of each setting."""
    found, kept = dict[str, list[dict[str, Any]]](), list[dict[str, Any]]()
    for name in names_in(options.settings, tuple(SETTINGS), "setting"):
        found[name] = [searched(name, seed, options) for seed in range(options.seeds)]
        yield from (row_of(name, label, found[name]) for label in found[name][0])
        for seed, by_label in enumerate(found[name]):
            kept += [{"setting": name, "seed": seed, "mechanism": label, **by_label[label]} for label in by_label]
    if options.save:
        pd.DataFrame(kept).to_csv(Path(options.save).with_suffix(".csv"), index=False, float_format="%.5g")
        picture(found).savefig(Path(options.save).with_suffix(".png"), dpi=110)


def picture(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The weight of a client by each feature less its mean, where 1 is that of all means; a line for each seed."""
    figure = Figure(figsize=(10, 2.2 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), len(FEATURES), sharey=True, squeeze=False)
    for (name, seeds), (place, feature) in itertools.product(found.items(), enumerate(FEATURES)):
        axis, x = axes[list(found).index(name), place], np.linspace(-ENDS[place], ENDS[place], 101)
        features = x[:, None] * np.eye(len(FEATURES))[place]
        for theta in (by_label[DESIGNED]["arguments"]["theta"] for by_label in seeds):
            linear, first, first_bias, second, bias = map(np.asarray, parts_of(theta)[:5])
            weight = np.logaddexp(0, features @ linear + np.tanh(features @ first + first_bias) @ second + bias) + 1e-6
            axis.semilogy(x, weight / weight[50])
        axis.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
        axis.minorticks_off()
        axis.set(xlabel=feature, ylabel="" if place else f"{name}: weight")
    return figure
