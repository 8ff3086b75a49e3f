"""The runs of ``fljax reproduce``: what is missing is run, and our numbers are put beside those of the table."""

from __future__ import annotations

import datetime
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fljax.cli.options import ReproduceOptions
from fljax.cli.printing import fail
from fljax.cli.running import RUNS, Context, resumable, saving_of, start_jax
from fljax.experiments.progress_bars import listener, progress_bars

if TYPE_CHECKING:
    import xarray as xr

    from fljax.config import Config
    from fljax.published.beside import Compared
    from fljax.published.runs import TableRun
    from fljax.published.tables import Cell, Published

OUT, QUICK = "reproduced", "quick"


class Source(NamedTuple):
    """A setting of a table: its run, and whether its numbers can be had."""

    config: Config
    folder: pathlib.Path
    rows: list[Published]  # of the table
    data: str  # what to do to get the data set; "" if it is there


def sources_of(table: str, rows: Sequence[Published], options: ReproduceOptions) -> list[Source]:
    """The runs that make these rows of a table."""
    from fljax.published.runs import load_run, rows_of, table_runs
    from fljax.published.tables import cell_of

    wanted = {cell_of(row) for row in rows}
    changes = [] if options.seeds is None else [f"seeds={options.seeds}"]
    out = options.out or RUNS / OUT
    sources = []
    for run in table_runs(table):
        config = load_run(run, changes, options.quick)
        chosen = [row for row in rows_of(config, table) if cell_of(row) in wanted]
        if chosen:
            folder = (out / QUICK if options.quick else out) / config.name
            sources.append(Source(config, folder, chosen, missing_data(config.data.dataset)))
    return sources


def missing_data(dataset: str) -> str:
    """The command that gets a data set, if it is not on this machine; else "". Data of one's own count as there."""
    from fljax import data

    state = data.status().get(dataset, "")
    return f"fljax data prepare {dataset}" if "not here" in state else ""


def numbers_of(
    context: Context, rows: Sequence[Published], sources: Sequence[Source], options: ReproduceOptions
) -> tuple[list[Compared], dict[Cell, pathlib.Path]]:
    """Runs what is missing, or goes on with it; an entry for each row, and the run folders of those with numbers."""
    from fljax.published.beside import Compared, beside
    from fljax.published.tables import cell_of

    by_cell: dict[Cell, Compared] = {}
    places: dict[Cell, pathlib.Path] = {}
    for source in sources:
        metrics, missing = _metrics(context, source, options)
        if metrics is None:
            compared = [Compared(row, math.nan, math.nan, missing) for row in source.rows]
        else:
            compared = beside(metrics, source.rows)
        for number in compared:
            place = cell_of(number.published)
            if place not in by_cell or math.isnan(by_cell[place].mean):
                by_cell[place] = number
                places[place] = source.folder
    nothing = "no config has this setting"
    numbers = [by_cell.get(cell_of(row), Compared(row, math.nan, math.nan, nothing)) for row in rows]
    return numbers, {place: folder for place, folder in places.items() if not math.isnan(by_cell[place].mean)}


def _metrics(context: Context, source: Source, options: ReproduceOptions) -> tuple[xr.Dataset | None, str]:
    """The results of a run; or None, and what is missing."""
    from fljax.results import folders

    there = (source.folder / folders.RESULTS).is_file()
    if not options.no_run and not source.data:
        return _run(context, source, options), ""
    if there:
        return folders.load(source.folder)[0], ""
    if source.data:
        return None, f"no data set {source.config.data.dataset}: {source.data}"
    return None, f"no results in {source.folder}"


def _run(context: Context, source: Source, options: ReproduceOptions) -> xr.Dataset:
    start_jax(options.cache)
    from fljax.experiments import run as experiment

    with (
        resumable(source.folder, context, again=context.obj.again()),
        progress_bars(options.quiet or options.as_json) as progress,
    ):
        outcome = experiment.run(
            source.config,
            directory=source.folder,
            resume=True,
            on_event=listener(progress),
            saving=saving_of(context, options.checkpoint_every, options.keep_checkpoints, options.force),
        )
    for label, seed, round_ in outcome.diverged:
        fail(f"{label} diverged with seed {seed} in round {round_}; all is saved in {source.folder}", 1)
    return outcome.metrics


def save(path: pathlib.Path, compared: Sequence[Compared], places: Mapping[Cell, pathlib.Path]) -> int:
    """Writes our numbers as measured cells (``fljax.published.tables``), with their dates; returns how many."""
    from fljax.core.version import __version__
    from fljax.published.tables import Measured, cell_of, save_cells
    from fljax.results import folders

    cells = []
    for number in compared:
        place = cell_of(number.published)
        if place in places and not math.isnan(number.mean):
            folder = places[place]
            date = datetime.date.fromtimestamp((folder / folders.RESULTS).stat().st_mtime).isoformat()
            gone = f"; diverged: {number.diverged}" if number.diverged else ""
            note = f"fljax {__version__}, {folder.resolve().name}{gone}"
            own = (number.mean, number.spread, number.seeds, number.rounds)
            cells.append(Measured(place, *own, date, note, number.deviation))
    save_cells(path, cells)
    return len(cells)


class Cost(NamedTuple):
    """What a table needs for one data set."""

    table: str
    dataset: str
    data: str  # "here", or the command that gets it
    is_here: bool
    settings: int
    local_runs: int  # methods x seeds x rounds x clients per round, summed over runs
    minutes: float  # on 2 cores, as far as they were measured; NaN if no run was
    measured: int  # number of runs behind ``minutes``


def costs(names: Sequence[str]) -> list[Cost]:
    """What tables cost, one entry for each table and data set."""
    from fljax.published.runs import load_run, table_runs

    loaded: dict[TableRun, Config] = {}
    lines = []
    for name in names:
        by_data: dict[str, list[tuple[TableRun, Config]]] = {}
        for run in table_runs(name):
            config = loaded[run] if run in loaded else loaded.setdefault(run, load_run(run))
            by_data.setdefault(config.data.dataset, []).append((run, config))
        for dataset, runs_of_data in by_data.items():
            minutes = [run.minutes for run, _ in runs_of_data if not math.isnan(run.minutes)]
            total = sum(_local_runs(config) for _, config in runs_of_data)
            missing, spent = missing_data(dataset), sum(minutes) if minutes else math.nan
            lines.append(
                Cost(name, dataset, missing or "here", not missing, len(runs_of_data), total, spent, len(minutes))
            )
    return lines


def _local_runs(config: Config) -> int:
    clients = min(config.participation.clients_per_round, config.data.clients)
    return len(config.algorithms) * len(config.seeds) * config.rounds * clients


def in_json(compared: Sequence[Compared]) -> list[Mapping[str, Any]]:
    """Cells for scripts."""
    from fljax.published import verdicts

    return [
        {
            **number.published._asdict(),
            "our_mean": number.mean,
            "our_spread": number.spread,
            "our_seeds": number.seeds,
            "our_deviation": number.deviation,
            "diverged": number.diverged,
            "spread": verdicts.spread(number.published.paper),
            "errors_apart": verdicts.errors_apart(number.published, number.sample),
            "verdict": verdicts.judge_number(number.published, number.sample, number.missing)._asdict(),
        }
        for number in compared
    ]
