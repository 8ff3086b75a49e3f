"""Labels in tables are printed as they are, whatever rich would make of them."""

from __future__ import annotations

import re

import pytest
import xarray as xr

from fljax.cli import printing
from fljax.cli.commands.reproduce import print_beside
from fljax.experiments.progress_bars import listener, progress_bars
from fljax.published import beside
from fljax.report import Row, best_rows, overview
from fljax.results import sweeps
from fljax.results.events import Event

LABELS = ("my_algorithms:moon", ":smile:", "a:moon:b", "[red]a[/red]", "[/]", "a[c0]", "back\\slash[b]")


@pytest.fixture(params=LABELS)
def label(request):
    return request.param


def plain(text: str) -> str:
    return re.sub(r"[\s│┃┏┓┗┛━┳┻┡┩╇─└┘┴]+", " ", text)


def test_tables_of_runs(label, capsys):
    rows = [Row(label, "average_accuracy", 0.5, float("nan"), 1, 1, 3)]
    shown = overview(rows, 1)
    lines = [("algorithm", *shown.columns), *((name, *cells) for name, cells in shown.lines.items())]
    printing.console(110).print(printing.as_table(lines, shown.title, shown.caption))
    assert f" {label} 0.500 " in plain(capsys.readouterr().out)


def test_tables_of_sweeps(label, capsys):
    best = sweeps.Best(label, "average_accuracy", {label: label}, 0.5, 0.5, float("nan"), 1, ())
    printing.console(110).print(printing.as_table(best_rows((best,), "average_accuracy")))
    assert plain(capsys.readouterr().out).count(label) == 3


def test_published_tables(label, capsys):
    row = beside.Published("INCFL", "Table1", label, "p", "seen", label, "IPR", 0.5, float("nan"))
    print_beside(beside.beside(xr.Dataset(coords={"algorithm": []}), [row]), ours=False)
    assert plain(capsys.readouterr().out).count(label) == 2


def test_progress(label, capsys):
    progress = progress_bars(quiet=False)
    listen = listener(progress)
    with progress:
        listen(Event("train", label, 1, 2, 1.0, "IPR 0.250"))
        listen(Event("note", label, 1, 2, 1.0, f"about {label}"))
    written = capsys.readouterr().err
    assert f"{label}: about {label}\n" in written
    assert any(line.startswith(f"{label} ") and "IPR 0.250" in line for line in written.splitlines())
