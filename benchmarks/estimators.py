"""Estimators of what a client is worth, beside all coalitions retrained: ``python benchmarks/estimators.py --out DIR``.

Three federations of a few clients: ``even`` (alike), ``groups`` (two clients for each group of labels, of different
sizes) and ``broken`` (alike but for size; most labels of client 0 are random, and client 2 is a copy of client 1). For
each, FedAvg retrains all coalitions with several seeds, which redraw initial weights and batches. Every estimator of
the registry is compared with the Shapley values of the same seed. Then the same tables of other algorithms: how well do
algorithms agree on the order of clients, beside seeds of one algorithm?

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
from throughput import hardware

import fljax
from fljax import algorithms, contributions, data, games, models

FEDERATIONS = ("even", "groups", "broken")
NOISY, CLONE, CLONED = 0, 2, 1  # clients of the federation "broken"
STEPS, BATCH, RATE = 10, 32, 0.1
TEST, RANDOM_LABELS = 1_000, 0.6
# Of one run under each algorithm, as in the paper on volatility.
OF_ONE_RUN = ("one_round", "multi_round")
PAPER = "arXiv 2405.08044"
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
    """A dataset from the disk, or a new one, which is saved."""
    if not path.exists():
        path.write_text(json.dumps(make().to_dict()))
    return xr.Dataset.from_dict(json.loads(path.read_text()))


def without_nan(value: Any) -> Any:
    """Lists and mappings in which NaN is None, as JSON has it."""
    if isinstance(value, Mapping):
        return {name: without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def of_one_run(
    plans: Mapping[str, fljax.Plan],
    federation: fljax.Federation,
    tables: Mapping[str, games.CoalitionTable],
    rounds: int,
) -> xr.Dataset:
    """Estimators that look at one run of each algorithm.

    ``between`` over ``estimator, seed``: how well algorithms agree. ``gap`` over ``algorithm``: by how much the values
    of rounds, added up, miss what the run gained, the largest of all seeds; 0 where the server averages updates.
    """
    found = [
        games.compare_estimators(plan, federation, tables[name], rounds=rounds, estimators=OF_ONE_RUN)
        for name, plan in plans.items()
    ]
    by_estimator = np.stack([each["worth"].values for each in found], axis=2)  # [estimator, seed, algorithm, client]
    between = [[contributions.stability(rows) for rows in seeds] for seeds in by_estimator]
    gaps = [each["worth"].sel(estimator="multi_round").sum("client") - each["gain"] for each in found]
    return xr.Dataset(
        {"between": (("estimator", "seed"), between), "gap": ("algorithm", [float(abs(gap).max()) for gap in gaps])},
        {"estimator": list(OF_ONE_RUN), "algorithm": list(plans)},
    )


# --- The report ------------------------------------------------------------------------------------------------------


def mean(values: xr.DataArray) -> float:
    """The mean over seeds of which something is known; NaN if there is none."""
    known = np.asarray(values)[np.isfinite(np.asarray(values))]
    return float(known.mean()) if len(known) else float("nan")


def number(value: float, digits: int = 2) -> str:
    """A number for a table; "-" for NaN."""
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


def lines_of_estimators(found: xr.Dataset) -> list[str]:
    """A row for each estimator, the best order first."""
    rows = []
    for name in found["estimator"].values.tolist():
        of = found.sel(estimator=name)
        error = np.sqrt(np.mean(np.square(of["deviation"].values))) if np.isfinite(of["deviation"]).all() else np.nan
        cells = [number(mean(of[key])) for key in ("kendall", "spearman", "share_error")]
        cells += [number(float(error), 4)]
        cells += [number(mean(of[key])) for key in ("best_found", "worst_found", "stability")]
        cells += [f"{float(of[key]):,.0f}" for key in ("trainings", "evaluations", "gradients")]
        rows.append((-np.nan_to_num(mean(of["kendall"]), nan=-2), f"| `{name}` | {' | '.join(cells)} |"))
    titles = ("estimator", "tau-b", "Spearman", "share error", "RMSE", "best", "worst", "stability")
    head = f"| {' | '.join((*titles, 'trainings', 'evaluations', 'gradients'))} |"
    return [head, "|---" * 11 + "|", *(line for _, line in sorted(rows))]


def lines_of_algorithms(found: xr.Dataset) -> list[str]:
    """The mean tau-b of all pairs of algorithms; on the diagonal that between seeds of one algorithm."""
    names = found["algorithm"].values.tolist()
    rows = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for one in names:
        cells = [
            f"*{number(float(found['stability'].sel(algorithm=one)))}*"
            if one == other
            else number(mean(found["kendall"].sel(algorithm=one, other=other)))
            for other in names
        ]
        rows.append(f"| {one} | {' | '.join(cells)} |")
    return rows


def verdict(kind: str, found: xr.Dataset, single: xr.Dataset) -> str:
    """Whether contributions depend more on the algorithm than on the seed, from the numbers.

    ``between - within`` has a t-interval over seeds, with ``within`` as a fixed number.
    """
    within = float(found["stability"].mean())
    bars = contributions.error_bars(found["between"].values - within)
    kendall = found["kendall"].mean("seed")
    pairs = [(float(kendall[a, b]), a, b) for a in range(len(kendall)) for b in range(a)]
    least, a, b = min(pairs)
    names = found["algorithm"].values.tolist()
    same = mean(found["best_agrees"].where(found["algorithm"] != found["other"]))
    holds = "holds" if bars.high < 0 else "does not hold" if bars.low > 0 else "is not decided"
    gaps = ", ".join(f"{name} {float(single['gap'].sel(algorithm=name)):.3f}" for name in names)
    one_run = ", ".join(f"{number(mean(single['between'].sel(estimator=name)))} by `{name}`" for name in OF_ONE_RUN)
    return (
        f"**{kind}**: the finding that contributions depend more on the algorithm than on the seed {holds} here. With "
        f"the same seed algorithms agree on the order of clients with tau {number(mean(found['between']))}, seeds of "
        f"one algorithm with tau {number(within)} (difference {bars.mean:+.2f}, 95 % from {bars.low:+.2f} to "
        f"{bars.high:+.2f}). {names[b]} and {names[a]} agree least, with tau {number(least)}; the client worth the "
        f"most is the same in {100 * same:.0f} % of the pairs. Of one run of each algorithm, tau between algorithms is "
        f"{one_run}. Values by `multi_round` miss the gain of their run by at most {gaps}."
    )


def worths(truth: games.CoalitionTable) -> list[str]:
    """Shapley values by client, mean and standard deviation over seeds."""
    phi = games.shapley(truth)
    spread = phi.std(axis=0, ddof=1) if len(phi) > 1 else np.full(phi.shape[1], np.nan)
    cells = [f"{a:.3f} ± {number(b, 3)}" for a, b in zip(phi.mean(axis=0), spread, strict=True)]
    return [f"| {' | '.join(map(str, range(phi.shape[1])))} |", "|---" * phi.shape[1] + "|", f"| {' | '.join(cells)} |"]


class Found(NamedTuple):
    """What is known of a federation; the comparison of algorithms is None until they are done."""

    estimators: xr.Dataset
    truth: games.CoalitionTable
    algorithms: xr.Dataset | None = None
    of_one_run: xr.Dataset | None = None


def section(kind: str, found: Found) -> list[str]:
    """The lines of a federation."""
    ceiling = number(float(found.estimators["ceiling"]))
    text = [f"## {kind}", "", "Shapley values of the clients by FedAvg, mean ± standard deviation over seeds:", ""]
    text += [*worths(found.truth), "", f"tau-b of the truths of two seeds, the ceiling of stability: {ceiling}.", ""]
    text += [*lines_of_estimators(found.estimators), ""]
    if found.algorithms is None or found.of_one_run is None:
        return text
    text += ["tau-b between algorithms with the same seed; on the diagonal between seeds of one algorithm:", ""]
    return [*text, *lines_of_algorithms(found.algorithms), "", verdict(kind, found.algorithms, found.of_one_run), ""]


def write(settings: argparse.Namespace, known: Mapping[str, Found], seconds: tuple[float, float]) -> None:
    """The report of what is known so far, as Markdown and as JSON; ``seconds`` are CPU-seconds and wall time."""
    machine = hardware()
    chosen = {name: getattr(settings, name) for name in CHOSEN}
    head = [
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
        "most, and the least, is found.",
        "",
        f"{machine['cores']} cores of {machine['cpu']}, JAX {jax.__version__}, {seconds[0]:.0f} CPU-seconds and "
        f"{seconds[1]:.0f} s in this process, other work beside. The question of the verdicts is that of {PAPER}.",
        "",
    ]
    text = "\n".join([*head, *(line for kind, found in known.items() for line in section(kind, found))])
    report = {"settings": chosen, "hardware": machine, "jax": jax.__version__, "cpu_seconds": seconds[0]}
    parts = {
        kind: {name: part.to_dict() for name, part in found._asdict().items() if isinstance(part, xr.Dataset)}
        for kind, found in known.items()
    }
    settings.out.mkdir(parents=True, exist_ok=True)
    stem = settings.out / f"{datetime.date.today()}-estimators"
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(json.dumps(without_nan(report | {"federations": parts})) + "\n")


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
        found = table_of(plans[name], federations[kind], work / kind / name.replace(" ", "_"), settings)
        print(f"{kind}, {name}: {found}, {spent()[0]:.0f} CPU-s so far", flush=True)
        return found

    known: dict[str, Found] = {}
    for kind in kinds:
        truth = table(kind, first)
        judged = (plans[first], federations[kind], truth)
        compare = functools.partial(games.compare_estimators, *judged, rounds=settings.rounds)
        known[kind] = Found(once(work / kind / "estimators.json", compare), truth)
        count = known[kind].estimators.sizes["estimator"]
        print(f"{kind}: {count} estimators, {spent()[0]:.0f} CPU-s so far", flush=True)
        write(settings, known, spent())
    for kind in kinds:
        tables = {name: table(kind, name) for name in plans}
        of_runs = functools.partial(of_one_run, plans, federations[kind], tables, settings.rounds)
        single = once(work / kind / "one_run.json", of_runs)
        known[kind] = known[kind]._replace(algorithms=games.compare_algorithms(tables), of_one_run=single)
        write(settings, known, spent())
        print(verdict(kind, games.compare_algorithms(tables), single), flush=True)


if __name__ == "__main__":
    main()
