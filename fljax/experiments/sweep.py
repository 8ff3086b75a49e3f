"""Sweeps: every algorithm of a config in every cell of a grid, with as few compiled programs as possible."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fljax.config import ConfigError, dumps
from fljax.config.options import check_metric
from fljax.config.sweeping import Grid
from fljax.core import processes
from fljax.core.names import about_algorithm
from fljax.engine import Block, Memory, checksum_of, groups, sentences, standalone_sweep, sweep
from fljax.experiments import run as experiment
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.plans import build_plan, reads_requirement
from fljax.experiments.inputs.setup import CallbackSetup, Setup, Tell, resolve_cells
from fljax.experiments.outputs.following import Watch
from fljax.experiments.outputs.progress_files import ProgressFiles, Saving
from fljax.metrics.registry import OF_LOSSES, SCALARS
from fljax.protocol import Federation
from fljax.results import Reference, judged_by
from fljax.results.differences import flat
from fljax.results.folders import Claim, OnEvent, Parts, claim, save, teller
from fljax.results.infinite_losses import InfiniteLoss, infinite_losses
from fljax.results.non_finite import NotFinite
from fljax.results.sweeps import Axis, Best, axes_of, best, parts_of, shape_in_words, unstack_cells, values_of

METRICS = tuple(SCALARS)


class Outcome(NamedTuple):
    """All algorithms in all cells.

    Attributes:
      metrics: over ``algorithm``, the axes of the grid, ``seed, evaluated_round, client | unseen``.
      records: over ``algorithm``, the axes of the grid, ``seed, round, row``.
      best: the best cell of every algorithm, by every available criterion.
      diverged: ``(label, cell, seed, round)`` of runs in which a NaN or infinity appeared.
      infinite: evaluations in which a loss is infinite (``fljax.results.infinite_losses``).
    """

    metrics: xr.Dataset
    records: xr.Dataset
    best: tuple[Best, ...]
    diverged: tuple[tuple[str, dict[str, Any], int, int], ...]
    infinite: tuple[InfiniteLoss, ...] = ()


def run(
    grid: Grid,
    *,
    directory: pathlib.Path | None = None,
    resume: bool = False,
    on_event: OnEvent | None = None,
    saving: Saving | None = None,
    callbacks: Sequence[CallbackSetup] = (),
    whole: bool = True,
) -> Outcome:
    """Runs every algorithm in every cell and saves after each algorithm, as ``fljax.experiments.run.run`` does.

    Cells that differ only in floats are runs of one compiled program. Cells that differ in static values run one after
    another. An algorithm that does not depend on the differences between cells runs once for all of these cells.

    Args:
      grid: from ``fljax.config.load_grid``.
      directory: as for ``fljax.experiments.run.run``; None: nothing is saved.
      resume: skip algorithms whose results ``directory`` already has, and go on after the newest checkpoints of the
        programs of the next one.
      on_event: called with an ``Event`` for each step of the run.
      saving: as for ``fljax.experiments.run.run``.
      callbacks: as for ``fljax.experiments.run.run``.
      whole: whether the edges of the grid are those of a whole sweep, and worth a note.

    Raises:
      Stopped: if ``saving.stop`` asks for it, after a checkpoint.
      ValueError: if the sweep's metric does not exist, if the data cannot be partitioned as configured, or if
        ``fljax.results.folders.claim`` refuses the folder.
      OSError: if the disk has no room for the results; results saved before are kept.
      fljax.results.non_finite.NotFinite: if a cell's ``non_finite`` is "stop" and something was not finite in it.
        The results of algorithms before are saved.
    """
    processes.check_same(lambda: flat(dumps(grid.config)) | {"grid": repr(paths(grid))})
    metric = check(grid)
    text = "" if directory is None else dumps(grid.config)
    with claim(directory, text, resume, paths(grid)) as claimed:
        tell = teller(directory, on_event)
        files = ProgressFiles(directory, text, paths(grid), saving or Saving(), tell)
        outcome = _run(grid, metric, directory, claimed, tell, files, callbacks)
        if whole:
            _tell_edges(outcome, grid.config.rounds, tell)
        return outcome


def _tell_edges(outcome: Outcome, rounds: int, tell: Tell) -> None:
    for label, axis, value in dict.fromkeys(
        (b.algorithm, axis, b.cell[axis]) for b in outcome.best for axis in b.edges
    ):
        words = f"best at {axis} = {value:g}, the edge of the grid: values beyond it may be better"
        tell("note", label, rounds, rounds, words)


def _run(
    grid: Grid,
    metric: str,
    directory: pathlib.Path | None,
    claimed: Claim,
    tell: Tell,
    files: ProgressFiles,
    callbacks: Sequence[CallbackSetup],
) -> Outcome:
    parts, labels = dict(claimed.finished), [entry.label for entry in grid.config.algorithms]
    rounds = grid.config.rounds
    for words in claimed.notes:
        tell("note", "", 0, 0, words)
    tell("note", "", 0, 0, f"{len(grid.cells)} cells: {shape_in_words(grid.axes)}")
    cells, references, watch = [], [], None
    if not set(labels) <= parts.keys():
        cells = resolve_cells(grid.cells, tell)
        _check_cells(cells, metric)
        watch = Watch.of(cells[0], directory, tell, callbacks)
        data = sum(checksum_of(each) for each in _different(cells)) if files.is_on else 0
        alone = files.references(data, lambda: _references(cells, tell))
        references = [preparation.required_of(cell, each) for cell, each in zip(cells, alone, strict=True)]
        for place, (cell, each) in enumerate(zip(cells, references, strict=True)):
            preparation.check_requirement(parts_of(parts, grid.axes, place), each, cell)
    for position, label in enumerate(labels):
        if label in parts:
            tell("note", label, rounds, rounds, "already in the results, not repeated")
            continue
        with about_algorithm(label):
            assert watch is not None
            found = _algorithm(cells, position, references, tell, files, grid.axes, watch)
        parts[label] = (
            unstack_cells([each for each, _ in found], grid.axes),
            unstack_cells([each for _, each in found], grid.axes),
        )
        if directory is not None and processes.is_first():
            save(directory, *join(grid, parts), dumps(grid.config))
            tell("saved", label, rounds, rounds, "")
        files.finished(label)
    files.all_finished()
    return outcome_of(*join(grid, parts))


def outcome_of(metrics: xr.Dataset, records: xr.Dataset) -> Outcome:
    """What a sweep's results say: the best cells, what diverged, and which losses are infinite."""
    chosen = best(metrics, metrics.attrs["metric"])
    return Outcome(metrics, records, chosen, _diverged(metrics), infinite_losses(metrics))


