"""``fljax reproduce``, which prints published numbers beside those of a run."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fljax.cli.printing import Json, console, print_json

if TYPE_CHECKING:
    import xarray as xr

    from fljax.config.keys import Published as Chosen
    from fljax.reproduce import Compared


def reproduce(
    table: Annotated[str, typer.Argument(help="A published table: see fljax list tables.")],
    run: Annotated[pathlib.Path | None, typer.Argument(help="A run folder whose numbers stand beside it.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only rows about this data set, as the table names it.")] = None,
    partition: Annotated[str | None, typer.Option(help="Only rows whose partition contains this.")] = None,
    as_json: Json = False,
) -> None:
    """Print a published table, with the numbers of a run beside it."""
    import xarray as xr

    from fljax import folders, published_tables, verdicts
    from fljax import reproduce as published

    rows = published_tables.select([table], dataset, partition)
    metrics = xr.Dataset(coords={"algorithm": []}) if run is None else folders.load(run)[0]
    compared = published.beside(metrics, rows)
    if as_json:
        ours = [{"our_mean": each.mean, "our_spread": each.spread} for each in compared]
        kind = [{"spread": verdicts.spread(each.published.paper)} for each in compared]
        print_json([{**each.published._asdict(), **a, **b} for each, a, b in zip(compared, ours, kind, strict=True)])
        return
    print_beside(compared, ours=run is not None)


def check_chosen(chosen: Chosen) -> None:
    """Raises a ValueError if no published numbers match the config's choice."""
    from fljax import published_tables

    published_tables.select(chosen.tables, chosen.dataset, chosen.partition)


def print_chosen(metrics: xr.Dataset, chosen: Chosen) -> None:
    """Prints the published numbers that a config selects beside the numbers of its run."""
    from fljax import published_tables
    from fljax import reproduce as published

    rows = published_tables.select(chosen.tables, chosen.dataset, chosen.partition)
    print_beside(published.beside(metrics, rows))


def print_beside(compared: Sequence[Compared], ours: bool = True) -> None:
    """Prints one table per setting, one line per algorithm, with the printed and our number of each metric."""
    from fljax.reproduce import caption, number

    terminal = console(160)
    settings = dict.fromkeys((row.published.paper, row.published.dataset, row.published.partition) for row in compared)
    for setting in settings:
        rows = [
            row for row in compared if (row.published.paper, row.published.dataset, row.published.partition) == setting
        ]
        columns = list(dict.fromkeys((row.published.metric, row.published.split) for row in rows))
        source = dict.fromkeys(row.published.table for row in rows)
        said = caption([row.published for row in rows]) or None
        table = Table(title=f"{setting[0]}, {', '.join(source)}: {setting[1]}, {setting[2]}", caption=said)
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
                    cells.append("–" if found is None else number(found.mean, found.spread, metric))
            table.add_row(algorithm, *cells)
        terminal.print(table)
