"""The conductor of all experiments: their folder, events, standalone models and results, algorithm after algorithm.

A run (``run_setup``, also of ``fljax.compare``) has one cell and a sweep has many; each says how an algorithm runs in
its cells, and all that comes before, between and after algorithms is here, once.

Evaluations go to callbacks (without ``contribution_correlation``, which needs records), and unfinished work to the
folder. It has, while an algorithm is unfinished:

checkpoints/origin.json       the config and fljax's version
checkpoints/standalone.npz    scores of the standalone models, which are trained once
checkpoints/LABEL/            checkpoints of an algorithm; of a sweep: of each of its programs
checkpoints/LABEL/begin.npz   the models from which it goes on for more rounds
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax import results
from fljax.core import errors, processes
from fljax.core.files import part_of, read_npz, write, write_npz
from fljax.core.names import about_algorithm
from fljax.core.sameness import FORCED, WENT_ON, forced_in
from fljax.core.values import arguments_for
from fljax.engine import Block, Memory, Plan, StopEarly, checksum_of, replay, sentences, standalone_sweep
from fljax.engine.callbacks import Callback, is_called_at_start, scalars_of
from fljax.engine.checkpoints import Checkpoint, StopRequest
from fljax.engine.loop.history import Hooks
from fljax.engine.loop.simulation import run_plans
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import CallbackSetup, OptOut, Setup, weights_of
from fljax.experiments.programs import Ahead, alike, grouped, world_key
from fljax.experiments.saved_models import ModelFiles
from fljax.metrics.registry import of_gains
from fljax.results import Reference, Result, Results, folders, further_rounds, judged_by
from fljax.results.clients import with_common_names, with_names
from fljax.results.events import STOPPED, EventLog, Line, OnEvent, Parts, append, joined_weights
from fljax.results.folders import CONFIG, ENVIRONMENT, OpenFolder, claim, save_results
from fljax.results.identity import begin_checkpoints, write_environment
from fljax.results.non_finite import InfiniteLoss, NotFinite, infinite_losses
from fljax.results.sweeps import Axis, Best, axes_of, best, divergences_in, parts_of, unstack_cells, values_of

_STANDALONE = "standalone.npz"
Convert = Callable[[Block], Block]


class CallbackBuilder:
    """Makes the callback of each algorithm; of builders with an attribute ``ready``, it is called first."""

    def __init__(
        self,
        directory: pathlib.Path | None,
        log: EventLog,
        stop: Callable[[], StopEarly] | None = None,
        callbacks: Sequence[CallbackSetup] = (),
        seeds: tuple[int, ...] = (),
        rounds: int = 0,
        opt_out_threshold: OptOut = 0.0,
    ) -> None:
        self._offered = {"folder": directory, "seeds": seeds, "rounds": rounds}
        self._directory, self._log, self._stop, self._builders = directory, log, stop, callbacks
        for entry in callbacks:
            getattr(entry.build, "ready", lambda: None)()
        self._opt_out_threshold = opt_out_threshold
        self._began = time.perf_counter()
        self._failed = False

    @classmethod
    def of(
        cls, setup: Setup, directory: pathlib.Path | None, log: EventLog, callbacks: Sequence[CallbackSetup] = ()
    ) -> CallbackBuilder:
        """For an experiment; in a sweep, ``setup`` is any of its cells. ``callbacks`` are added to its own."""
        builders = (*setup.callbacks, *callbacks)
        return cls(directory, log, setup.stop, builders, setup.seeds, setup.rounds, setup.opt_out_threshold)

    def callback(
        self, label: str, parts: Parts | None = None, cells: Sequence[int] = (), convert: Convert | None = None
    ) -> Callbacks:
        """The callback of an algorithm, in ``cells`` that run together; it compares with the first of ``parts``."""

        def record(block: Block) -> None:
            scalars = scalars_of(block)
            of_runs = tuple(cell for cell in cells for _ in range(len(scalars.seeds) // len(cells)))
            seconds = round(time.perf_counter() - self._began, 3)
            line = (label, block.round, block.rounds, seconds, scalars.seeds, of_runs, block.diverged, scalars.values)
            self._append(Line(*line))

        record.at_start = True
        builders = self._builders if processes.is_first() else ()  # only process 0 calls callbacks
        callbacks: list[Callback] = [record, *(self._built(entry, label, tuple(cells)) for entry in builders)]
        if self._stop is not None:
            callbacks.append(EarlyStop(label, self._stop(), self._log))
        baseline = None if parts is None else _baseline(parts)
        return Callbacks(callbacks, baseline, self._opt_out_threshold, label, tuple(cells), convert)

    def _built(self, entry: CallbackSetup, label: str, cells: tuple[int, ...]) -> Callback:
        callback = entry.build(
            **arguments_for(entry.build, {**self._offered, "label": label, "cells": cells}, entry.options)
        )
        if not callable(callback):
            name = getattr(entry.build, "__name__", entry.build)
            raise ValueError(f"expected {name} to make a callback, a function of a Block, got {callback!r}")
        return callback

    def _append(self, line: Line) -> None:
        """Appends a line. If that fails, the run goes on without, and this is reported once."""
        if self._directory is None or self._failed:
            return
        try:
            append(self._directory, line)
        except OSError as error:
            self._failed = True
            words = f"metrics.jsonl cannot be written ({error.strerror}); the run goes on without it"
            self._log.note(words, line.label, line.round, line.rounds)


class Callbacks:
    """Several callbacks as one; their blocks say whose they are, and have metrics that compare with the baseline."""

    at_start = True

    def __init__(
        self,
        callbacks: Sequence[Callback],
        baseline: Mapping[str, Any] | None,
        opt_out_threshold: OptOut = 0.0,
        label: str = "",
        cells: tuple[int, ...] = (),
        convert: Convert | None = None,  # what blocks become first
    ) -> None:
        self._whose, self._convert = {"label": label, "cells": cells}, convert
        self._callbacks, self._baseline, self._threshold = list(callbacks), baseline, opt_out_threshold

    def __call__(self, block: Block) -> bool:
        block = self._compared(block)
        due = [callback for callback in self._callbacks if block.ran or is_called_at_start(callback)]
        answers = [callback(block) for callback in due]  # all are called, even if one stops the run
        return any(answers)

    def replay(self, blocks: Sequence[Block]) -> bool:
        """Replays the history of a resumed run to callbacks that keep one; whether the run had stopped."""
        return replay(self._callbacks, [self._compared(block) for block in blocks])

    def _compared(self, block: Block) -> Block:
        """The block with gains over the baseline's model after as many rounds, or after its last one."""
        block = (block if self._convert is None else self._convert(block))._replace(**self._whose)
        if self._baseline is None:
            return block
        metrics = dict(block.metrics)
        for prefix in ("", "unseen_"):
            name = f"{prefix}test_accuracy"
            if name not in metrics:
                continue
            other = self._baseline.get(name, {block.round: metrics[name]})
            at = max((round for round in other if round <= block.round), default=None)
            if at is None:
                continue
            gain = np.asarray(metrics[name]) - np.asarray(other[at])
            gains = of_gains(gain, self._threshold, unseen=bool(prefix))[1]
            metrics |= {prefix + scalar: np.asarray(values) for scalar, values in gains.items()}
        return block._replace(metrics=metrics)


