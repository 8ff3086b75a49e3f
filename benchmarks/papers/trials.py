"""Settings tried beside those of the shipped configs, to find where printed numbers come from.

Each trial of ``papers/trials.toml`` is a shipped config with changes, and asks one question. A trial whose results
are in ``--runs`` is not run again, and an interrupted one goes on. Numbers of trials with results are written to
``results/trials.csv``; those of other trials stay in it. Where a trial has printed tables, printed numbers stand
beside ours.
"""

from __future__ import annotations

import csv
import datetime
import math
import subprocess
import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.reporting import RESULTS, ROOT, Row, names_in
from fljax.config import Config, load
from fljax.metrics import over_seeds
from fljax.published import beside as reproduce
from fljax.published import tables as published_tables
from fljax.published import verdicts
from fljax.published.tables import Sample
from fljax.report.tables import last_values
from fljax.results import folders
from fljax.results.events import end_of

TRIALS, NUMBERS = Path(__file__).with_name("trials.toml"), RESULTS / "trials.csv"


class Trial(NamedTuple):
    """One setting: ``config`` below ``configs`` with ``changes`` as for ``--set``."""

    name: str  # of the trial, and of its folder
    asks: str  # the question
    config: str  # a shipped config, without ending
    changes: tuple[str, ...] = ()  # its overrides
    tables: tuple[str, ...] = ()  # printed tables to compare with
    metrics: tuple[str, ...] = ()  # our metrics that are kept


class Number(NamedTuple):
    """A metric of an algorithm after the last round of a trial: mean and standard deviation over seeds."""

    trial: str
    algorithm: str
    metric: str
    mean: float
    std: float
    seeds: int
    rounds: int
    date: str


def read_trials(path: Path = TRIALS) -> list[Trial]:
    """The trials of the file; ``changes`` that a group of trials shares come before those of the trial."""
    found = []
    for group in tomllib.loads(path.read_text())["groups"]:
        for own in group["trials"]:
            shared = {name: tuple(group.get(name, ())) for name in ("changes", "tables", "metrics")}
            changes = (*shared.pop("changes"), *own.get("changes", ()))
            rest = {name: tuple(own.get(name, values)) for name, values in shared.items()}
            found.append(Trial(own["name"], own["asks"], own.get("config", group.get("config")), changes, **rest))
    return found


def path_of(trial: Trial) -> Path:
    """The file of the shipped config."""
    return ROOT / "configs" / f"{trial.config}.toml"


def config_of(trial: Trial) -> Config:
    """The shipped config with the trial's changes."""
    return load(path_of(trial), trial.changes)


def is_complete(trial: Trial, folder: Path) -> bool:
    """Whether the folder has results of the trial's config, of all algorithms (some are there early)."""
    if not (folder / folders.RESULTS).is_file() or load(folder / folders.CONFIG) != config_of(trial):
        return False
    found = set(map(str, folders.load_results(folder)[0]["algorithm"].values))
    return {entry.label for entry in config_of(trial).algorithms} <= found


def run(trial: Trial, folder: Path) -> bool:
    """Makes or completes the run folder of a trial; False if the run failed."""
    if is_complete(trial, folder):
        return True
    words = [word for change in trial.changes for word in ("--set", change)]
    if folder.exists():
        words.append("--resume")
    command = [sys.executable, "-m", "fljax", "run", str(path_of(trial)), *words, "--out", str(folder)]
    return subprocess.run([*command, "--quiet", "--no-report"]).returncode == 0


def numbers_of(trial: Trial, folder: Path) -> list[Number]:
    """The metrics of a trial that its results have, for every algorithm, and for unseen clients if there are some."""
    metrics, _ = folders.load_results(folder)
    date = datetime.date.fromtimestamp((folder / folders.RESULTS).stat().st_mtime).isoformat()
    found = []
    for label in map(str, metrics["algorithm"].values):
        for name in (f"{prefix}{metric}" for metric in trial.metrics for prefix in ("", "unseen_")):
            values = last_values(metrics, label, name)
            if values is None:
                continue
            mean, std, seeds = over_seeds(values)
            rounds = int(metrics["evaluated_round"].values[end_of(metrics, label)])
            if seeds:
                found.append(Number(trial.name, label, name, mean, std, seeds, rounds, date))
    return found


def read_numbers(path: Path = NUMBERS) -> list[Number]:
    """The committed numbers."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    found = []
    for trial, algorithm, metric, mean, std, seeds, rounds, date in lines:
        found.append(Number(trial, algorithm, metric, float(mean), float(std or "nan"), int(seeds), int(rounds), date))
    return found


def write_numbers(numbers: Sequence[Number], path: Path = NUMBERS) -> None:
    """Replaces the numbers of these trials in the file."""
    own = {number.trial for number in numbers}
    everything = [each for each in read_numbers(path) if each.trial not in own] + list(numbers)
    order = [trial.name for trial in read_trials()]
    everything.sort(key=lambda each: order.index(each.trial) if each.trial in order else len(order))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Number._fields)
        for each in everything:
            std = "" if math.isnan(each.std) else f"{each.std:.5g}"
            writer.writerow([*each[:3], f"{each.mean:.5g}", std, *each[5:]])


def beside(trial: Trial, numbers: Sequence[Number]) -> list[tuple[published_tables.Published, Number]]:
    """Printed numbers of the trial's tables, for the data set of its config, with ours in the paper's units."""
    chosen = config_of(trial).published
    assert chosen is not None
    own = {(published_tables.plain_label(each.algorithm), each.metric): each for each in numbers}
    found = []
    for row in published_tables.select(trial.tables, chosen.dataset, chosen.partition):
        ours = reproduce.METRICS[published_tables.plain_metric(row.metric)]
        name = f"{'unseen_' if row.split == 'unseen' else ''}{ours.name}"
        each = own.get((published_tables.plain_label(row.algorithm), name))
        if each is not None:
            scaled = each._replace(mean=ours.offset + ours.factor * each.mean, std=abs(ours.factor) * each.std)
            found.append((row, scaled))
    return found


def rows_of(trial: Trial, numbers: Sequence[Number]) -> Iterator[Row]:
    """The trial's numbers, beside printed ones if there are some."""
    if not trial.tables:
        yield from ((trial.name, "", each.metric, each.algorithm, None, shown(each)) for each in numbers)
        return
    for row, each in beside(trial, numbers):
        printed, ours = (reproduce.number(*pair, row.metric) for pair in ((row.mean, row.std), (each.mean, each.std)))
        verdict = verdicts.judge_number(row, Sample(each.mean, each.std, each.seeds)).word
        yield trial.name, f"{row.table}, {row.split}", row.metric, row.algorithm, printed, ours, verdict


def shown(number: Number) -> str:
    """Mean and standard deviation."""
    return f"{number.mean:.3f} ± {number.std:.3f}"


def measure(options: Namespace) -> Iterator[Row]:
    """Runs trials, or reads their committed numbers."""
    trials, failed = {trial.name: trial for trial in read_trials()}, list[str]()
    for trial in (trials[name] for name in names_in(options.names or ",".join(trials), tuple(trials), "trial")):
        folder = Path(options.runs) / trial.name
        if not options.no_run and not run(trial, folder):
            failed.append(trial.name)  # its committed numbers follow, if there are some
        if is_complete(trial, folder):
            write_numbers(numbers := numbers_of(trial, folder))
        else:
            numbers = [each for each in read_numbers() if each.trial == trial.name]
        yield from rows_of(trial, numbers)
    if failed:
        raise SystemExit(f"expected runs that end well, got failures of {', '.join(failed)}")
