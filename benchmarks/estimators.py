"""Estimators of what a client is worth, beside all coalitions retrained: ``python benchmarks/estimators.py --out DIR``.

Three federations of a few clients: ``even`` (alike), ``groups`` (two clients for each group of labels, of different
sizes) and ``broken`` (alike but for size; most labels of client 0 are random, and client 2 is a copy of client 1). For
each, FedAvg retrains all coalitions with several seeds, which redraw initial weights and batches. Every estimator of
the registry is compared with the Shapley values of the same seed. Then the same tables of other algorithms: how far
does what a client is worth depend on the algorithm, beside the seed? ``estimator_tables.py`` writes the report.

Finished runs and reports stay in the folder of ``--work``, and the same command goes on with what is missing.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from estimator_tables import PAPER, Found, verdict, write
from throughput import hardware

import fljax
from fljax import algorithms, data, games, models
from fljax.core.files import write as write_file

FEDERATIONS = ("even", "groups", "broken")
NOISY, CLONE, CLONED = 0, 2, 1  # clients of the federation "broken"
STEPS, BATCH, RATE = 10, 32, 0.1
TEST, RANDOM_LABELS = 1_000, 0.6
# Of one run under each algorithm, as in the paper on volatility.
OF_ONE_RUN = ("one_round", "multi_round")
CHOSEN = ("data", "clients", "rows", "rounds", "seeds", "threshold")  # settings on which results depend


class Clients(NamedTuple):
    """Examples and who has which rows: of each client for training and for validation, and the server's."""

    x: np.ndarray
    y: np.ndarray
    train: tuple[np.ndarray, ...]
    valid: tuple[np.ndarray, ...]
    server: np.ndarray


def sizes_of(kind: str, rows: int, clients: int) -> list[int]:
    """Training rows of each client, ``rows`` in all but for rounding; a copy has the size of the original."""
    ratio = np.ones(clients) if kind == "even" else np.linspace(0.5, 1.5, clients)
    if kind == "broken":
        ratio[CLONE] = ratio[CLONED]
    return np.round(rows * ratio / ratio.sum()).astype(int).tolist()


