"""Estimators of what a client is worth, beside all coalitions retrained.

Three federations of a few clients: ``even`` (alike), ``groups`` (two clients for each group of labels, of different
sizes) and ``broken`` (alike but for size; most labels of client 0 are random, and client 2 is a copy of client 1).
For each, FedAvg retrains all coalitions with several seeds, which redraw initial weights and batches. Values are
accuracies on common test rows; estimators of one run judge models on rows of the server, and those that retrain have
a quarter of all coalitions. Finished runs stay in the folder of ``--work``, and the same command goes on with what is
missing.

`estimators`: every estimator of the registry beside the Shapley values of the same seed. Columns are means over the
seeds in which they are known. *RMSE*: after the total is matched. *Best* and *worst*: how often the client worth the
most, and the least, is found. *Stability*: tau-b of two seeds.

`volatility`: the tables of six algorithms, by retraining, and by estimators of one run. It asks what a paper reports
(Geimer, Fiz and State, arXiv 2405.08044): rewards by Shapley values of models that are put together out of one run's
updates are unstable between strategies of aggregation. A reward is a client's share of the sum; rewards that move are
the part that changes hands, ``||phi / sum phi - psi / sum psi||_1 / 2``. Seeds are our yardstick, not the paper's:
what moves between algorithms no more than between seeds is noise of training. The interval of the difference is over
seeds, and takes what moves between seeds as known. Rows *without* some algorithms leave out those whose step is no
mean of updates: models that are put together out of updates are not those of their run.
"""

from __future__ import annotations

import functools
import itertools
import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import fljax
from benchmarks.reporting import Row, names_in
from fljax import algorithms, contributions, data, games, models
from fljax.core.files import write
from fljax.report.estimators import ranked

FEDERATIONS = ("even", "groups", "broken")
NOISY, CLONE, CLONED = 0, 2, 1  # clients of the federation "broken"
STEPS, BATCH, RATE = 10, 32, 0.1
TEST, RANDOM_LABELS = 1_000, 0.6
# Of one run under each algorithm, as in the paper on volatility.
OF_ONE_RUN = ("one_round", "multi_round")
EXACT = 0.01  # accuracy by which values of rounds may miss the gain of their run
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


def table_of(plan: fljax.Plan, federation: fljax.Federation, folder: Path, settings: Namespace) -> games.CoalitionTable:
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
        write(path, json.dumps(make().to_dict()).encode())
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


class Study(NamedTuple):
    """What is retrained, and where finished runs are: the plans, the federations and the folder."""

    plans: dict[str, fljax.Plan]
    federations: dict[str, fljax.Federation]
    work: Path
    options: Namespace

    def table(self, kind: str, name: str) -> games.CoalitionTable:
        """All coalitions of a federation, retrained by an algorithm."""
        folder = self.work / kind / name.replace(" ", "_")
        return table_of(self.plans[name], self.federations[kind], folder, self.options)


def study_of(options: Namespace) -> Study:
    """What the options ask for."""
    kinds = names_in(options.federations, FEDERATIONS, "federation")
    if options.clients < 3:
        raise SystemExit(f"expected at least 3 clients, got {options.clients}")
    fljax.use_cores(options.devices)
    images = data.load(options.data, **({"folder": options.folder} if options.folder else {}))
    scale = models.standardise(images.mean, images.std)
    task = models.mlp(images.x.shape[1:], images.classes or 10, hidden=[32], dropout=0.0, prepare=scale)
    federations = {kind: federation_of(kind, images, options.rows, options.clients) for kind in kinds}
    work = Path(options.work) / "-".join(str(getattr(options, name)) for name in CHOSEN)
    return Study(plans_of(task, options.threshold), federations, work, options)


