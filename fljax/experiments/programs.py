"""The plans and programs of an experiment: checked before anything is computed, grouped, and compiled ahead.

Cells of a sweep that differ only in numbers are runs of one program. Plans with stand-ins for values that are not known
yet have the same ``Spec``, so JAX gives the run the programs that are ready, and lets it wait for the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.core.errors import during
from fljax.core.names import about_algorithm
from fljax.engine import Plan, compile_ahead, groups, rehearse
from fljax.engine.devices.layout import default_platform
from fljax.engine.loop.compilation import check_rounds
from fljax.engine.loop.trained import check_scores
from fljax.engine.rounds.evaluate import GRADIENT_NORM
from fljax.engine.rounds.standalone import check_initial, check_stop_alone, check_valid_alone
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.preparation import build_plan, check_pooled, reads_requirement, setup_of
from fljax.experiments.inputs.setup import Setup
from fljax.protocol import Algorithm
from fljax.results import Reference


def check_setup(setup: Setup, rehearsed: bool = True, swept: bool = False) -> dict[str, Plan]:
    """Builds every algorithm once (``rehearsed`` traces a round), so that errors come before any computation."""
    check_initial(setup.task, setup.standalone_initial)
    check_stop_alone(setup.federation, setup.standalone_stop)
    check_valid_alone(setup.federation, setup.alone["valid"])
    check_scores(setup.scores, setup.task, setup.federation)
    alone = _stand_in(setup)
    # 0.5 stands for all values from standalone models.
    table = np.broadcast_to(alone.threshold[:, None], (len(setup.seeds), max(setup.rounds, 1), setup.clients))
    known = {"test": table}
    if np.any(np.asarray(setup.federation.clients.valid.size) > 0):
        known["valid"] = table
    plans = {}
    for entry in setup.algorithms:
        with about_algorithm(entry.label):
            baselines = None if swept or entry is setup.algorithms[0] else known
            if entry.pooled and swept:
                raise ValueError("expected no pooled algorithm in a sweep, got one; fljax run has it")
            own = setup_of(setup, entry)
            plan = build_plan(own, entry, alone, baselines, trial=True)
            check_pooled(entry, plan)
            with during("the builder"):
                built = plan.build(**plan.arguments, **jax.tree.map(lambda leaf: leaf[0], dict(plan.by_seed)))
            if isinstance(built, Algorithm):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's builder may err
                check_rounds(built, setup.rounds)
            if rehearsed and setup.execution.clients != "debug":  # where nothing is traced
                rehearse(plan, own.federation)
        plans[entry.label] = plan
    return plans


def _stand_in(setup: Setup) -> Reference:
    """0.5 in place of all values of standalone models; not 0, since measures divide by it."""
    count = len(setup.seeds)
    half = np.full((count, setup.clients), 0.5, np.float32)
    unseen = np.full((count, setup.unseen), 0.5, np.float32) if setup.unseen else None
    accuracies = (None, None) if setup.task.score is None else (half, unseen)
    alone = Reference(half, half, accuracies[0], unseen, unseen, accuracies[1])
    return preparation.required_of(setup, alone, trial=True)


def world_key(cell: Setup) -> tuple[int, int]:
    """A key that cells with the same data and model have in common."""
    return id(cell.federation), id(cell.task)


def alike(places: Sequence[int], key: Callable[[int], Any]) -> list[list[int]]:
    """The places of cells, grouped by equal keys."""
    members: dict[str, list[int]] = {}
    for place in places:
        members.setdefault(repr(key(place)), []).append(place)
    return list(members.values())


class CellPrograms(NamedTuple):
    """How an algorithm runs in the cells of a sweep; cells are numbers."""

    same: list[list[int]]  # groups on whose differences the algorithm does not depend; the first of each runs
    plans: dict[int, Plan]  # of the cells that run
    jobs: list[list[int]]  # groups of cells that are runs of one program


def grouped(
    cells: Sequence[Setup], position: int, references: Sequence[Reference], *, trial: bool = False
) -> CellPrograms:
    """The programs of the algorithm at ``position`` of every cell; a ``trial`` trains nothing, see ``build_plan``."""

    def on_what_it_depends(place: int) -> Any:
        """The cell without its other algorithms."""
        cell, required = cells[place], np.asarray(references[place].required)
        reads = reads_requirement(cell.algorithms[position]) or GRADIENT_NORM in cell.extra_metrics
        alone = cell.standalone, cell.alone, reads and required.tobytes()
        return world_key(cell), cell.schedule, cell.clients_per_round, alone, cell.algorithms[position]

    def on_what_programs_depend(place: int) -> Any:
        return world_key(cells[place]), cells[place].execution, cells[place].non_finite, cells[place].extra_metrics

    same = alike(range(len(cells)), on_what_it_depends)
    jobs: list[list[int]] = []
    plans: dict[int, Plan] = {}
    for places in alike([places[0] for places in same], on_what_programs_depend):
        for place in places:
            plans[place] = build_plan(cells[place], cells[place].algorithms[position], references[place], trial=trial)
        jobs += [[places[i] for i in members] for members in groups([plans[place] for place in places])]
    return CellPrograms(same, plans, jobs)


class Ahead:
    """Compiles the first program during the standalone models, and each next one during the run of that before."""

    def __init__(self, programs: Iterator[tuple[Plan | list[Plan], Setup]]) -> None:
        self._programs, self._pool = programs, ThreadPoolExecutor(3)  # a run's programs

    def begin_next(self) -> None:
        """Begins with the next program, of plans in a setup."""
        plans, setup = next(self._programs)
        compile_ahead(self._pool, plans, setup.federation, setup.schedule)

    def after(self) -> None:
        """Begins with the program after the one that runs now; the run raises an error of it again."""
        # Not on a GPU: XLA chooses between kernels by timing them, and a run beside it would disturb that.
        if default_platform() != "gpu":
            with contextlib.suppress(Exception):
                self.begin_next()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        # The process waits for programs that are being compiled when it ends.
        self._pool.shutdown(wait=False, cancel_futures=True)


def ahead_of_run(setup: Setup, plans: Mapping[str, Plan], finished: Container[str], begun: Mapping[str, int]) -> Ahead:
    """Compiles the programs of algorithms that are not finished; those in ``begun`` have done so many rounds."""
    entries = [entry for entry in setup.algorithms if entry.label not in finished]
    own = {entry.label: setup_of(setup, entry) for entry in entries}
    # Errors of one round appear before anything is computed; later ones are raised by ``simulate``.
    for entry in entries[1:]:
        with about_algorithm(entry.label):
            rehearse(plans[entry.label], own[entry.label].federation)
    left = {label: each._replace(rounds=setup.rounds - begun.get(label, 0)) for label, each in own.items()}
    ahead = Ahead((plans[label], each) for label, each in left.items())
    for entry in entries[:1]:
        with about_algorithm(entry.label):
            ahead.begin_next()
    return ahead


def ahead_of_sweep(cells: Sequence[Setup], finished: Container[str]) -> Ahead:
    """Compiles the programs of a sweep, in the order in which they run."""

    def programs() -> Iterator[tuple[list[Plan], Setup]]:
        # Cells are grouped as they will be, unless two require the same by chance; it compiles later then.
        references = [_stand_in(cell) for cell in cells]
        for position, label in enumerate(cells[0].labels):
            if label not in finished:
                of_label = grouped(cells, position, references, trial=True)
                for members in of_label.jobs:
                    yield [of_label.plans[place] for place in members], cells[members[0]]

    ahead = Ahead(programs())
    with contextlib.suppress(Exception):  # ``sweep`` raises it again
        ahead.begin_next()
    return ahead
