"""Settings tried beside those of the shipped configs, to find where printed numbers come from.

``python benchmarks/trials.py`` runs the trials of ``trials.toml``. Each is a shipped config with changes, and asks one
question. A trial whose results are in ``--out`` is not run again, and an interrupted one goes on. Numbers of trials
with results are written to ``results/trials.csv``; those of other trials stay in it. Where a trial has printed tables,
printed numbers stand beside ours.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from fljax.config import Config, load
from fljax.metrics import over_seeds
from fljax.published import beside as reproduce
from fljax.published import tables as published_tables
from fljax.published import verdicts
from fljax.published.tables import Sample
from fljax.report.tables import last_values
from fljax.results import folders
from fljax.results.events import end_of

HERE = Path(__file__).resolve().parent
TRIALS, NUMBERS = HERE / "trials.toml", HERE / "results" / "trials.csv"


class Trial(NamedTuple):
    """One setting: ``config`` below ``configs`` with ``changes`` as for ``--set``.

    Attributes:
      name: of the trial, and of its folder.
      asks: the question.
      config: a shipped config, without ending.
      changes: its overrides.
      tables: printed tables to compare with.
      metrics: our metrics that are kept.
    """

    name: str
    asks: str
    config: str
    changes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


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
    return HERE.parent / "configs" / f"{trial.config}.toml"


def config_of(trial: Trial) -> Config:
    """The shipped config with the trial's changes."""
    return load(path_of(trial), trial.changes)


def is_complete(trial: Trial, folder: Path) -> bool:
    """Whether the folder has results of the trial's config, of all algorithms (some are there early)."""
    if not (folder / folders.RESULTS).is_file() or load(folder / folders.CONFIG) != config_of(trial):
        return False
    found = set(map(str, folders.load(folder)[0]["algorithm"].values))
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
    metrics, _ = folders.load(folder)
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


def show(trial: Trial, numbers: Sequence[Number], console: Console, markdown: bool = False) -> None:
    """Prints the trial's numbers: beside printed ones, or one line for each algorithm."""
    title, caption = f"{trial.name}: {trial.asks}", "; ".join(trial.changes)
    if markdown:
        console.print(f"**{title}** (`{caption}`)\n" if caption else f"**{title}**\n", soft_wrap=True, highlight=False)
        table = Table(box=box.MARKDOWN)
    else:
        table = Table(title=title, caption=caption or None)
    if trial.tables:
        for name in ("table", "split", "metric", "algorithm", "printed", "ours", "verdict"):
            table.add_column(name, justify="right" if name in ("printed", "ours") else "left")
        for row, each in beside(trial, numbers):
            printed, ours = (
                reproduce.number(*pair, row.metric) for pair in ((row.mean, row.std), (each.mean, each.std))
            )
            verdict = verdicts.judge_number(row, Sample(each.mean, each.std, each.seeds)).word
            table.add_row(row.table, row.split, row.metric, row.algorithm, printed, ours, verdict)
    else:
        names = list(dict.fromkeys(each.metric for each in numbers))
        table.add_column("algorithm")
        for name in names:
            table.add_column(name, justify="right", overflow="fold")
        for label in dict.fromkeys(each.algorithm for each in numbers):
            own = {each.metric: each for each in numbers if each.algorithm == label}
            table.add_row(label, *(f"{own[n].mean:.3f} ± {own[n].std:.3f}" if n in own else "–" for n in names))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="trials; all if none is given")
    parser.add_argument("--out", type=Path, default=Path("runs/trials"), help="folder with a run folder for each trial")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--no-run", action="store_true", help="only read what is there")
    options = parser.parse_args()
    trials = {trial.name: trial for trial in read_trials()}
    unknown = [name for name in options.names if name not in trials]
    if unknown:
        raise SystemExit(f"expected names of trials, got {', '.join(unknown)}; valid names are {', '.join(trials)}")
    console, failed = Console(width=150), False
    for trial in (trials[name] for name in options.names or trials):
        folder = options.out / trial.name
        if not options.no_run and not run(trial, folder):
            print(f"{trial.name}: the run failed; the committed numbers follow, if there are some", file=sys.stderr)
            failed = True
        if is_complete(trial, folder):
            numbers = numbers_of(trial, folder)
            write_numbers(numbers)
        else:
            numbers = [each for each in read_numbers() if each.trial == trial.name]
        if numbers:
            show(trial, numbers, console, options.markdown)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
