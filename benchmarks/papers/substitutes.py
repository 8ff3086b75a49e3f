"""Our numbers on another data set than a paper's, as measured cells beside the paper's table.

``--run FOLDER --table ipfl_table4_personalized --partition 10:90`` reads the results of a run on Fashion-MNIST, and
writes numbers for the printed rows about 10:90, as if the table had them for FMNIST. Claims name such cells by
``instead``. Algorithms that the table lacks but the file of cells has are written, too.
"""

from __future__ import annotations

import datetime
import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.reporting import RESULTS, Row
from fljax import __version__
from fljax.published import tables
from fljax.published.beside import Compared, beside
from fljax.published.tables import Measured, Published, cell_of, read_cells, save_cells
from fljax.results import folders

CELLS = RESULTS / "cells"


def rows_like(table: str, printed: str, dataset: str, partition: str, committed: Sequence[Measured]) -> list[Published]:
    """The printed rows about a partition, as if they were about another data set; then the committed cells' places."""
    like = tables.select([table], partition=printed)
    rows = [row._replace(dataset=dataset, partition=partition, mean=math.nan, std=math.nan) for row in like]
    place = (like[0].paper, like[0].table, dataset, partition)
    rows += [Published(*each.cell, math.nan, math.nan) for each in committed if tuple(each.cell[:4]) == place]
    return list({cell_of(row): row for row in rows}.values())


def measured(compared: Sequence[Compared], date: str, note: str) -> list[Measured]:
    """The cells of numbers that are there."""
    there = [each for each in compared if not math.isnan(each.mean)]
    return [
        Measured(cell_of(each.published), each.mean, each.spread, each.seeds, each.rounds, date, note, each.deviation)
        for each in there
    ]


def measure(options: Namespace) -> Iterator[Row]:
    """Writes the cells of one run."""
    run = Path(options.run)
    paper = tables.read(options.table)[0].paper
    path = Path(options.save or CELLS / f"{paper.lower().replace('-', '')}.csv")
    committed = read_cells(path) if path.exists() else []
    named = options.named or options.partition
    rows = rows_like(options.table, options.partition, options.dataset, named, committed)
    metrics, _ = folders.load_results(run)
    changed = datetime.date.fromtimestamp((run / folders.RESULTS).stat().st_mtime).isoformat()
    note = f"fljax {__version__}, {options.note or run.resolve().name}"
    cells = measured(beside(metrics, rows), changed, note)
    save_cells(path, cells)
    yield from ((*each.cell, each.mean, each.std) for each in cells)