def check(grid: Grid) -> str:
    """The sweep's metric; raises a ConfigError if it is unknown, or the config's data cannot give it."""
    assert grid.config.sweep is not None
    metric = grid.config.sweep.metric
    check_metric("sweep.metric", metric, METRICS, grid.config.data)
    if grid.config.save_models != "none":
        got = grid.config.save_models
        raise ConfigError(f"save_models: expected 'none' in a sweep, which saves no models, got {got!r}")
    return metric


def _world(cell: Setup) -> tuple[int, int]:
    """A key that cells with the same data and model have in common."""
    return id(cell.federation), id(cell.task)


def _different(cells: Sequence[Setup]) -> list[Federation]:
    """The federations of all cells, each once."""
    return list({id(cell.federation): cell.federation for cell in cells}.values())


def _check_cells(cells: Sequence[Setup], metric: str) -> None:
    """Builds every algorithm of every cell; of cells with the same data and model, the first one is traced."""
    seen = set()
    for cell in cells:
        if cell.task.score is None and metric not in OF_LOSSES:
            raise ConfigError(
                f"sweep.metric: expected a metric of losses for a task without a score, e.g. average_loss or "
                f"average_valid_loss, got {metric!r}; valid names are "
                f"{', '.join(name for name in METRICS if name in OF_LOSSES)}"
            )
        preparation.check_test_rows(cell.federation)
        experiment.check(cell, rehearsed=_world(cell) not in seen, swept=True)
        seen.add(_world(cell))


def _references(cells: Sequence[Setup], tell: Callable[..., None]) -> list[Reference]:
    """The standalone models of every cell."""
    found: dict[int, Reference] = {}
    ways_of = lambda place: (_world(cells[place]), cells[place].execution, cells[place].alone)  # noqa: E731
    for places in _by(range(len(cells)), ways_of):
        first, locals = cells[places[0]], [cells[place].standalone for place in places]
        count = len(set(map(repr, locals)))
        ways = f", in {count} ways" if count > 1 else ""
        population = first.clients + first.unseen
        tell("standalone", "", 0, first.rounds, f"training {population} standalone models per seed{ways}")
        how: dict[str, Any] = {"seeds": first.seeds, "execution": first.execution, **first.alone}
        each = standalone_sweep(first.task, first.federation, locals, **how)
        found |= dict(zip(places, each, strict=True))
    return [found[place] for place in range(len(cells))]


def _by(places: Sequence[int], key: Callable[[int], Any]) -> list[list[int]]:
    """Places of cells with equal keys."""
    found: dict[str, list[int]] = {}
    for place in places:
        found.setdefault(repr(key(place)), []).append(place)
    return list(found.values())