class EarlyStop:
    """Early stopping, which is told when it happens, and does nothing for an algorithm without the metric."""

    def __init__(self, label: str, stop: StopEarly, log: EventLog) -> None:
        self._label, self._stop, self._log = label, stop, log
        self._absent = False

    def __call__(self, block: Block) -> bool:
        if self._stop.metric not in block.metrics:
            if not self._absent:
                self._absent = True
                words = f"not stopped early: it has no {self._stop.metric}"
                self._log.note(words, self._label, block.round, block.rounds)
            return False
        if not self._stop(block) or block.round >= block.rounds:
            return False
        words = f"stopped after round {block.round} of {block.rounds}: {self._stop.reason}"
        self._log.note(words, self._label, block.round, block.rounds, STOPPED)
        return True

    def replay(self, blocks: Sequence[Block]) -> bool:
        return self._stop.replay([block for block in blocks if self._stop.metric in block.metrics])


def _baseline(parts: Parts) -> dict[str, dict[int, np.ndarray]]:
    """The accuracies ``[seeds, clients]`` of the first finished algorithm by metric and round; empty before it is."""
    if not parts:
        return {}
    metrics = next(iter(parts.values())).metrics
    accuracies: dict[str, dict[int, np.ndarray]] = {}
    for name, axis in (("test_accuracy", "client"), ("unseen_test_accuracy", "unseen")):
        if name in metrics:
            values = metrics[name].transpose("evaluated_round", "seed", axis).values
            rounds = metrics["evaluated_round"].values.tolist()
            # After the algorithm has ended, joined results have NaN.
            by_round = zip(rounds, values, strict=True)
            accuracies[name] = {round: of_round for round, of_round in by_round if np.isfinite(of_round).any()}
    return accuracies


