"""``fljax reproduce``: runs what a published table lacks, and prints our numbers beside the printed ones."""

from __future__ import annotations

import datetime
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fljax.cli.printing import as_table, console, fail, print_json
from fljax.cli.running import RUNS, Context, ReproduceOptions, computing, saving_of, start_jax
from fljax.core.plain import tell

if TYPE_CHECKING:
    import xarray as xr

    from fljax.config import Config
    from fljax.config.keys import Published as Chosen
    from fljax.published.beside import Compared, TableRun
    from fljax.published.tables import Cell, Published
    from fljax.published.verdicts import Judged


OUT, QUICK = "reproduced", "quick"


class TableSetting(NamedTuple):
    """A setting of a table: its run, and whether its numbers can be had."""

    config: Config
    folder: pathlib.Path
    rows: list[Published]  # of the table
    data: str  # what to do to get the data set; "" if it is there


def sources_of(table: str, rows: Sequence[Published], options: ReproduceOptions) -> list[TableSetting]:
    """The runs that make these rows of a table."""
    from fljax.published.beside import load_run, rows_of, table_runs
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
            sources.append(TableSetting(config, folder, chosen, missing_data(config.data.dataset)))
    return sources


def missing_data(dataset: str) -> str:
    """The command that gets a data set, if it is not on this machine; else "". Data of one's own count as there."""
    from fljax import data

    state = data.status().get(dataset, "")
    return f"fljax data prepare {dataset}" if "not here" in state else ""


