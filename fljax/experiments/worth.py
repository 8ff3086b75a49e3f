"""What the clients of a config are worth: every coalition retrained, for each of its algorithms (``fljax worth``).

The folder has the files of a run folder that say what ran, and ``worth.nc`` with the tables of all algorithms that are
finished. Blocks of runs are saved in ``checkpoints``, so a process that was killed goes on after them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fljax.config import Config, dumps
from fljax.core import processes
from fljax.core.names import about_algorithm, duration
from fljax.core.signatures import accepts
from fljax.engine import Plan, RunsDone
from fljax.experiments.conductor import Outputs, opened, trained_alone
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.preparation import build_plan
from fljax.experiments.inputs.setup import AlgorithmSetup, Setup, resolve_setup
from fljax.experiments.programs import check
from fljax.experiments.running import Saving
from fljax.games import CoalitionTable, coalitions, divergences, load, save
from fljax.games.estimates import in_words
from fljax.games.retraining import Baseline, Coalitions, Outside, chosen_members, planned
from fljax.games.values import Value, algorithm_of, check_value, metrics_of, name_of_value
from fljax.results import Reference
from fljax.results.events import EventLog, OnEvent
from fljax.results.folders import WORTH as TABLES
from fljax.results.folders import OpenFolder
from fljax.results.identity import Origin, check_same_run


class Question(NamedTuple):
    """What is asked of the coalitions, as for ``fljax.games.coalitions``."""

    value: Value = "average_accuracy"
    among: Coalitions | None = None
    baseline: Baseline = "initial"
    outside: Outside = "alone"
    max_runs: int = 4096


def run(
    config: Config,
    question: Question | None = None,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    saving: Saving | None = None,
) -> dict[str, CoalitionTable]:
    """Retrains the coalitions of every algorithm of a config, and saves after each block and each algorithm.

    Callbacks and early stopping of the config are not used: every run goes to its end, and is judged there.

    Args:
      config: validated.
      question: what is asked; None: the defaults.
      directory: the folder of the results, locked against other processes; None: nothing is saved.
      resume: go on after the blocks and algorithms that the folder has. If False, it must not have results.
      on_event: called with an ``Event`` for each step; rounds are runs there.
      saving: as for ``fljax run``; its numbers of checkpoints do not count here.

    Returns:
      Tables by label of the algorithm.

    Raises:
      ValueError: as ``fljax.games.coalitions``; if the folder has tables of another config or of another question, or
        if an algorithm needs models of all clients before it starts (clusters that are found by training).
      OSError: if the disk has no room for the results.
      Stopped: if ``saving.stop`` asks for it, after a block.
    """
    asked = Question() if question is None else question
    text = "" if directory is None else dumps(config)
    if directory is not None and not resume and (directory / TABLES).exists():
        where = f"{str(directory)!r}, which holds {TABLES}"
        raise ValueError(f"expected a folder without results, or --resume, got {where}")
    _finished(directory, text)  # refuses another config before the folder gets it
    with opened(directory, text, resume=resume, on_event=on_event, saving=saving) as (outputs, folder):
        tables = _finished(directory, text)
        labels = [entry.label for entry in config.algorithms]
        if directory is not None and tables and set(labels) <= tables.keys():  # the data are not read
            for label in labels:
                _check_asked(tables[label], asked, directory)
                outputs.log.note("already in the results, not repeated", label)
            return {label: tables[label] for label in labels}
        setup = resolve_setup(config, outputs.log)
        for label, table in _tables(setup, asked, outputs, folder, tables):
            tables[label] = table
            if directory is not None and processes.is_first():
                save(directory / TABLES, tables, text)
                outputs.log.tell("saved", label, table.cost.runs, table.cost.runs, "")
            outputs.files.finished(label)
        outputs.files.all_finished()
    return tables


def _tables(
    setup: Setup, asked: Question, outputs: Outputs, folder: OpenFolder, finished: dict[str, CoalitionTable]
) -> Iterator[tuple[str, CoalitionTable]]:
    """The tables of the algorithms that are not finished, one after another."""
    log = outputs.log
    preparation.check_test_rows(setup.federation)
    _tell_what_is_left_out(setup, log)
    plans = check(setup, rehearsed=False, swept=True)  # errors of all algorithms, before anything is computed
    lacking: list[str] = []
    for entry in setup.algorithms:
        with about_algorithm(entry.label):
            _check_start(entry)
            members, cost = planned(
                plans[entry.label],
                setup.federation,
                asked.among,
                rounds=setup.rounds,
                seeds=len(setup.seeds),
                max_runs=asked.max_runs,
            )
            if _needs_standalone(plans[entry.label], entry, asked.value, setup):
                lacking.append(entry.label)
            log.note(f"{len(members):,} coalitions, {in_words(cost)}", entry.label, 0, cost.runs)
    reference = trained_alone([setup], (), outputs, folder)[0] if lacking else None
    for entry in setup.algorithms:
        label = entry.label
        if label in finished:
            if outputs.folder is not None:
                _check_asked(finished[label], asked, outputs.folder)
            log.note("already in the results, not repeated", label)
            continue
        with about_algorithm(label):
            plan = plans[label] if reference is None else build_plan(setup, entry, reference)
            table = coalitions(
                plan,
                setup.federation,
                rounds=setup.rounds,
                seeds=setup.seeds,
                value=asked.value,
                among=asked.among,
                baseline=asked.baseline,
                outside=asked.outside,
                reference=reference,
                max_runs=asked.max_runs,
                execution=setup.execution,
                checkpoint=outputs.files.checkpoint(label),
                on_block=_on_block(log, label),
            )
        if table.notes:
            log.note(table.notes, label, table.cost.runs, table.cost.runs)
        if (words := divergences(table)) is not None:
            log.note(words, label, table.cost.runs, table.cost.runs)
        yield label, _named(table, setup)


def _on_block(log: EventLog, label: str) -> Callable[[RunsDone], None]:
    """Tells the log of each block of runs, with the time that is left by the speed of the last one."""

    before = 0

    def tell(block: RunsDone) -> None:
        nonlocal before
        rest = (block.runs - block.done) * block.seconds / max(block.done - before, 1)
        before = block.done
        log.train(label, block.done, block.runs, f"about {duration(rest)} left" if rest >= 1 else "")

    return tell


def _needs_standalone(plan: Plan, entry: AlgorithmSetup, value: Value, setup: Setup) -> bool:
    """Whether the algorithm, or the value, reads standalone models; raises a ValueError if there is no such value."""
    algorithm = algorithm_of(plan)
    check_value(value, algorithm, setup.federation, _ANY)
    builders = (entry.build, *(wrap for wrap, _ in entry.scenarios))
    if any(accepts(build, name) for build in builders for name in ("threshold", "reference", "contribution")):
        return True
    return isinstance(value, str) and value not in metrics_of(algorithm, setup.federation, None)


# Of which only the names of its numbers are read.
_NONE = np.zeros((1, 1), np.float32)
_ANY = Reference(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE)


def _check_start(entry: AlgorithmSetup) -> None:
    if entry.clustering is not None:
        raise ValueError(
            f'expected clusters that are drawn (clustering = "random") for coalitions, got {entry.label}, whose '
            "clusters are found by training all clients"
        )


def _tell_what_is_left_out(setup: Setup, log: EventLog) -> None:
    left_out = [name for name, asked in (("callbacks", setup.callbacks), ("early stopping", setup.stop)) if asked]
    if left_out:
        log.note(f"without {' and '.join(left_out)} of the config: every coalition runs to its end")
    if setup.non_finite != "freeze":
        log.note(f'non_finite = "{setup.non_finite}" is not used: a coalition that diverges has no value')


def _named(table: CoalitionTable, setup: Setup) -> CoalitionTable:
    """The table with the names that clients have in the data, if they are those of all seeds."""
    names = {labels.clients for labels in setup.world.names} if setup.world is not None else set()
    (shared,) = names if len(names) == 1 else (None,)
    return table if shared is None else table._replace(names=tuple(map(str, shared)))


def _finished(directory: pathlib.Path | None, text: str) -> dict[str, CoalitionTable]:
    """The tables of a folder, by label; raises a ValueError if they are of another config or version."""
    if directory is None or not (directory / TABLES).is_file():
        return {}
    saved = load(directory / TABLES)
    check_same_run(Origin(saved.config, saved.fljax, None), text, None, "tables", directory)
    return saved.tables


def _check_asked(table: CoalitionTable, asked: Question, directory: pathlib.Path) -> None:
    """Raises a ValueError if a finished table answers another question."""
    value = name_of_value(asked.value)
    baseline = asked.baseline if isinstance(asked.baseline, str) else repr(float(asked.baseline))
    told = {"value": (table.metric.removeprefix("-"), value), "baseline": (table.baseline, baseline)}
    for name, (earlier, now) in told.items():
        if earlier != now:
            raise ValueError(
                f"expected the {name} of the tables in {str(directory)!r} to resume them, got {now} in place of "
                f"{earlier}"
            )
    members = chosen_members(asked.among, table.members.shape[1])
    if not np.array_equal(members, table.members):
        raise ValueError(
            f"expected the coalitions of the tables in {str(directory)!r} to resume them, got {len(members)} others in "
            f"place of {len(table.members)}"
        )