def measure(options: Namespace) -> Iterator[Row]:
    """A row for each estimator in each federation, the best order first."""
    study = study_of(options)
    first = next(iter(study.plans))
    for kind, federation in study.federations.items():
        truth = study.table(kind, first)
        compare = functools.partial(
            games.compare_estimators, study.plans[first], federation, truth, rounds=options.rounds
        )
        compared = once(study.work / kind / "estimators.json", compare)
        for place in ranked(compared):
            entry = compared.isel(estimator=place)
            error = float(np.sqrt(np.mean(np.square(entry["deviation"].values))))  # NaN if some clients have no value
            cells = [mean(entry[key]) for key in ("kendall", "spearman", "share_error")]
            cells += [error, *(mean(entry[key]) for key in ("best_found", "worst_found", "stability", "compared"))]
            spent = [f"{float(entry[key]):,.0f}" for key in ("trainings", "evaluations", "gradients")]
            yield kind, f"`{entry['estimator'].item()}`", *cells, *spent
        yield kind, f"two seeds of the truth: tau-b {float(compared['ceiling']):.2f}"


def volatility(options: Namespace) -> Iterator[Row]:
    """A row for each way to compute values, in each federation."""
    study = study_of(options)
    for kind, federation in study.federations.items():
        tables = {name: study.table(kind, name) for name in study.plans}
        of_runs = functools.partial(of_one_run, study.plans, federation, tables, options.rounds)
        single = once(study.work / kind / "one_run.json", of_runs)
        for name, worth in worths_of(games.compare_algorithms(tables), single).items():
            numbers = spread(worth)
            bars = contributions.error_bars(numbers.moved - numbers.moved_of_seeds)
            answer = "more than seeds" if bars.low > 0 else "less than seeds" if bars.high < 0 else "not decided"
            difference = f"{100 * bars.mean:+.1f} ({100 * bars.low:+.1f} to {100 * bars.high:+.1f})"
            shares = (100 * mean(numbers.moved), 100 * numbers.moved_of_seeds)
            known = 100 * (1 - numbers.unknown)
            yield kind, name, mean(numbers.order), numbers.order_of_seeds, *shares, difference, answer, known


def worths_of(compared: xr.Dataset, single: xr.Dataset) -> dict[str, np.ndarray]:
    """``[A, R, N]`` by how values were computed; then the same of algorithms whose step is a mean of updates."""
    axes = ("algorithm", "seed", "client")
    values = {"retrained": compared["worth"].transpose(*axes).values}
    for name in single["estimator"].values.tolist():
        values[f"`{name}`"] = single["worth"].sel(estimator=name).transpose(*axes).values
    exact = single["gap"].values <= EXACT
    others = ", ".join(single["algorithm"].values[~exact])
    restricted = {f"{name}, without {others}": worth[exact] for name, worth in values.items()}
    return values | (restricted if others and exact.sum() > 1 else {})


class Spread(NamedTuple):
    """How far the values of clients depend on the algorithm, and how far on the seed.

    Attributes:
      order: ``[R]``, the mean tau-b of all pairs of algorithms with the same seed.
      order_of_seeds: the mean tau-b of all pairs of seeds of one algorithm.
      moved: ``[R]``, the mean share of all rewards that changes hands between two algorithms with the same seed.
      moved_of_seeds: the mean between two seeds of one algorithm.
      unknown: share of the pairs without shares, since values add up to 0 or less.
    """

    order: np.ndarray
    order_of_seeds: float
    moved: np.ndarray
    moved_of_seeds: float
    unknown: float


def spread(worth: np.ndarray) -> Spread:
    """``Spread`` of values ``[A, R, N]`` of A algorithms and R seeds; pairs without a number do not count."""
    pairs = list(itertools.combinations(range(worth.shape[0]), 2))
    seeds = list(itertools.combinations(range(worth.shape[1]), 2))
    between = contributions.agreement(np.stack([worth[a] for a, _ in pairs]), np.stack([worth[b] for _, b in pairs]))
    within = contributions.agreement(
        np.stack([worth[:, a] for a, _ in seeds]), np.stack([worth[:, b] for _, b in seeds])
    )
    moved = np.concatenate([between.share_error.ravel(), within.share_error.ravel()])
    return Spread(
        order=np.array([mean(row) for row in between.kendall.T]),
        order_of_seeds=mean(within.kendall),
        moved=np.array([mean(row) for row in between.share_error.T]) / 2,
        moved_of_seeds=mean(within.share_error) / 2,
        unknown=float(np.isnan(moved).mean()),
    )


def mean(values: Any) -> float:
    """The mean of what is known; NaN if there is none."""
    known = np.asarray(values)[np.isfinite(np.asarray(values))]
    return float(known.mean()) if len(known) else float("nan")
