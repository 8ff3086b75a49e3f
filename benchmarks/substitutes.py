"""Our numbers on another data set than a paper's, as measured cells beside the paper's table.

``python benchmarks/substitutes.py RUN --table ipfl_table4_personalized --partition 10:90`` reads the results of a run
on Fashion-MNIST, and writes numbers for the printed rows about 10:90, as if the table had them for FMNIST. Claims name
such cells by ``instead``. Algorithms that the table lacks but the file of cells has are written, too.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fljax import __version__
from fljax.published import tables
from fljax.published.beside import Compared, beside
from fljax.published.tables import Measured, Published, cell_of, read_cells, save_cells
from fljax.results import folders

CELLS = Path(__file__).resolve().parent / "results" / "cells"


def rows_like(table: str, printed: str, dataset: str, partition: str, committed: Sequence[Measured]) -> list[Published]:
    """The printed rows about a partition, as if they were about another data set; then the committed cells' places.

    Args:
      table: name of a published table.
      printed: the partition as the table names it.
      dataset: the data set in place of the printed one.
      partition: the name of the partition in cells.
      committed: cells of the same paper.
    """
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the cells of one run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--table", required=True, help="a published table")
    parser.add_argument("--partition", required=True, help="the partition as the table names it")
    parser.add_argument("--named", help="the partition's name in cells, where it is another one")
    parser.add_argument("--dataset", default="FMNIST", help="the data set of the run, as cells name it")
    parser.add_argument("--save", type=Path, help="file of cells; the paper's own in results/cells if not given")
    parser.add_argument("--note", help="a report with the numbers; the name of the run folder if not given")
    given = parser.parse_args(arguments)
    try:
        paper = tables.read(given.table)[0].paper
        path = given.save or CELLS / f"{paper.lower().replace('-', '')}.csv"
        committed = read_cells(path) if path.exists() else []
        named = given.named or given.partition
        rows = rows_like(given.table, given.partition, given.dataset, named, committed)
        metrics, _ = folders.load(given.run)
        changed = datetime.date.fromtimestamp((given.run / folders.RESULTS).stat().st_mtime).isoformat()
        cells = measured(
            beside(metrics, rows), changed, f"fljax {__version__}, {given.note or given.run.resolve().name}"
        )
        save_cells(path, cells)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(cells)} of {len(rows)} numbers written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