def numbers_of(
    context: Context, rows: Sequence[Published], sources: Sequence[TableSetting], options: ReproduceOptions
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


def _metrics(context: Context, source: TableSetting, options: ReproduceOptions) -> tuple[xr.Dataset | None, str]:
    """The results of a run; or None, and what is missing."""
    from fljax.results import folders

    there = (source.folder / folders.RESULTS).is_file()
    if not options.no_run and not source.data:
        return _run(context, source, options), ""
    if there:
        return folders.load_results(source.folder)[0], ""
    if source.data:
        return None, f"no data set {source.config.data.dataset}: {source.data}"
    return None, f"no results in {source.folder}"


def _run(context: Context, source: TableSetting, options: ReproduceOptions) -> xr.Dataset:
    start_jax(options.cache)
    from fljax.experiments import run as experiment

    shown = options._replace(quiet=options.quiet or options.as_json)
    with computing(context, shown, lambda: source.folder, context.obj.again()) as (_, compute):
        outcome = compute(experiment.run, source.config, resume=True)
    for label, seed, round_ in outcome.diverged:
        fail(f"{label} diverged with seed {seed} in round {round_}; all is saved in {source.folder}", 1)
    return outcome.metrics


def write_cells(path: pathlib.Path, compared: Sequence[Compared], places: Mapping[Cell, pathlib.Path]) -> int:
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
    from fljax.published.beside import load_run, table_runs

    load = functools.cache(load_run)  # tables share runs
    lines = []
    for name in names:
        by_data: dict[str, list[tuple[TableRun, Config]]] = {}
        for run in table_runs(name):
            by_data.setdefault(load(run).data.dataset, []).append((run, load(run)))
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


NOT_COMPARABLE = "QUICK: two rounds of one seed, to see that everything runs; the numbers mean nothing"


def reproduce(
    context: Context,
    table: Annotated[str | None, typer.Argument(help="A published table: see fljax list tables.")] = None,
    run: Annotated[
        pathlib.Path | None, typer.Argument(help="A run folder whose numbers stand beside it; nothing is run.")
    ] = None,
    *,
    options: ReproduceOptions,
) -> int:
    """Run what a published table lacks, or go on with it, and print our numbers, verdicts and claims beside it."""
    if options.costs:
        _list(table, run, options.as_json)
        return 0
    if table is None:
        raise ValueError("expected a table (fljax list tables), or --list, got neither")
    if run is not None and (options.quick or options.out is not None or options.seeds is not None):
        raise ValueError("expected a run folder, or --out, --seeds or --quick, got both")
    if options.save is not None and options.quick:
        raise ValueError("expected --save without --quick, whose numbers mean nothing, got both")
    from fljax.published import tables as published_tables
    from fljax.published.tables import cell_of
    from fljax.results import folders

    rows = published_tables.select([table], options.dataset, options.partition)
    if run is not None:
        from fljax.published.beside import beside

        compared = beside(folders.load_results(run)[0], rows)
        places = {cell_of(each.published): run for each in compared}
    else:
        # Before anything is computed.
        saving_of(context, options)
        sources = sources_of(table, rows, options)
        compared, places = numbers_of(context, rows, sources, options)
    if options.as_json:
        print_json(_everything(table, compared, options.quick))
    else:
        _print_everything(table, compared, options.quick, run is not None)
    if options.save is not None:
        count = write_cells(options.save, compared, places)
        if not options.as_json:
            tell(f"Cells:   {count} in {options.save}")
    if run is None and not options.no_run and all(math.isnan(each.mean) for each in compared):
        reasons = "; ".join(dict.fromkeys(each.missing for each in compared if each.missing))
        return fail(f"expected data for {table}, got none of it: {reasons}", 1)
    return 0


def check_chosen(chosen: Chosen) -> None:
    """Raises a ValueError if no published numbers match the config's choice."""
    from fljax.published import tables as published_tables

    published_tables.select(chosen.tables, chosen.dataset, chosen.partition)


def print_chosen(metrics: xr.Dataset, chosen: Chosen) -> None:
    """Prints the published numbers that a config selects beside the numbers of its run."""
    from fljax.published import beside as published
    from fljax.published import tables as published_tables

    rows = published_tables.select(chosen.tables, chosen.dataset, chosen.partition)
    print_beside(published.beside(metrics, rows))


def print_beside(compared: Sequence[Compared], ours: bool = True) -> None:
    """Prints one table per setting, one line per algorithm, with the printed and our number of each metric."""
    from fljax.published.beside import caption, number

    terminal = console(160)
    for setting, rows in _by_setting(compared).items():
        columns = list(dict.fromkeys((row.published.metric, row.published.split) for row in rows))
        said = "; ".join(each for each in (caption([row.published for row in rows]), _gone(rows, ours)) if each)
        heads = [(f"{metric}\n{split}\nprinted", *["\n\nours"] * ours) for metric, split in columns]
        lines = [["algorithm", *(head for pair in heads for head in pair)]]
        by_place: dict[tuple[str, str, str], Compared] = {}
        for row in rows:  # two tables may print the same number
            by_place.setdefault((row.published.algorithm, row.published.metric, row.published.split), row)
        for algorithm in dict.fromkeys(row.published.algorithm for row in rows):
            cells = []
            for metric, split in columns:
                found = by_place.get((algorithm, metric, split))
                cells.append("–" if found is None else number(found.published.mean, found.published.std, metric))
                if ours:
                    cells.append("–" if found is None else _our_number(found))
            lines.append([algorithm, *cells])
        terminal.print(as_table(lines, setting, said, fold=True))


def print_cells(compared: Sequence[Compared], mark: str = "") -> None:
    """Prints one table per setting, one line per cell: printed, ours, the difference and the verdict."""
    from fljax.published import verdicts
    from fljax.published.beside import caption, number

    for setting, rows in _by_setting(compared).items():
        said = "; ".join(each for each in (caption([row.published for row in rows]), mark, _gone(rows)) if each)
        names = ("metric", "split", "algorithm")
        lines = [[*names, "printed", "ours", "seeds", "difference / error", "verdict"]]
        for row in rows:
            own, metric = row.published, row.published.metric
            cells = [
                metric,
                own.split,
                own.algorithm,
                number(own.mean, own.std, metric),
                _our_number(row),
                str(row.seeds or "–"),
                _signed(verdicts.errors_apart(own, row.sample), 1),
                str(verdicts.judge_number(own, row.sample, row.missing)),
            ]
            lines.append(cells)
        console(170).print(as_table(lines, setting, said, words=[*names, "verdict"], fold=True))


def _our_number(row: Compared) -> str:
    """Our number, with a dagger if seeds of it diverged."""
    from fljax.published.beside import number

    return number(row.mean, row.spread, row.published.metric) + "†" * bool(row.diverged)


def _gone(rows: Sequence[Compared], ours: bool = True) -> str:
    """What the daggers of a table mean; nothing without daggers."""
    words = dict.fromkeys(f"{row.published.algorithm} {row.diverged}" for row in rows if row.diverged)
    return f"†: diverged and frozen there: {'; '.join(words)}" if ours and words else ""


def _by_setting(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Cells by the title of their table: paper, tables, data set and partition."""
    found: dict[tuple[str, str, str], list[Compared]] = {}
    for row in compared:
        found.setdefault((row.published.paper, row.published.dataset, row.published.partition), []).append(row)
    titles = {}
    for (paper, dataset, partition), rows in found.items():
        source = dict.fromkeys(row.published.table for row in rows)
        titles[f"{paper}, {', '.join(source)}: {dataset}, {partition}"] = rows
    return titles


def _signed(value: float, digits: int) -> str:
    if math.isinf(value):
        return "+∞" if value > 0 else "-∞"
    return "–" if math.isnan(value) else f"{value:+.{digits}f}"


def _print_everything(table: str, compared: Sequence[Compared], quick: bool, of_run: bool) -> None:
    """Cells, orders and claims; only what the paper prints, if we have no numbers and none were given (``of_run``)."""
    from fljax.published.verdicts import summarise_columns

    mark = NOT_COMPARABLE if quick else ""
    if not of_run and all(math.isnan(each.mean) for each in compared):
        print_beside(compared, ours=False)
        return
    print_cells(compared, mark)
    orders = [["setting", "metric", "agree", "differ", "undecided", "not run", "Kendall's tau"]]
    for each in summarise_columns([(row.published, row.sample) for row in compared]):
        counts = (str(count) for count in (each.agrees, each.differs, each.undecided, each.not_run))
        orders.append([", ".join(each.setting), each.metric, *counts, _signed(each.tau, 2)])
    console(170).print(as_table(orders, "Orders of algorithms", mark, words=["metric"]))
    lines = [["claim", "place in the paper", "verdict"]]
    for judged in _judged(table, compared):
        about = f"{judged.claim.statement} ({judged.claim.dataset}, {judged.claim.partition}, {judged.claim.split})"
        lines.append([about, judged.claim.printed, str(judged.verdict)])
    if lines[1:]:
        console(170).print(as_table(lines, f"Claims about {table}", mark, words=lines[0], fold=True))


def _judged(table: str, compared: Sequence[Compared]) -> list[Judged]:
    """The claims about many settings, or about the data set and the partition of one of the rows."""
    from fljax.published.tables import cell_of
    from fljax.published.verdicts import claims_of, judge_all

    settings = {(row.published.dataset, row.published.partition) for row in compared}
    claims = [
        each for each in claims_of(table) if each.best_in is not None or (each.dataset, each.partition) in settings
    ]
    return judge_all(claims, {cell_of(row.published): row.sample for row in compared})


def _everything(table: str, compared: Sequence[Compared], quick: bool) -> Mapping[str, Any]:
    from fljax.published.verdicts import summarise_columns

    return {
        "quick": quick,
        "cells": in_json(compared),
        "columns": [each._asdict() for each in summarise_columns([(row.published, row.sample) for row in compared])],
        "claims": [
            {
                "name": each.claim.name,
                "statement": each.claim.statement,
                "printed": each.claim.printed,
                "verdict": each.verdict._asdict(),
                "numbers": {label: number._asdict() for label, number in each.numbers.items()},
            }
            for each in _judged(table, compared)
        ],
    }


def _list(table: str | None, run: pathlib.Path | None, as_json: bool) -> None:
    """Prints what tables cost and need."""
    from fljax.published.tables import read, tables

    if run is not None:
        raise ValueError("expected --list without a run folder, got both")
    if table is not None:
        read(table)  # an unknown name is an error
    found = costs(list(tables()) if table is None else [table])
    if as_json:
        print_json([each._asdict() for each in found])
        return
    lines = [["table", "data set", "data", "runs", "client-rounds", "minutes"]]
    for each in found:
        part = "" if each.measured == each.settings else f" ({each.measured} of {each.settings} runs)"
        minutes = "–" if math.isnan(each.minutes) else f"{each.minutes:.0f}{part}"
        data = each.data if each.is_here else f"not here: {each.data}"
        lines.append([each.table, each.dataset, data, str(each.settings), f"{each.local_runs:,}", minutes])
    caption = "client-rounds: methods x seeds x rounds x clients per round; minutes: on 2 cores, where a report says"
    title, words = "What published tables need", ["data set", "data"]
    console(150).print(as_table(lines, title, caption, words=words, fold=True))
