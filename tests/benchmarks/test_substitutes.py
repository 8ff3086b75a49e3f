"""Cells of runs on another data set than a paper's."""

from __future__ import annotations

import math

from benchmarks.papers.substitutes import measured, rows_like
from fljax.published.beside import Compared
from fljax.published.tables import Cell, Measured

EXTRA = Cell("IP-FL", "Table4", "FMNIST", "10:90", "clients-local-test", "IFCA", "personalized_acc_pct")


def test_rows_are_those_of_the_table_and_of_the_file():
    committed = [Measured(EXTRA, 89.0, 3.0, 3, 100, "2026-11-22", "a.md")]
    committed.append(committed[0]._replace(cell=EXTRA._replace(partition="30:70", algorithm="FedEM")))
    rows = rows_like("ipfl_table4_personalized", "10:90", "FMNIST", "10:90", committed)
    assert {row.dataset for row in rows} == {"FMNIST"}
    assert {row.partition for row in rows} == {"10:90"}
    assert {"IP-FL", "Ditto", "IFCA"} <= {row.algorithm for row in rows}
    assert "FedEM" not in {row.algorithm for row in rows}
    assert all(math.isnan(row.mean) for row in rows)


def test_numbers_that_are_there_become_cells():
    rows = rows_like("ipfl_table4_personalized", "10:90", "FMNIST", "10:90", [])
    compared = [
        Compared(rows[0], 85.3, 3.5, seeds=5, rounds=100, deviation=0.5),
        Compared(rows[1], math.nan, math.nan, "missing"),
    ]
    (cell,) = measured(compared, "2026-11-27", "b.md")
    assert cell.cell.dataset == "FMNIST"
    assert (cell.mean, cell.std, cell.sample, cell.rounds, cell.note) == (85.3, 3.5, (85.3, 0.5, 5), 100, "b.md")
