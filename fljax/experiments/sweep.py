"""Sweeps: every algorithm of a config in every cell of a grid, with as few compiled programs as possible.

A part, for example a job of a cluster, is a sweep of some algorithms over some values of each axis, in a run folder of
its own, ``parts/NUMBER-of-COUNT`` in that of the sweep: each has its own lock, checkpoints, log and results.
"""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.config import ConfigError, dumps
from fljax.config.name_resolution import check_metric, resolved_of
from fljax.config.reading import Grid
from fljax.core import processes
from fljax.core.files import locked, write
from fljax.core.sameness import Differences, compared
from fljax.experiments import conductor
from fljax.experiments.conductor import Outcome, Saving
from fljax.experiments.inputs import preparation
from fljax.experiments.inputs.setup import CallbackSetup, Setup, resolve_cells
from fljax.experiments.programs import ahead_of_sweep, world_key
from fljax.experiments.programs import check_setup as check_plans
from fljax.metrics.registry import OF_LOSSES, SCALARS
from fljax.metrics.scores import scalars_of, score_name
from fljax.results import Results, folders
from fljax.results.clients import with_common_names
from fljax.results.events import OnEvent, Parts
from fljax.results.identity import difference, flat, join_environments
from fljax.results.sweeps import Axis, joined_parts, shape_in_words

METRICS = tuple(SCALARS)


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
    """Runs every algorithm in every cell as ``run.run`` does; ``whole``: edges of the grid are worth a note."""
    processes.check_same(lambda: flat(dumps(grid.config)) | {"grid": repr(paths(grid))})
    check_grid(grid)
    experiment = _experiment(grid)
    text = "" if directory is None else dumps(grid.config)
    opening = conductor.opened(directory, text, experiment.grid, resume=resume, on_event=on_event, saving=saving)
    with opening as (outputs, folder):
        log = outputs.log
        log.note(f"{len(grid.cells)} cells: {shape_in_words(grid.axes)}")
        compute = None
        with contextlib.ExitStack() as stack:
            if not set(experiment.labels) <= folder.finished.keys():
                cells = resolve_cells(grid.cells, log)
                _check_cells(cells, str(experiment.metric))
                if directory is not None:
                    experiment = experiment._replace(data=conductor.checksum_of_cells(cells))
                    conductor.check_data(folder, experiment.data, outputs.files)
                builder = conductor.CallbackBuilder.of(cells[0], directory, log, callbacks)
                ahead = stack.enter_context(ahead_of_sweep(cells, folder.finished))
                references = conductor.trained_alone(cells, grid.axes, outputs, folder)
                compute = conductor.SweptCells(grid.axes, cells, references, outputs, builder, ahead).compute
            outcome = conductor.conduct(experiment, outputs, folder, compute)
        if whole:
            for label, axis, value in dict.fromkeys(
                (best.algorithm, axis, best.cell[axis]) for best in outcome.best for axis in best.edges
            ):
                words = f"best at {axis} = {value:g}, the edge of the grid: values beyond it may be better"
                log.note(words, label, experiment.rounds, experiment.rounds)
        return outcome


def _experiment(grid: Grid) -> conductor.Experiment:
    config, sweep = grid.config, grid.config.sweep
    assert sweep is not None
    labels, threshold = tuple(entry.label for entry in config.algorithms), config.metrics.opt_out_threshold
    return conductor.Experiment(config.name, labels, config.rounds, threshold, paths(grid), sweep.metric)


def paths(grid: Grid) -> str:
    """The paths of the axes by name, as JSON, for the attributes of results."""
    return json.dumps({axis.name: axis.path for axis in grid.axes})


def check_grid(grid: Grid) -> None:
    """Raises a ConfigError if the sweep's metric is unknown, or the config's data cannot give it."""
    assert grid.config.sweep is not None
    metric = grid.config.sweep.metric
    of_scores = scalars_of([score for score in resolved_of(grid.config).scores if not score.lower])
    check_metric("sweep.metric", metric, (*METRICS, *of_scores), grid.config.data)
    if grid.config.save_models != "none":
        got = grid.config.save_models
        raise ConfigError(f"save_models: expected 'none' in a sweep, which saves no models, got {got!r}")


def _check_cells(cells: Sequence[Setup], metric: str) -> None:
    """Builds every algorithm of every cell; of cells with the same data and model, the first one is traced."""
    seen = set()
    for cell in cells:
        if cell.task.score is None and metric not in OF_LOSSES and score_name(metric) is None:
            raise ConfigError(
                f"sweep.metric: expected a metric of losses for a task without a score, e.g. average_loss or "
                f"average_valid_loss, got {metric!r}; valid names are "
                f"{', '.join(name for name in METRICS if name in OF_LOSSES)}"
            )
        preparation.check_test_rows(cell.federation)
        check_plans(cell, rehearsed=world_key(cell) not in seen, swept=True)
        seen.add(world_key(cell))


