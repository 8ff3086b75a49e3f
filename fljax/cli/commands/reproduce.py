"""``fljax reproduce``, which makes the numbers of a published table and prints them beside the printed ones."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fljax.cli import reproducing
from fljax.cli.options import ReproduceOptions
from fljax.cli.printing import console, fail, print_json
from fljax.cli.running import Context, saving_of
from fljax.core.texts.plain import tell

if TYPE_CHECKING:
    import xarray as xr

    from fljax.config.keys import Published as Chosen
    from fljax.published.beside import Compared

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

        compared = beside(folders.load(run)[0], rows)
        places = {cell_of(each.published): run for each in compared}
    else:
        # Before anything is computed.
        saving_of(context, options.checkpoint_every, options.keep_checkpoints, options.force)
        sources = reproducing.sources_of(table, rows, options)
        compared, places = reproducing.numbers_of(context, rows, sources, options)
    if options.as_json:
        print_json(_everything(table, compared, options.quick))
    else:
        _print_everything(table, compared, options.quick, run is not None)
    if options.save is not None:
        count = reproducing.save(options.save, compared, places)
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
        table = Table(title=setting, caption=said or None)
        table.add_column("algorithm")
        for metric, split in columns:
            table.add_column(f"{metric}\n{split}\nprinted", justify="right", overflow="fold")
            if ours:
                table.add_column("\n\nours", justify="right")
        for algorithm in dict.fromkeys(row.published.algorithm for row in rows):
            cells = []
            for column in columns:
                # Two tables may print the same number.
                own = [r for r in rows if (r.published.metric, r.published.split) == column]
                found = next((r for r in own if r.published.algorithm == algorithm), None)
                metric = column[0]
                cells.append("–" if found is None else number(found.published.mean, found.published.std, metric))
                if ours:
                    cells.append("–" if found is None else _our_number(found))
            table.add_row(algorithm, *cells)
        terminal.print(table)


def print_cells(compared: Sequence[Compared], mark: str = "") -> None:
    """Prints one table per setting, one line per cell: printed, ours, the difference and the verdict."""
    from fljax.published import verdicts
    from fljax.published.beside import caption, number

    for setting, rows in _by_setting(compared).items():
        said = "; ".join(each for each in (caption([row.published for row in rows]), mark, _gone(rows)) if each)
        table = Table(title=setting, caption=said or None)
        for name in ("metric", "split", "algorithm"):
            table.add_column(name)
        for name in ("printed", "ours", "seeds", "difference / error"):
            table.add_column(name, justify="right")
        table.add_column("verdict", overflow="fold")
        for row in rows:
            own, metric = row.published, row.published.metric
            table.add_row(
                metric,
                own.split,
                own.algorithm,
                number(own.mean, own.std, metric),
                _our_number(row),
                str(row.seeds or "–"),
                _signed(verdicts.errors_apart(own, row.sample), 1),
                str(verdicts.judge_number(own, row.sample, row.missing)),
            )
        console(170).print(table)


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
    from fljax.published.tables import cell_of
    from fljax.published.verdicts import claims_of, judge_all, summarise_columns

    mark = NOT_COMPARABLE if quick else ""
    if not of_run and all(math.isnan(each.mean) for each in compared):
        print_beside(compared, ours=False)
        return
    print_cells(compared, mark)
    orders = Table(title="Orders of algorithms", caption=mark or None)
    for name in ("setting", "metric", "agree", "differ", "undecided", "not run", "Kendall's tau"):
        orders.add_column(name, justify="left" if name in ("setting", "metric") else "right")
    for each in summarise_columns([(row.published, row.sample) for row in compared]):
        counts = (str(count) for count in (each.agrees, each.differs, each.undecided, each.not_run))
        orders.add_row(", ".join(each.setting), each.metric, *counts, _signed(each.tau, 2))
    console(170).print(orders)
    claims = [claim for claim in claims_of(table) if _is_about(claim, compared)]
    if not claims:
        return
    said = Table(title=f"Claims about {table}", caption=mark or None)
    for name in ("claim", "place in the paper", "verdict"):
        said.add_column(name, overflow="fold")
    for judged in judge_all(claims, {cell_of(row.published): row.sample for row in compared}):
        about = f"{judged.claim.statement} ({judged.claim.dataset}, {judged.claim.partition}, {judged.claim.split})"
        said.add_row(about, judged.claim.printed, str(judged.verdict))
    console(170).print(said)


def _is_about(claim: Any, compared: Sequence[Compared]) -> bool:
    """Whether the rows have the claim's data set and partition, or the claim is about many."""
    settings = {(row.published.dataset, row.published.partition) for row in compared}
    return claim.best_in is not None or (claim.dataset, claim.partition) in settings


def _everything(table: str, compared: Sequence[Compared], quick: bool) -> Mapping[str, Any]:
    from fljax.published.tables import cell_of
    from fljax.published.verdicts import claims_of, judge_all, summarise_columns

    claims = [claim for claim in claims_of(table) if _is_about(claim, compared)]
    judged = judge_all(claims, {cell_of(row.published): row.sample for row in compared})
    return {
        "quick": quick,
        "cells": reproducing.in_json(compared),
        "columns": [each._asdict() for each in summarise_columns([(row.published, row.sample) for row in compared])],
        "claims": [
            {
                "name": each.claim.name,
                "statement": each.claim.statement,
                "printed": each.claim.printed,
                "verdict": each.verdict._asdict(),
                "numbers": {label: number._asdict() for label, number in each.numbers.items()},
            }
            for each in judged
        ],
    }


def _list(table: str | None, run: pathlib.Path | None, as_json: bool) -> None:
    """Prints what tables cost and need."""
    from fljax.published.tables import read, tables

    if run is not None:
        raise ValueError("expected --list without a run folder, got both")
    if table is not None:
        read(table)  # an unknown name is an error
    found = reproducing.costs(list(tables()) if table is None else [table])
    if as_json:
        print_json([each._asdict() for each in found])
        return
    shown = Table(
        title="What published tables need",
        caption="client-rounds: methods x seeds x rounds x clients per round; minutes: on 2 cores, where a report says",
    )
    for name in ("table", "data set", "data", "runs", "client-rounds", "minutes"):
        shown.add_column(name, justify="left" if name in ("table", "data set", "data") else "right", overflow="fold")
    for each in found:
        part = "" if each.measured == each.settings else f" ({each.measured} of {each.settings} runs)"
        minutes = "–" if math.isnan(each.minutes) else f"{each.minutes:.0f}{part}"
        shown.add_row(
            each.table,
            each.dataset,
            each.data if each.is_here else f"not here: {each.data}",
            str(each.settings),
            f"{each.local_runs:,}",
            minutes,
        )
    console(150).print(shown)
