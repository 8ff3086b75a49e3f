"""The conductor of all experiments: their folder, events, standalone models and results, algorithm after algorithm.

A run (``run_setup``, also of ``fljax.compare``) has one cell and a sweep has many; each says how an algorithm runs in
its cells, and all that comes before, between and after algorithms is here, once.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax import results
from fljax.core import errors, processes
from fljax.core.files import write
from fljax.core.names import about_algorithm
from fljax.core.sameness.record import FORCED, WENT_ON, forced_in
from fljax.engine import Block, Memory, Plan, checksum_of, sentences, standalone_sweep, sweep
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import CallbackSetup, OptOut, Setup, weights_of
from fljax.experiments.programs import AheadOfSweep, alike, grouped, world_key
from fljax.experiments.running import CallbackBuilder, ProgressFiles, Saving
from fljax.experiments.saved_models import ModelFiles
from fljax.results import Reference, Result, Results, further_rounds, judged_by
from fljax.results.clients import with_common_names, with_names
from fljax.results.endings import Parts, joined_weights
from fljax.results.events import DONE, EventLog, OnEvent
from fljax.results.folders import CONFIG, ENVIRONMENT, OpenFolder, claim, save
from fljax.results.identity import write_environment
from fljax.results.non_finite import InfiniteLoss, NotFinite, infinite_losses
from fljax.results.sweeps import Axis, Best, axes_of, best, parts_of, unstack_cells, values_of

# Attribute of the results of a run or a sweep: a checksum of its data.
DATA = "data"


class Experiment(NamedTuple):
    """What the results of all algorithms have in common."""

    name: str
    labels: tuple[str, ...]
    rounds: int
    opt_out_threshold: OptOut = 0.0
    grid: str | None = None  # of a sweep, the paths of its axes by name, as JSON
    metric: str | None = None  # of a sweep, by which its best cells are chosen
    data: int | None = None  # a checksum; None: it is not known


class Outputs(NamedTuple):
    """Where the events and results of an experiment go."""

    log: EventLog
    files: ProgressFiles
    folder: pathlib.Path | None = None  # which gets results and evaluations; None: they are not saved
    models: ModelFiles = ModelFiles(None, "none")
    callbacks: Sequence[CallbackSetup] = ()  # beside those of the setup
    on_result: Callable[[str, Plan, Result], Any] | None = None  # after an algorithm of a run is saved


class Outcome(NamedTuple):
    """All algorithms side by side, of a run or in all cells of a sweep."""

    metrics: xr.Dataset  # over ``algorithm``, the axes of a sweep, ``seed, evaluated_round, client | unseen``
    records: xr.Dataset  # over ``algorithm``, axes, ``seed, round, row``; of long ones only those without rows
    diverged: tuple[tuple[Any, ...], ...]  # (label, seed, round) of NaN or infinity; sweep: (label, cell, seed, round)
    models: Mapping[str, Result] = {}  # Results of ``simulate`` by label; none of resumed algorithms and in a sweep
    infinite: tuple[InfiniteLoss, ...] = ()  # evaluations in which a loss is infinite
    outline: Mapping[str, np.ndarray] = {}  # what saved models need to know of the data, without rows
    best: tuple[Best, ...] = ()  # of a sweep, the best cell of every algorithm by every available criterion


class Computed(NamedTuple):
    """An algorithm that has run in all cells."""

    results: Results  # over the axes of a sweep
    trained: tuple[Plan, Result] | None = None  # of a run, with trained models
    stopped: NotFinite | None = None  # what stopped it before its end


@contextlib.contextmanager
def opened(
    directory: pathlib.Path | None,
    text: str,
    grid: str | None = None,
    *,
    resume: bool,
    on_event: OnEvent | None,
    saving: Saving | None,
    unit: str = "rounds",
) -> Iterator[tuple[Outputs, OpenFolder]]:
    """Locks the folder of a run or a sweep, and makes its outputs; ``unit`` is what events count."""
    with claim(directory, text, resume, grid, force=saving is not None and saving.force) as folder:
        log = EventLog(directory, on_event, unit)
        for words in folder.notes:
            log.note(words)
        yield Outputs(log, ProgressFiles(directory, text, grid, saving or Saving(), log), directory), folder


def conduct(
    experiment: Experiment, outputs: Outputs, folder: OpenFolder, compute: Callable[[str, Parts], Computed] | None
) -> Outcome:
    """Runs by ``compute(label, earlier results)`` what the folder has no results of, and saves after each."""
    log, rounds = outputs.log, experiment.rounds
    parts, models = dict(folder.finished), dict[str, Result]()
    for label in experiment.labels:
        if label in parts:
            log.note(f"{DONE}, not repeated", label, rounds, rounds)
            continue
        assert compute is not None, f"{label} is not finished"
        try:
            computed = compute(label, parts)
        except Exception as error:  # of a user's callback, for example
            if models:
                errors.attach(error, finished=outcome_of(join(experiment, parts))._replace(models=models))
            raise
        parts[label] = computed.results
        if outputs.folder is not None and processes.is_first():
            if not (outputs.folder / CONFIG).is_file():
                log.note(f"{str(outputs.folder)!r} was removed; it is made again without what was in it", label)
                outputs.folder.mkdir(parents=True, exist_ok=True)
                write(outputs.folder / CONFIG, outputs.files.text.encode())
                write_environment(outputs.folder / ENVIRONMENT, resumed=False)
            saved = join(experiment, {**folder.begun, **parts}, rounds_before(folder), log.forced)
            save(outputs.folder, saved, outputs.files.text)
            log.tell("saved", label, rounds, rounds, "")
        if computed.stopped is not None:
            outputs.files.finished(label)  # so that resuming runs it again
            raise computed.stopped.of(label)
        if computed.trained is not None:
            plan, models[label] = computed.trained
            if outputs.on_result is not None:
                outputs.on_result(label, plan, models[label])
        outputs.files.finished(label)
    outputs.files.all_finished()
    return outcome_of(join(experiment, parts, forced=log.forced))._replace(models=models)


def check_data(folder: OpenFolder, data: int | None, files: ProgressFiles | None = None) -> None:
    """Raises a ValueError if finished algorithms had data of another checksum, unless by force; None: not known."""
    for label, part in folder.finished.items():
        earlier = part.metrics.attrs.get(DATA)
        # Results of an older fljax do not say their data.
        if earlier is not None and data is not None and earlier != str(data):
            if files is not None and files.saving.force:
                files.log.note(f"{WENT_ON}the data of {label} were others", label)
                continue
            raise ValueError(
                f"expected the data that {label} was run on, to run others beside it, got other data (with another "
                "folder a run begins anew; --force or force=True goes on, and the results say so)"
            )


def checksum_of_cells(cells: Sequence[Setup]) -> int:
    """A checksum of the data of some cells; cells with the same data are counted once."""
    return sum(map(checksum_of, {id(cell.federation): cell.federation for cell in cells}.values()))


def rounds_before(folder: OpenFolder) -> int | None:
    """The rounds after which algorithms of a folder go on; None: none goes on."""
    return next((int(begun.metrics["rounds_done"]) for begun in folder.begun.values()), None)


def trained_alone(
    cells: Sequence[Setup], axes: Sequence[Axis], outputs: Outputs, folder: OpenFolder
) -> list[Reference]:
    """The standalone models of every cell, trained or of an earlier process, with what clients require."""
    data = checksum_of_cells(cells) if outputs.files.is_on else 0
    alone = outputs.files.references(data, lambda: _train_alone(cells, outputs.log, noted=not axes))
    references = [preparation.required_of(cell, reference) for cell, reference in zip(cells, alone, strict=True)]
    for place, (cell, reference) in enumerate(zip(cells, references, strict=True)):
        preparation.check_requirement(parts_of({**folder.finished, **folder.begun}, axes, place), reference, cell)
    return references


def _train_alone(cells: Sequence[Setup], log: EventLog, noted: bool) -> list[Reference]:
    """Trains the standalone models of every cell; ``noted``: whether their memory is told."""
    references: dict[int, Reference] = {}
    for places in alike(range(len(cells)), lambda at: (world_key(cells[at]), cells[at].execution, cells[at].alone)):
        first, locals = cells[places[0]], [cells[place].standalone for place in places]
        count = len(set(map(repr, locals)))
        ways = f", in {count} ways" if count > 1 else ""
        words = f"training {first.clients + first.unseen} standalone models per seed{ways}"
        log.tell("standalone", "", 0, first.rounds, words)
        how: dict[str, Any] = {"seeds": first.seeds, "execution": first.execution, **first.alone}
        how["on_memory"] = memory_notes(log, "", first.rounds, "standalone models: ") if noted else None
        made = standalone_sweep(first.task, first.federation, locals, **how)
        references |= dict(zip(places, made, strict=True))
    return [references[place] for place in range(len(cells))]


def memory_notes(log: EventLog, label: str, rounds: int, start: str = "") -> Callable[[Memory], None]:
    """A function that notes the memory of an algorithm's programs, in sentences that begin with ``start``."""

    def note(memory: Memory) -> None:
        for words in sentences(memory):
            log.note(f"{start}{words}", label, 0, rounds)

    return note


