"""Files of measured cells: what they hold, and that those committed are what the reports say."""

from __future__ import annotations

import math
import pathlib

import pytest

from fljax.published.tables import (
    COLUMNS,
    Cell,
    Measured,
    cell_of,
    plain_label,
    read,
    read_cells,
    read_folder,
    save_cells,
)
from fljax.published.verdicts import read_claims
from tests.refusals import refuses

RESULTS = pathlib.Path(__file__).parent.parent.parent / "benchmarks" / "results"
PLACE = Cell("INCFL", "Table1", "FMNIST", "p, with a comma", "unseen", "q-FFL(q=1)", "IPR")
ONE = Measured(PLACE, 0.29, 0.03, 3, 200, "2026-11-21", "a report", 0.03)


def test_cells_are_written_and_read_again(tmp_path):
    path = tmp_path / "new" / "cells.csv"
    other = ONE._replace(cell=PLACE._replace(metric="rho"), std=math.nan, mean=1 / 3)
    save_cells(path, [ONE, other])
    first, second = read_cells(path)
    assert first == ONE
    assert second.mean == pytest.approx(1 / 3, abs=1e-6)
    assert math.isnan(second.std)
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert len(read_folder(path.parent)) == 2
    save_cells(path.with_name("more.csv"), [ONE])
    refuses(lambda: read_folder(path.parent), r"expected every cell once in .*new', got INCFL, Table1")


def test_the_same_place_is_replaced(tmp_path):
    path = tmp_path / "cells.csv"
    other = ONE._replace(cell=PLACE._replace(metric="rho"))
    save_cells(path, [ONE, other])
    save_cells(path, [ONE._replace(mean=0.5)])
    assert [each.mean for each in read_cells(path)] == [0.5, 0.29]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("INCFL,Table1", r"expected 14 values in line 2 of '.*cells.csv', got 2"),
        ("a,b,c,d,e,f,g,high,,3,200,2026-11-21,,", r"expected numbers and a date in line 2 of .*could not convert"),
        ("a,b,c,d,e,f,g,1,,3,200,yesterday,,", "expected numbers and a date in line 2"),
        ("a,b,c,d,e,f,g,nan,,3,200,2026-11-21,,", "expected a finite mean, a spread from 0, seeds and rounds from 1"),
        ("a,b,c,d,e,f,g,1,-1,3,200,2026-11-21,,", "expected a finite mean, a spread from 0"),
        ("a,b,c,d,e,f,g,1,,3,200,2026-11-21,,-1", "expected a finite mean, a spread from 0"),
        ("a,b,c,d,e,f,g,1,,0,200,2026-11-21,,", r"expected a finite mean, .*, got '1,,0,200'"),
        ("\n".join(["a,b,c,d,e,f,g,1,,3,200,2026-11-21,,"] * 2), "every cell once .* got a, b, c, d, e, f, g twice"),
    ],
)
def test_bad_files(tmp_path, line, message):
    path = tmp_path / "cells.csv"
    path.write_text(f"{','.join(COLUMNS)}\n{line}\n")
    refuses(lambda: read_cells(path), message)


def test_files_that_are_no_cells(tmp_path):
    path = tmp_path / "cells.csv"
    refuses(lambda: read_cells(path), r"expected a CSV file of measured cells, got '.*' \(No such file")
    path.write_bytes(b"\xff")
    refuses(lambda: read_cells(path), r"expected a CSV file of measured cells, got '.*' \(not UTF-8\)")
    path.write_text("")
    refuses(lambda: read_cells(path), r"expected the columns paper,table,.*, got an empty file")
    path.write_text("a,b\n")
    refuses(lambda: save_cells(path, [ONE]), r"expected the columns paper,table,.*, got 'a,b'")
    assert path.read_text() == "a,b\n"
    refuses(lambda: save_cells(path / "below" / "cells.csv", [ONE]), "expected a place for measured cells, got ")


@pytest.mark.parametrize("path", sorted((RESULTS / "cells").glob("*.csv")), ids=lambda path: path.stem)
def test_committed_cells_stand_in_their_report(path):
    """A line of the report that ``note`` names begins with the algorithm and has the number, as written in the file."""
    written = [line.split(",") for line in path.read_text().splitlines()[1:]]
    for cell, line in zip(read_cells(path), written, strict=True):
        if cell.note.startswith("fljax "):  # saved by fljax reproduce
            continue
        report = (RESULTS / cell.note.partition(";")[0]).read_text(encoding="utf-8")
        label = plain_label(cell.cell.algorithm.partition("(")[0])
        lines = [each for each in report.splitlines() if plain_label(each[2:]).startswith(label)]
        mean, std = line[-7], line[-6]
        assert any(mean in each and std in each for each in lines), cell
        assert cell.date in cell.note


def test_committed_cells_are_of_known_algorithms_and_metrics():
    rows = [row for path in (RESULTS.parent.parent / "fljax" / "published").glob("*.csv") for row in read(path.stem)]
    known = {(row.paper, row.metric) for row in rows}
    labels = {(row.paper, row.algorithm) for row in rows} | {("IP-FL", "FedAvg")}
    labels |= {(each.paper, label) for each in read_claims() for label in (each.algorithm, *each.others)}
    printed = {cell_of(row) for row in rows}
    cells = read_folder(RESULTS / "cells")
    assert all((each.cell.paper, each.cell.metric) in known for each in cells)
    assert all((each.cell.paper, each.cell.algorithm) in labels for each in cells)
    # Of the papers whose own data we had, nearly all cells are printed ones.
    assert sum(each.cell in printed for each in cells if each.cell.paper != "IP-FL") >= 34 + 40 + 150