class Part(NamedTuple):
    """Some algorithms over some values of each axis of a sweep."""

    grid: Grid  # of the part alone
    places: tuple[tuple[int, ...], ...]  # along each axis, the places of the values in the whole sweep

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its algorithms."""
        return tuple(entry.label for entry in self.grid.config.algorithms)


def split(grid: Grid, count: int) -> tuple[Part, ...]:
    """At most ``count`` parts of about as many cells, always the same: pieces of the algorithms and axes."""
    if count < 1:
        raise ValueError(f"expected a positive number of parts, got {count}")
    lengths = [len(grid.config.algorithms), *(len(axis.values) for axis in grid.axes)]
    pieces = _pieces(lengths, count)
    cuts = [
        [tuple(piece.tolist()) for piece in np.array_split(np.arange(n), k)]
        for n, k in zip(lengths, pieces, strict=True)
    ]
    parts = []
    for place in np.ndindex(*pieces):
        algorithms, *places = (cuts[axis][at] for axis, at in enumerate(place))
        parts.append(Part(_narrow(grid, algorithms, places), tuple(places)))
    return tuple(parts)


def _pieces(lengths: Sequence[int], count: int) -> list[int]:
    """Into how many pieces each of several axes is cut: the longest pieces first, at most ``count`` in all."""
    pieces = [1] * len(lengths)
    while True:
        room = [
            axis
            for axis, length in enumerate(lengths)
            if pieces[axis] < length and math.prod(pieces) // pieces[axis] * (pieces[axis] + 1) <= count
        ]
        if not room:
            return pieces
        pieces[max(room, key=lambda axis: lengths[axis] / pieces[axis])] += 1


def _narrow(grid: Grid, algorithms: Sequence[int], places: Sequence[Sequence[int]]) -> Grid:
    axes = tuple(
        Axis(axis.name, axis.path, tuple(axis.values[at] for at in of_axis))
        for axis, of_axis in zip(grid.axes, places, strict=True)
    )
    number = np.arange(len(grid.cells)).reshape([len(axis.values) for axis in grid.axes])
    cells = [grid.cells[at] for at in number[np.ix_(*places)].ravel()]

    def some(config: Any, **changes: Any) -> Any:
        changes["algorithms"] = tuple(config.algorithms[at] for at in algorithms)
        if (resolved := config.resolved) is None:
            return config.model_copy(update=changes)
        fewer = {name: tuple(getattr(resolved, name)[at] for at in algorithms) for name in ("algorithms", "scenarios")}
        return config.with_resolved(resolved._replace(**fewer), changes)

    assert grid.config.sweep is not None
    values = grid.config.sweep.model_copy(update={"grid": {axis.path: axis.values for axis in axes}})
    return Grid(some(grid.config, sweep=values), axes, tuple(some(cell) for cell in cells))


def folder_of(directory: pathlib.Path, number: int, count: int) -> pathlib.Path:
    """The run folder of part ``number``, from 1, of ``count``."""
    return directory / folders.PARTS / f"{number}-of-{count}"


def count_of(directory: pathlib.Path) -> int | None:
    """Into how many parts the sweep of a folder was divided; None if no part has begun."""
    names = (re.fullmatch(r"\d+-of-(\d+)", path.name) for path in (directory / folders.PARTS).glob("*"))
    counts = sorted({int(name[1]) for name in names if name})
    if len(counts) > 1:
        raise ValueError(
            f"expected the parts of one division, got those of {counts} in {str(directory / folders.PARTS)!r}: "
            "remove those of all but one"
        )
    return counts[0] if counts else None


def begin_part(grid: Grid, directory: pathlib.Path, number: int, count: int) -> Part | None:
    """Makes the folders of the sweep and of part ``number`` from 1; None: there are fewer. JAX does not start."""
    check_grid(grid)
    folders.check_own_files(directory)
    text, parts, used = dumps(grid.config), split(grid, count), folders.is_used(directory)
    # Parts may begin at the same time: each waits for the others.
    with locked(directory / folders.LOCK, folders.PATIENCE):
        if (directory / folders.PARTS).exists():
            _check_same(directory, text, number, count)
        else:
            folders.check_new(directory, used, remedy="")
            write(directory / folders.CONFIG, text.encode())
            # Also by a part without cells: others that wait here see whose config it is.
            (directory / folders.PARTS).mkdir()
        if number > len(parts):
            return None
        folder_of(directory, number, count).mkdir(parents=True, exist_ok=True)
    return parts[number - 1]


def _check_same(directory: pathlib.Path, text: str, number: int, count: int) -> None:
    """Raises a ValueError if the parts of a folder are of another config or division."""
    where, written, before = str(directory), folders.config_of(directory), count_of(directory)
    if written is None:
        raise ValueError(
            f"expected {folders.CONFIG} of the sweep beside its parts in {where!r}, got none that can be read"
        )
    if (changed := difference(written, text)) is not None:
        raise ValueError(
            f"expected the config of the parts in {where!r}, got a changed one: {changed} (take another folder for it)"
        )
    if before not in (None, count):
        raise ValueError(f"expected a part of {before}, as those in {where!r} are, got {number}/{count}")


def run_part(part: Part, directory: pathlib.Path, **how: Any) -> Outcome:
    """Runs a part in its folder, as ``run`` does with arguments ``how``, and goes on with what is there."""
    return run(part.grid, directory=directory, resume=True, whole=False, **how)


def is_finished(part: Part, directory: pathlib.Path) -> bool:
    """Whether the part's folder ``directory`` has the results of all of its algorithms."""
    return set(part.labels) <= _results(part, directory).keys()