class SweptCells(NamedTuple):
    """Computes the algorithms of a sweep in all of its cells."""

    axes: Sequence[Axis]
    cells: Sequence[Setup]  # the last axis fastest
    references: Sequence[Reference]  # of every cell
    outputs: Outputs
    builder: CallbackBuilder
    ahead: AheadOfSweep

    def compute(self, label: str, _: Parts) -> Computed:
        """Runs one algorithm in every cell; models are not kept, since they would fill the memory."""
        with about_algorithm(label):
            of_cells = self._in_cells(label)
        metrics, records = zip(*of_cells, strict=True)
        joined = unstack_cells(with_common_names(metrics), self.axes)
        attributes = weights_of([cell.algorithms[cell.labels.index(label)] for cell in self.cells])
        return Computed(Results(joined.assign_attrs(attributes), unstack_cells(records, self.axes)))

    def _in_cells(self, label: str) -> list[Results]:
        programs = grouped(self.cells, self.cells[0].labels.index(label), self.references)
        count, rounds, log = len(programs.jobs), self.cells[0].rounds, self.outputs.log
        words = f"{len(programs.same)} different cells in {count} program" + ("s" if count > 1 else "")
        log.note(words, label, 0, count * rounds)
        results: dict[int, Results] = {}
        for job, members in enumerate(programs.jobs):

            def progress(block: Block, done: int = job * rounds) -> None:
                log.train(label, done + block.round, count * rounds)

            log.train(label, job * rounds, count * rounds)
            cell = self.cells[members[0]]
            self.ahead.after()
            try:
                of_members = sweep(
                    [programs.plans[place] for place in members],
                    cell.federation,
                    rounds=rounds,
                    seeds=cell.seeds,
                    references=[self.references[place] for place in members],
                    evaluate_every=cell.evaluate_every,
                    callbacks=(progress, self.builder.callback(label, cells=members)),
                    execution=cell.execution,
                    on_memory=memory_notes(log, label, count * rounds),
                    non_finite=cell.non_finite,
                    extra_metrics=cell.extra_metrics,
                    scores=cell.scores,
                    score_every=cell.score_every,
                    checkpoint=self.outputs.files.checkpoint(label, f"program_{job}"),
                )
            except NotFinite as stop:
                self.outputs.files.finished(label)  # so that resuming runs it again
                raise stop.of(label, values_of(self.axes, members[stop.plan])) from None
            for place, result in zip(members, of_members, strict=True):
                world = self.cells[place].world
                metrics = result.metrics if world is None else with_names(result.metrics, world.names)
                results[place] = Results(metrics, result.records)
                for diverged in result.divergences:
                    words = f"cell {place} {diverged}; frozen there"
                    log.note(words, label, diverged.round, count * rounds)
                for loss in result.infinite:
                    log.note(f"cell {place}: {loss}", label, loss.round or 0, count * rounds)
        for first, *others in programs.same:  # of which only the requirement by which they are judged may differ
            metrics, records = results[first]
            results |= {place: Results(judged_by(metrics, self.references[place]), records) for place in others}
        return [results[place] for place in range(len(self.cells))]