def shared_out(kind: str, images: data.Dataset, rows: int, clients: int) -> Clients:
    """The rows of a federation, drawn from a fixed seed."""
    random, labels = np.random.default_rng(0), np.asarray(images.y)
    assert images.classes is not None
    pool, free = random.permutation(images.train_size), np.ones(len(labels), bool)
    groups = np.array_split(np.arange(images.classes), (clients + 1) // 2)

    def take(count: int, classes: np.ndarray) -> np.ndarray:
        fitting = pool[free[pool] & np.isin(labels[pool], classes)][:count]
        if len(fitting) < count:
            raise ValueError(f"expected {count} more rows of the classes {classes.tolist()}, got {len(fitting)}")
        free[fitting] = False
        return fitting

    server = take(rows // 8, np.arange(images.classes))
    train, valid = [], []
    for client, size in enumerate(sizes_of(kind, rows, clients)):
        classes = groups[client // 2] if kind == "groups" else np.arange(images.classes)
        train.append(take(size, classes))
        valid.append(take(max(size // 8, 1), classes))
    x, y = np.asarray(images.x), labels.copy()
    if kind == "broken":
        for lists in (train, valid):
            noisy = lists[NOISY][random.random(len(lists[NOISY])) < RANDOM_LABELS]
            y[noisy] = random.integers(0, images.classes, len(noisy))
            # A row belongs to one client, so the copy has rows of its own.
            lists[CLONE] = len(x) + np.arange(len(lists[CLONED]))
            x, y = np.concatenate([x, x[lists[CLONED]]]), np.concatenate([y, y[lists[CLONED]]])
    return Clients(x, y, tuple(train), tuple(valid), server)


def federation_of(kind: str, images: data.Dataset, rows: int, clients: int) -> fljax.Federation:
    """The federation, whose clients are all tested on the same rows of the data set's test part."""
    made = shared_out(kind, images, rows, clients)
    used = np.concatenate([*made.train, *made.valid, made.server])
    place = {row: number for number, row in enumerate(used.tolist())}
    outside = np.setdiff1d(np.arange(images.train_size), used)
    rest = np.arange(images.train_size, len(images.y)) if images.train_size < len(images.y) else outside
    test = np.random.default_rng(1).permutation(rest)[:TEST]
    every = np.concatenate([used, test])
    whole = data.dataset(made.x[every], made.y[every], classes=images.classes, train_size=len(used))

    def numbered(rows: np.ndarray) -> np.ndarray:
        return np.array([place[row] for row in rows.tolist()])

    def owned(labels: Any, *, clients: int, unseen: int, seed: int) -> data.Partition:
        train, valid = (tuple(map(numbered, part)) for part in (made.train, made.valid))
        return data.Partition(train, valid=valid, held={"validation": numbered(made.server)})

    return data.federate(whole, owned, clients=clients, test="global")


def plans_of(task: fljax.Task, threshold: float) -> dict[str, fljax.Plan]:
    """The algorithms, all with all clients in each round; FedAvg by size is the first one."""
    common: dict[str, Any] = {
        "task": task,
        "local": fljax.Local(RATE, BATCH, steps=STEPS),
        "clients_per_round": None,
    }
    chosen: dict[str, tuple[Any, dict[str, Any]]] = {
        "fedavg by size": (algorithms.fedavg, {"weights": "size"}),
        "fedavg uniform": (algorithms.fedavg, {"weights": "uniform"}),
        "fedprox": (algorithms.fedprox, {}),
        "scaffold": (algorithms.scaffold, {}),
        "qffl": (algorithms.qffl, {}),
        "incfl": (algorithms.incfl, {"threshold": threshold}),
    }
    return {name: fljax.Plan(build, {**common, **options}) for name, (build, options) in chosen.items()}


def table_of(
    plan: fljax.Plan, federation: fljax.Federation, folder: Path, settings: argparse.Namespace
) -> games.CoalitionTable:
    """The table of all coalitions, from the disk if it is complete there."""
    path = folder / "table.nc"
    if not path.exists():
        count = settings.seeds * 2**settings.clients
        folder.mkdir(parents=True, exist_ok=True)
        table = games.coalitions(
            plan, federation, rounds=settings.rounds, seeds=settings.seeds, max_runs=count, checkpoint=folder / "blocks"
        )
        games.save(path, {"table": table})
    return games.load(path).tables["table"]


def once(path: Path, make: Callable[[], xr.Dataset]) -> xr.Dataset:
    """A dataset from the disk, or a new one, which is saved as a whole."""
    if not path.exists():
        write_file(path, json.dumps(make().to_dict()).encode())
    return xr.Dataset.from_dict(json.loads(path.read_text()))


def of_one_run(
    plans: Mapping[str, fljax.Plan],
    federation: fljax.Federation,
    tables: Mapping[str, games.CoalitionTable],
    rounds: int,
) -> xr.Dataset:
    """Estimators that look at one run of each algorithm.

    ``worth`` over ``estimator, algorithm, seed, client``. ``gap`` over ``algorithm``: by how much the values of rounds,
    added up, miss what the run gained, the largest of all seeds; 0 where the server averages updates.
    """
    compared = [
        games.compare_estimators(plan, federation, tables[name], rounds=rounds, estimators=OF_ONE_RUN)
        for name, plan in plans.items()
    ]
    worth = np.stack([dataset["worth"].values for dataset in compared], axis=1)
    gaps = [dataset["worth"].sel(estimator="multi_round").sum("client") - dataset["gain"] for dataset in compared]
    return xr.Dataset(
        {
            "worth": (("estimator", "algorithm", "seed", "client"), worth),
            "gap": ("algorithm", [float(abs(gap).max()) for gap in gaps]),
        },
        {"estimator": list(OF_ONE_RUN), "algorithm": list(plans)},
    )


def head(settings: argparse.Namespace, seconds: tuple[float, float]) -> list[str]:
    """The first lines of the report; ``seconds`` are CPU-seconds and wall time."""
    machine = hardware()
    return [
        f"# Estimators beside retraining, {datetime.date.today()}",
        "",
        *[line.strip() for line in (__doc__ or "").split("\n\n")[1].splitlines()],
        "",
        f"{settings.data}, {settings.clients} clients with {settings.rows} training rows, {settings.rounds} rounds of "
        f"{STEPS} steps of {BATCH}, rate {RATE}, a network with one hidden layer of 32, {settings.seeds} seeds. Values "
        f"are accuracies on common test rows ({TEST} at most); estimators of one run judge models on "
        f"{settings.rows // 8} rows of the server, those that retrain have a quarter of all coalitions. Columns are "
        "means over the seeds in which they are known. tau-b, Spearman, share error and RMSE (after the total is "
        "matched) are against the Shapley values of the same seed; best and worst: how often the client worth the "
        "most, and the least, is found; stability: tau-b of two seeds.",
        "",
        f"The published finding is that of {PAPER}, as its abstract has it: rewards by Shapley values of models that "
        "are put together out of one run's updates are unstable between strategies of aggregation. `one_round` and "
        "`multi_round` compute such values. A reward is a client's share of the sum, and the rewards that move are the "
        "part that changes hands between two algorithms with the same seed, or between two seeds of one algorithm: "
        "half the sum of all differences of shares, above 100 % only where some values are negative. Seeds are our "
        "yardstick, not the paper's: what moves between algorithms no more than between seeds is noise of training. "
        "Intervals are over seeds.",
        "",
        f"{machine['cores']} cores of {machine['cpu']}, JAX {jax.__version__}, {seconds[0]:.0f} CPU-seconds and "
        f"{seconds[1]:.0f} s in the last process, other work beside.",
        "",
    ]


def main() -> None:
    """FedAvg and the estimators in all federations first, then the other algorithms; the report after each part."""
    parser = argparse.ArgumentParser(description="Estimators of what a client is worth, beside retraining.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1_600, help="training rows of all clients")
    parser.add_argument("--data", default="fashion_mnist", choices=("fashion_mnist", "digits"))
    parser.add_argument("--federations", default=",".join(FEDERATIONS), help="comma-separated")
    parser.add_argument("--threshold", type=float, default=0.8, help="the loss that INCFL's clients require")
    parser.add_argument("--devices", type=int, default=2, help="cores of the CPU that JAX sees as devices")
    parser.add_argument("--folder", type=Path, help="of the files of Fashion-MNIST")
    parser.add_argument("--work", type=Path, default=Path("estimators"), help="of finished runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="of the report")
    settings = parser.parse_args()
    kinds = settings.federations.split(",")
    if unknown := [kind for kind in kinds if kind not in FEDERATIONS]:
        parser.error(f"expected federations among {', '.join(FEDERATIONS)}, got {unknown[0]!r}")
    if settings.clients < 3:
        parser.error(f"expected at least 3 clients, got {settings.clients}")
    if settings.devices > 1:
        fljax.use_cores(settings.devices)
    began, began_cpu = time.perf_counter(), time.process_time()

    def spent() -> tuple[float, float]:
        return time.process_time() - began_cpu, time.perf_counter() - began

    def report() -> None:
        chosen = {name: getattr(settings, name) for name in CHOSEN}
        write(settings.out / f"{datetime.date.today()}-estimators", head(settings, spent()), chosen, known, spent()[0])

    images = data.load(settings.data, **({} if settings.folder is None else {"folder": settings.folder}))
    scale = models.standardise(images.mean, images.std)
    task = models.mlp(images.x.shape[1:], images.classes or 10, hidden=[32], dropout=0.0, prepare=scale)
    plans = plans_of(task, settings.threshold)
    first = next(iter(plans))
    work = settings.work / "-".join(str(getattr(settings, name)) for name in CHOSEN)
    try:
        federations = {kind: federation_of(kind, images, settings.rows, settings.clients) for kind in kinds}
    except ValueError as error:
        parser.error(str(error))

    def table(kind: str, name: str) -> games.CoalitionTable:
        retrained = table_of(plans[name], federations[kind], work / kind / name.replace(" ", "_"), settings)
        print(f"{kind}, {name}: {retrained}, {spent()[0]:.0f} CPU-s so far", flush=True)
        return retrained

    known: dict[str, Found] = {}
    for kind in kinds:
        truth = table(kind, first)
        judged = (plans[first], federations[kind], truth)
        compare = functools.partial(games.compare_estimators, *judged, rounds=settings.rounds)
        known[kind] = Found(once(work / kind / "estimators.json", compare), truth)
        count = known[kind].estimators.sizes["estimator"]
        print(f"{kind}: {count} estimators, {spent()[0]:.0f} CPU-s so far", flush=True)
        report()
    for kind in kinds:
        tables = {name: table(kind, name) for name in plans}
        of_runs = functools.partial(of_one_run, plans, federations[kind], tables, settings.rounds)
        single = once(work / kind / "one_run.json", of_runs)
        known[kind] = known[kind]._replace(algorithms=games.compare_algorithms(tables), of_one_run=single)
        report()
    print(verdict(known), flush=True)


if __name__ == "__main__":
    main()