def _results(part: Part, directory: pathlib.Path) -> Parts:
    if not directory.is_dir():
        return {}
    return folders.read_finished(directory, dumps(part.grid.config), paths(part.grid))


def _same_record(parts: Sequence[pathlib.Path], force: bool) -> tuple[str, str]:
    """The record that the results of parts have in common, and a sentence of what differs; a version needs no force."""
    (first, version), *others = [folders.record_in(part) for part in parts]
    changed: dict[str, None] = {}
    for part, (record, _) in zip(parts[1:], others, strict=True):
        found = compared(json.loads(first or "{}"), json.loads(record or "{}")).changed if first and record else ()
        if found and not force:
            raise ValueError(
                f"expected parts of one experiment, got {part.name} that differs from {parts[0].name}: "
                f"{' and '.join(found)} (--force joins them, and the results say so)"
            )
        changed |= dict.fromkeys(found)
    versions = sorted({version, *(version for _, version in others)})
    words = f"fljax {' and '.join(versions)} wrote the parts" if len(versions) > 1 else ""
    return first, "; ".join(filter(None, [Differences(tuple(changed)).sentence, words]))


def join_parts(
    grid: Grid, directory: pathlib.Path, count: int, force: bool = False
) -> tuple[Outcome | None, tuple[int, ...], int]:
    """The algorithms whose parts have ended (None: there are none), also written to the sweep's folder, without JAX.

    And the numbers, from 1, of the parts that lack results, and how many parts have cells.
    """
    parts = dict(enumerate(split(grid, count), 1))
    results = {number: _results(part, folder_of(directory, number, count)) for number, part in parts.items()}
    unfinished = tuple(number for number, part in parts.items() if set(part.labels) - results[number].keys())
    whole: dict[str, Results] = {}
    environments: dict[int, pathlib.Path] = {}
    for label in (entry.label for entry in grid.config.algorithms):
        numbers = [number for number, part in parts.items() if label in part.labels]
        if all(label in results[number] for number in numbers):
            pieces = [(parts[number].places, results[number][label]) for number in numbers]
            named = with_common_names(metrics for _, (metrics, _) in pieces)
            metrics = [(places, of_part) for (places, _), of_part in zip(pieces, named, strict=True)]
            records = [(places, records) for places, (_, records) in pieces]
            whole[label] = Results(joined_parts(grid.axes, metrics), joined_parts(grid.axes, records))
            environments |= {number: folder_of(directory, number, count) / folders.ENVIRONMENT for number in numbers}
    if not whole:
        return None, unfinished, len(parts)
    text, experiment = dumps(grid.config), _experiment(grid)
    record, forced = _same_record([folder_of(directory, number, count) for number in sorted(environments)], force)
    with folders.claim(directory, text, True, experiment.grid, computes=False):
        joined = conductor.join(experiment, whole, forced=forced)
        joined.metrics.attrs.pop(conductor.DATA, None)  # that of one part
        join_environments(directory / folders.ENVIRONMENT, dict(sorted(environments.items())))
        folders.save_results(directory, joined, text, record)
    return conductor.outcome_of(joined), unfinished, len(parts)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as Slurm writes an array: ``2,5-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
