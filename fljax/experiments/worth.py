"""What the clients of a config are worth: every coalition retrained, for each of its algorithms (``fljax worth``).

``worth.nc`` has the tables of finished algorithms; blocks of runs are saved in ``worth/checkpoints``, apart from those
of a run in the same folder.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr

from fljax.config import Config, dumps
from fljax.core import processes
from fljax.core.names import about_algorithm
from fljax.core.sameness import code_of
from fljax.engine import Plan
from fljax.experiments.conductor import Outputs, Saving
from fljax.experiments.inputs.preparation import build_plan
from fljax.experiments.inputs.setup import Setup, resolve_setup
from fljax.experiments.whole_runs import Kept, begin, names_of, of_runs, reads_standalone, standalone_of
from fljax.games import CoalitionTable, SavedTables, coalitions, compare_estimators, divergences, load, save
from fljax.games.comparing import Baseline, Coalitions, EstimatorInputs, Outside, chosen_members, planned
from fljax.games.values import Value, algorithm_of, check_value, in_words, metrics_of, name_of_value
from fljax.results import Reference
from fljax.results.events import OnEvent
from fljax.results.folders import OF_WORTH, OpenFolder
from fljax.results.folders import WORTH as TABLES

_KEPT = Kept("tables", TABLES, load, OF_WORTH)


class Question(NamedTuple):
    """What is asked of the coalitions, as for ``fljax.games.coalitions``."""

    value: Value = "average_accuracy"
    among: Coalitions | None = None
    baseline: Baseline = "initial"
    outside: Outside = "alone"
    max_runs: int = 4096
    estimators: Sequence[str] | Literal["all"] | None = None  # to compare with Shapley values; "all": all that can be


class Answer(NamedTuple):
    """What a config's clients are worth."""

    tables: dict[str, CoalitionTable]  # by label
    estimators: dict[str, xr.Dataset]  # of ``fljax.games.compare_estimators``, by label; may be empty


def run(
    config: Config,
    question: Question | None = None,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    saving: Saving | None = None,
) -> Answer:
    """Retrains the coalitions of every algorithm of a config, and saves after each block and each algorithm."""
    # Callbacks and early stopping are not used: every run goes to its end. Rounds of events are runs.
    asked = Question() if question is None else question
    text = "" if directory is None else dumps(config)
    opening = _KEPT.opened(directory, text, resume=resume, on_event=on_event, saving=saving)
    with opening as (finished, outputs, folder):
        tables: dict[str, CoalitionTable] = {} if finished is None else dict(finished.tables)
        labels = [entry.label for entry in config.algorithms]
        for label in labels:
            if finished is not None and directory is not None and label in tables:
                _check_asked(finished, label, asked, directory)
                outputs.log.done(label)
        # Not saved: computed again when a finished folder is resumed.
        compared: dict[str, xr.Dataset] = {}
        if asked.estimators is not None or not set(labels) <= tables.keys():  # else the data are not read
            setup = resolve_setup(config, outputs.log)
            data = _KEPT.data_of(setup, finished, outputs, folder)
            for label, plan, table in _tables(setup, asked, outputs, folder, tables):
                if label not in tables:
                    notes = filter(None, dict.fromkeys((table.notes, *outputs.log.forced.splitlines())))
                    tables[label] = table = table._replace(notes="; ".join(notes))
                    if directory is not None and processes.is_first():
                        save(directory / TABLES, tables, text, data=data, code=code_of(asked.value))
                        outputs.log.tell("saved", label, table.cost.runs, table.cost.runs, "")
                    outputs.files.finished(label)
                if asked.estimators is not None:
                    outputs.log.note("compares estimators with retraining", label)
                    with about_algorithm(label):
                        names = None if asked.estimators == "all" else asked.estimators
                        compared[label] = compare_estimators(
                            plan, setup.federation, table, rounds=setup.rounds, estimators=names
                        )
    return Answer({label: tables[label] for label in labels}, compared)