def join(experiment: Experiment, parts: Parts, continues: int | None = None, forced: str = "") -> Results:
    """The results of the algorithms that are finished, in the order of the experiment, along ``algorithm``."""
    order = [label for label in experiment.labels if label in parts]
    metrics = results.join(dict(zip(order, with_common_names(parts[label].metrics for label in order), strict=True)))
    records = results.join({label: parts[label].records for label in order})
    attributes: dict[str, Any] = {"name": experiment.name}
    if told := forced_in(*(parts[label].metrics for label in order), forced):
        attributes[FORCED] = told
    if experiment.data is not None:
        attributes[DATA] = str(experiment.data)
    if continues is not None:
        attributes[further_rounds.CONTINUES] = continues
    if experiment.grid is not None:
        attributes |= {"grid": experiment.grid, "metric": experiment.metric}
        records = records.assign_attrs(grid=experiment.grid)
    metrics = results.with_gains(metrics, order[0], experiment.opt_out_threshold)
    return Results(metrics.assign_attrs(attributes | joined_weights(parts)), records)


def outcome_of(joined: Results) -> Outcome:
    """What joined results say: the best cells of a sweep, what diverged, and which losses are infinite."""
    metrics = joined.metrics
    chosen = best(metrics, metrics.attrs["metric"]) if axes_of(metrics) else ()
    return Outcome(*joined, _diverged(metrics), infinite=infinite_losses(metrics), best=chosen)


def _diverged(metrics: xr.Dataset) -> tuple[tuple[Any, ...], ...]:
    names = axes_of(metrics)
    table = metrics["diverged"].transpose("algorithm", *names, "seed")
    diverged = []
    for place in np.argwhere(table.values >= 0):
        label, *cell, seed = (table[dim].values.tolist()[i] for dim, i in zip(table.dims, place, strict=True))
        of_cell = [dict(zip(names, cell, strict=True))] if names else []
        diverged.append((label, *of_cell, seed, int(table.values[tuple(place)])))
    return tuple(diverged)