class Saving(NamedTuple):
    """How a run saves what it has computed."""

    every: float | None = 30.0  # seconds between two checkpoints of an algorithm; None: no checkpoints
    keep: int = 2  # number of checkpoints
    stop: StopRequest | None = None  # asks to stop after the block that is computed
    force: bool = False  # goes on with results of other settings of JAX, code or data, and says what differs


class ProgressFiles(NamedTuple):
    """The folder ``checkpoints`` of a run. With several processes, only process 0 reads and writes it."""

    directory: pathlib.Path | None  # the run folder, which this process has locked; None: nothing is saved
    text: str
    grid: str | None
    saving: Saving
    log: EventLog
    lasting: bool = False  # whether the files stay after the run

    @property
    def is_on(self) -> bool:
        """Whether anything is saved."""
        return self.directory is not None and self.saving.every is not None

    def checkpoint(self, label: str, *parts: str) -> Checkpoint | None:
        """Checkpoints of an algorithm, or of one ``part`` of it."""
        if self.directory is None or self.saving.every is None:
            return None
        refused = processes.agreed(self._refused)
        if refused is not None:
            self.log.note(f"checkpoints cannot be written; the run goes on without ({refused})", label)
            return None
        place = folders.checkpoints_of(self.directory, label).joinpath(*parts)
        note = functools.partial(self.log.note, label=label)
        long = folders.records_of(self.directory, label)
        return Checkpoint(place, note=note, records=long, **self.saving._asdict())

    def begin(self) -> None:
        """Makes the folder of checkpoints, which names the config."""
        if self.directory is not None and processes.is_first():
            begin_checkpoints(self.directory, self.text, self.grid)

    def references(self, data: int, make: Callable[[], Sequence[Reference]]) -> list[Reference]:
        """The scores of standalone models: of an earlier process on data of this checksum, or made and then saved."""
        if self.directory is None or self.saving.every is None:
            return list(make())
        path = self.directory / folders.CHECKPOINTS / _STANDALONE
        earlier = processes.agreed(lambda: self._read(path, data))
        if earlier is not None:
            self.log.note("standalone models are those of the earlier process")
            return earlier
        made = list(make())
        if not processes.is_first():
            return made
        try:
            self.begin()
            write_npz(path, _arrays(made, data))
        except OSError as error:
            self.log.note(f"standalone models could not be saved; the run goes on ({error})")
        return made

    def forget_records(self, label: str) -> None:
        """Removes the long records of an earlier process; short records replace them now."""
        if self.directory is not None and processes.is_first():
            shutil.rmtree(folders.records_of(self.directory, label), ignore_errors=True)

    def finished(self, label: str | None = None) -> None:
        """Removes the checkpoints of an algorithm, whose results are saved; None: everything."""
        if self.directory is not None and not self.lasting and processes.is_first():
            whole = self.directory / folders.CHECKPOINTS
            place = whole if label is None else folders.checkpoints_of(self.directory, label)
            shutil.rmtree(place, ignore_errors=True)

    def _refused(self) -> str | None:
        """Why the folder cannot be made; None if it can."""
        try:
            self.begin()
        except OSError as error:
            return str(error)
        return None

    def _read(self, path: pathlib.Path, data: int) -> list[Reference] | None:
        if not path.is_file():
            return None
        try:
            stored = read_npz(path, "scores of standalone models")
            checksum, count = int(stored.pop("data")), int(stored.pop("count"))
            # Tasks without a score have no accuracies.
            absent: dict[str, Any] = {"test_accuracy": None}
            references = [Reference(**(absent | part_of(stored, f"{place}/"))) for place in range(count)]
        except (ValueError, KeyError, TypeError):
            self.log.note(f"{_STANDALONE} is damaged; standalone models are trained again")
            return None
        if checksum == data:
            return references
        wanted = f"of the run in {str(self.directory)!r} to resume it"
        self.refuse_data(wanted, "the data differ; standalone models are trained again")
        return None

    def refuse_data(self, wanted: str, differ: str, label: str = "") -> None:
        """Raises a ValueError for data other than those ``wanted``; by force, it notes that they ``differ``."""
        if not self.saving.force:
            raise ValueError(
                f"expected the data {wanted}, got other data (with another folder a run begins anew; --force or "
                "force=True goes on, and the results say so)"
            )
        self.log.note(f"{WENT_ON}{differ}", label)