def _tables(
    setup: Setup, asked: Question, outputs: Outputs, folder: OpenFolder, finished: dict[str, CoalitionTable]
) -> Iterator[tuple[str, Plan, CoalitionTable]]:
    """Label, plan and table of the algorithms, one after another; those that are finished are not computed."""
    log = outputs.log
    plans = begin(setup, log, purpose="coalitions", run="coalition", lost="has no value")
    needed = False
    for entry in setup.algorithms:
        with about_algorithm(entry.label):
            plan = plans[entry.label]
            members, cost = planned(
                plan,
                setup.federation,
                asked.among,
                rounds=setup.rounds,
                seeds=len(setup.seeds),
                max_runs=sys.maxsize if entry.label in finished else asked.max_runs,
            )
            algorithm, value = algorithm_of(plan), asked.value
            check_value(value, algorithm, setup.federation, _ANY)
            compares = isinstance(value, str) and value not in metrics_of(algorithm, setup.federation, None)
            needed |= compares or reads_standalone(entry)
            if asked.estimators is not None and (words := _check_estimators(plan, setup, asked)):
                log.note(words, entry.label)
            log.note(f"{len(members):,} coalitions, {in_words(cost)}", entry.label, 0, cost.runs)
    reference = standalone_of(setup, outputs, folder) if needed else None
    for entry in setup.algorithms:
        label = entry.label
        with about_algorithm(label):
            plan = plans[label] if reference is None else build_plan(setup, entry, reference)
            if label in finished:
                yield label, plan, finished[label]
                continue
            table = coalitions(
                plan,
                setup.federation,
                value=asked.value,
                among=asked.among,
                baseline=asked.baseline,
                outside=asked.outside,
                reference=reference,
                max_runs=asked.max_runs,
                **of_runs(setup, outputs, label),
            )
        if table.notes:
            log.note(table.notes, label, table.cost.runs, table.cost.runs)
        if (words := divergences(table)) is not None:
            log.note(words, label, table.cost.runs, table.cost.runs)
        yield label, plan, table._replace(names=names_of(setup) or table.names)


def _check_estimators(plan: Plan, setup: Setup, asked: Question) -> str:
    """Which of all estimators are left out, in one line; raises a ValueError if some that are asked for have to be."""
    if asked.among is not None:
        raise ValueError("expected all coalitions to compare estimators with, got a choice of them (among)")
    names = None if asked.estimators == "all" else asked.estimators
    return EstimatorInputs(plan, setup.federation, name_of_value(asked.value)).split(names)[1]


_ANY = Reference(*[np.zeros((1, 1), np.float32)] * 6)  # of which only the names of its numbers are read


def _check_asked(finished: SavedTables, label: str, asked: Question, directory: pathlib.Path) -> None:
    """Raises a ValueError if a finished table answers another question."""
    table, value, begin = finished.tables[label], name_of_value(asked.value), f"of the tables in {str(directory)!r}"
    baseline = asked.baseline if isinstance(asked.baseline, str) else repr(float(asked.baseline))
    told = {"value": (table.metric.removeprefix("-"), value), "baseline": (table.baseline, baseline)}
    for name, (earlier, now) in told.items():
        if earlier != now:
            raise ValueError(f"expected the {name} {begin} to resume them, got {now} in place of {earlier}")
    before, code = finished.code, code_of(asked.value)
    if before and before != code and before.partition(":")[0] == code.partition(":")[0]:  # of one version of Python
        raise ValueError(
            f"expected the value {begin} to resume them, got {value} with another body (with another folder "
            "fljax worth begins anew)"
        )
    members = chosen_members(asked.among, table.members.shape[1])
    if not np.array_equal(members, table.members):
        raise ValueError(
            f"expected the coalitions {begin} to resume them, got {len(members)} others in place of "
            f"{len(table.members)}"
        )