def _algorithm(
    cells: Sequence[Setup],
    position: int,
    references: Sequence[Reference],
    tell: Callable[..., None],
    files: ProgressFiles,
    axes: Sequence[Axis],
    watch: Watch,
) -> list[tuple[xr.Dataset, xr.Dataset]]:
    """Metrics and records of one algorithm in every cell; models are not kept, since they would fill the memory."""
    label, rounds = cells[0].labels[position], cells[0].rounds

    def alone(place: int) -> Any:
        """What the algorithm depends on: its cell without the other algorithms."""
        cell, required = cells[place], np.asarray(references[place].required)
        settings = (cell.clients_per_round, cell.rounds, cell.evaluate_every, cell.standalone, cell.execution)
        settings += (cell.non_finite, cell.alone, reads_requirement(cell.algorithms[position]) and required.tobytes())
        return _world(cell), settings, cell.algorithms[position]

    same = _by(range(len(cells)), alone)
    firsts = [places[0] for places in same]
    jobs: list[list[int]] = []
    plans = {}
    run_of = lambda place: (_world(cells[place]), cells[place].execution, cells[place].non_finite)  # noqa: E731
    for places in _by(firsts, run_of):
        for place in places:
            plans[place] = build_plan(cells[place], cells[place].algorithms[position], references[place])
        jobs += [[places[i] for i in members] for members in groups([plans[place] for place in places])]
    programs = f"{len(jobs)} program" + ("s" if len(jobs) > 1 else "")
    tell("note", label, 0, len(jobs) * rounds, f"{len(firsts)} different cells in {programs}")
    found: dict[int, tuple[xr.Dataset, xr.Dataset]] = {}
    for job, members in enumerate(jobs):

        def progress(block: Block, done: int = job * rounds) -> None:
            tell("train", label, done + block.round, len(jobs) * rounds, "")

        def held(memory: Memory) -> None:
            for words in sentences(memory):
                tell("note", label, 0, len(jobs) * rounds, words)

        tell("train", label, job * rounds, len(jobs) * rounds, "")
        cell = cells[members[0]]
        try:
            results = sweep(
                [plans[place] for place in members],
                cell.federation,
                rounds=rounds,
                seeds=cell.seeds,
                references=[references[place] for place in members],
                evaluate_every=cell.evaluate_every,
                callbacks=(progress, watch.callback(label, cells=members)),
                execution=cell.execution,
                on_memory=held,
                non_finite=cell.non_finite,
                checkpoint=files.checkpoint(label, f"program_{job}"),
            )
        except NotFinite as stop:
            files.finished(label)  # so that resuming runs it again
            raise stop.of(label, values_of(axes, members[stop.plan])) from None
        for place, each in zip(members, results, strict=True):
            found[place] = (each.metrics, each.records)
            for diverged in each.divergences:
                tell("note", label, diverged.round, len(jobs) * rounds, f"cell {place} {diverged}; frozen there")
            for loss in each.infinite:
                tell("note", label, loss.round or 0, len(jobs) * rounds, f"cell {place}: {loss}")
    for first, *others in same:  # of which only the requirement by which they are judged may differ
        found |= {place: (judged_by(found[first][0], references[place]), found[first][1]) for place in others}
    return [found[place] for place in range(len(cells))]


def paths(grid: Grid) -> str:
    """The paths of the axes by name, as JSON, for the attributes of results."""
    return json.dumps({axis.name: axis.path for axis in grid.axes})


def join(grid: Grid, parts: Parts) -> tuple[xr.Dataset, xr.Dataset]:
    """Metrics and records of the algorithms that are finished, with the grid among their attributes."""
    assert grid.config.sweep is not None
    labels, own = [entry.label for entry in grid.config.algorithms], paths(grid)
    metrics, records = experiment.join(grid.config.name, labels, parts, None, grid.config.metrics.opt_out_threshold)
    return metrics.assign_attrs(grid=own, metric=grid.config.sweep.metric), records.assign_attrs(grid=own)


def _diverged(metrics: xr.Dataset) -> tuple[tuple[str, dict[str, Any], int, int], ...]:
    names = axes_of(metrics)
    table = metrics["diverged"].transpose("algorithm", *names, "seed")
    found = []
    for place in np.argwhere(table.values >= 0):
        label, *cell, seed = (table[dim].values.tolist()[i] for dim, i in zip(table.dims, place, strict=True))
        found.append((label, dict(zip(names, cell, strict=True)), seed, int(table.values[tuple(place)])))
    return tuple(found)