def _arrays(references: Sequence[Reference], data: int) -> dict[str, np.ndarray]:
    """The scores of standalone models by name; ``data`` is the checksum of what they were trained on."""
    arrays: dict[str, Any] = {"data": np.asarray(data), "count": np.asarray(len(references))}
    for place, reference in enumerate(references):
        fields = reference._replace(params=None)._asdict()
        arrays |= {f"{place}/{name}": values for name, values in fields.items() if values is not None}
    return arrays


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
            log.done(label, rounds)
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
            save_results(outputs.folder, saved, outputs.files.text)
            log.tell("saved", label, rounds, rounds, "")
        if computed.stopped is not None:
            outputs.files.finished(label)  # so that resuming runs it again
            raise computed.stopped.of(label)
        if computed.trained is not None:
            plan, models[label] = computed.trained
            if outputs.on_result is not None:
                outputs.on_result(label, plan, models[label])
        outputs.files.finished(label)
    outputs.files.finished()
    return outcome_of(join(experiment, parts, forced=log.forced))._replace(models=models)


def check_data(folder: OpenFolder, data: int | None, files: ProgressFiles) -> None:
    """Raises a ValueError if finished algorithms had data of another checksum, unless by force; None: not known."""
    for label, part in folder.finished.items():
        earlier = part.metrics.attrs.get(DATA)
        # Results of an older fljax do not say their data.
        if earlier is not None and data is not None and earlier != str(data):
            wanted = f"that {label} was run on, to run others beside it"
            files.refuse_data(wanted, f"the data of {label} were others", label)


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
    for places in alike(range(len(cells)), lambda at: (world_key(cells[at]), cells[at].alone)):
        first, locals = cells[places[0]], [cells[place].standalone for place in places]
        count = len(set(map(repr, locals)))
        ways = f", in {count} ways" if count > 1 else ""
        words = f"training {first.clients + first.unseen} standalone models per seed{ways}"
        log.tell("standalone", "", 0, first.rounds, words)
        on_memory = memory_notes(log, "", first.rounds, "standalone models: ") if noted else None
        made = standalone_sweep(first.task, first.federation, locals, **first.alone, on_memory=on_memory)
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
    ahead: Ahead

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
                hooks = Hooks(
                    callbacks=(progress, self.builder.callback(label, cells=members)),
                    on_memory=memory_notes(log, label, count * rounds),
                    checkpoint=self.outputs.files.checkpoint(label, f"program_{job}"),
                )
                plans, references = zip(*((programs.plans[at], self.references[at]) for at in members), strict=True)
                of_members = run_plans(plans, cell.federation, cell.schedule, references, hooks)
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
    return Outcome(*joined, divergences_in(metrics), infinite=infinite_losses(metrics), best=chosen)
