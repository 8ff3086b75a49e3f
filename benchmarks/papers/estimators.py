"""Estimators of what a client is worth, beside all coalitions retrained.

Every estimator of the registry is compared with the Shapley values of the same seed, on three federations of a few
clients: ``even`` (alike), ``groups`` (two clients for each group of labels, of different
sizes) and ``broken`` (alike but for size; most labels of client 0 are random, and client 2 is a copy of client 1).
For each, FedAvg retrains all coalitions with several seeds, which redraw initial weights and batches. Values are
accuracies on common test rows; estimators of one run judge models on rows of the server, and those that retrain have
a quarter of all coalitions. Finished runs stay in the folder of ``--work``, and the same command goes on with what is
missing.

Columns are means over the seeds in which they are known. *RMSE*: after the total is matched. *Best* and *worst*: how
often the client worth the most, and the least, is found. *Stability*: tau-b of two seeds.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import fljax
from benchmarks.reporting import Row, names_in
from fljax import algorithms, data, games, models
from fljax.core.files import write
from fljax.report.estimators import ranked

FEDERATIONS = ("even", "groups", "broken")
NOISY, CLONE, CLONED = 0, 2, 1  # clients of the federation "broken"
STEPS, BATCH, RATE = 10, 32, 0.1
TEST, RANDOM_LABELS = 1_000, 0.6
CHOSEN = ("data", "clients", "rows", "rounds", "seeds")  # settings on which results depend


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


def once(path: Path, make: Callable[[], xr.Dataset]) -> xr.Dataset:
    """A dataset from the disk, or a new one, which is saved as a whole."""
    if not path.exists():
        write(path, json.dumps(make().to_dict()).encode())
    return xr.Dataset.from_dict(json.loads(path.read_text()))


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each estimator in each federation, the best order first."""
    kinds = names_in(options.federations, FEDERATIONS, "federation")
    if options.clients < 3:
        raise SystemExit(f"expected at least 3 clients, got {options.clients}")
    fljax.use_cores(options.devices)
    images = data.load(options.data, **({"folder": options.folder} if options.folder else {}))
    scale = models.standardise(images.mean, images.std)
    task = models.mlp(images.x.shape[1:], images.classes or 10, hidden=[32], dropout=0.0, prepare=scale)
    local = fljax.Local(RATE, BATCH, steps=STEPS)
    plan = fljax.Plan(algorithms.fedavg, {"task": task, "local": local, "clients_per_round": None, "weights": "size"})
    work = Path(options.work) / "-".join(str(getattr(options, name)) for name in CHOSEN)
    for kind in kinds:
        federation = federation_of(kind, images, options.rows, options.clients)
        yield from of_federation(kind, plan, federation, work / kind, options)


def of_federation(
    kind: str, plan: fljax.Plan, federation: fljax.Federation, folder: Path, options: Namespace
) -> Iterator[Row]:
    """The rows of a federation, and what two seeds of the truth agree on."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = games.coalitions(
        plan,
        federation,
        rounds=options.rounds,
        seeds=options.seeds,
        max_runs=options.seeds * 2**options.clients,
        checkpoint=folder / "blocks",
    )
    compared = once(
        folder / "estimators.json",
        lambda: games.compare_estimators(plan, federation, truth, rounds=options.rounds),
    )
    for place in ranked(compared):
        entry = compared.isel(estimator=place)
        error = float(np.sqrt(np.mean(np.square(entry["deviation"].values))))  # NaN if some clients have no value
        cells = [mean(entry[key]) for key in ("kendall", "spearman", "share_error")]
        cells += [error, *(mean(entry[key]) for key in ("best_found", "worst_found", "stability", "compared"))]
        spent = [f"{float(entry[key]):,.0f}" for key in ("trainings", "evaluations", "gradients")]
        yield kind, f"`{entry['estimator'].item()}`", *cells, *spent
    yield kind, f"two seeds of the truth: tau-b {float(compared['ceiling']):.2f}"


def mean(values: Any) -> float:
    """The mean of what is known; NaN if there is none."""
    known = np.asarray(values)[np.isfinite(np.asarray(values))]
    return float(known.mean()) if len(known) else float("nan")
