"""Sweeps in parts: every cell once, and joined results equal to those of the sweep in one piece."""

from __future__ import annotations

import json
import math
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from fljax import report
from fljax.config import dumps, parse_grid
from fljax.experiments import sweep
from fljax.results import folders
from fljax.results.identity import join_environments
from tests.drawn import at_most
from tests.toys.configs import SWEPT
from tests.toys.quick import quick_programs


def in_parts(folder: pathlib.Path, count: int, leave: int | None = None) -> list[int]:
    """Runs all parts but one; returns those that were unfinished."""
    grid, unfinished = parse_grid(SWEPT, name="tiny"), []
    for number in range(1, count + 1):
        part, own = sweep.begin_part(grid, folder, number, count), sweep.folder_of(folder, number, count)
        assert part is not None
        if not sweep.is_finished(part, own):
            unfinished.append(number)
            if number != leave:
                sweep.run_part(part, own)
    return unfinished


@pytest.mark.in_turn
@at_most(20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 30))
def test_every_cell_is_in_one_part(lengths: list[int], count: int) -> None:
    names = ["local.learning_rate", "algorithms.incfl.eps", "local.batch_size"][: len(lengths)]
    values = {
        name: list(range(1, length + 1)) if "batch" in name else np.linspace(0.1, 1, length).tolist()
        for name, length in zip(names, lengths, strict=True)
    }
    grid = parse_grid(SWEPT | {"sweep": {"grid": values}}, name="tiny")
    parts = sweep.split(grid, count)
    assert 1 <= len(parts) <= count
    assert len(parts) == math.prod([2, *lengths]) or len(parts) > count // 2
    cells = [(label, repr(cell)) for part in parts for label in part.labels for cell in _cells_of(part, grid)]
    assert sorted(cells) == sorted((label, repr(cell)) for label in ("fedavg", "incfl") for cell in grid.cells)


def _cells_of(part: sweep.Part, grid: Any) -> list[Any]:
    number = np.arange(len(grid.cells)).reshape([len(axis.values) for axis in grid.axes])
    found = [grid.cells[at] for at in number[np.ix_(*part.places)].ravel()]
    algorithms = [entry for entry in grid.config.algorithms if entry.label in part.labels]
    for cell, own in zip(found, part.grid.cells, strict=True):
        assert own.local == cell.local
        assert [entry.label for entry in own.algorithms] == [entry.label for entry in algorithms]
    return found


@pytest.mark.thorough
def test_parts_joined_equal_the_whole(tmp_path: pathlib.Path) -> None:
    grid = parse_grid(SWEPT, name="tiny")
    whole, folder = tmp_path / "whole", tmp_path / "apart"
    with quick_programs():
        one = sweep.run(grid, directory=whole)
        assert in_parts(folder, 4, leave=3) == [1, 2, 3, 4]
        first, unfinished, count = sweep.join_parts(grid, folder, 4)
        assert (unfinished, count) == ((3,), 4)
        assert first is not None
        assert first.metrics["algorithm"].values.tolist() == ["fedavg"]  # incfl has a part left
        assert in_parts(folder, 4) == [3]
        joined, unfinished, _ = sweep.join_parts(grid, folder, 4)
    assert joined is not None
    assert unfinished == ()
    for a, b in ((one.metrics, joined.metrics), (one.records, joined.records)):
        assert dict(a.sizes) == dict(b.sizes)
        for name in a.data_vars:
            if not str(name).startswith(("seconds", "execution")):
                xr.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5)
    chosen = [
        [(each.algorithm, each.criterion, each.cell, each.edges) for each in found.best] for found in (one, joined)
    ]
    assert chosen[0] == chosen[1]
    assert folders.config_of(folder) == folders.config_of(whole)
    assert all(path.is_file() for path in report.write(folder))


def test_parts_that_begin_in_the_same_instant(tmp_path: pathlib.Path) -> None:
    """Each gets its own cells. Of two divisions the first one stays, and all parts of the other are refused."""
    grid, folder = parse_grid(SWEPT, name="tiny"), tmp_path / "new" / "folder"
    ready = threading.Barrier(8)

    def begin(number: int, count: int) -> Any:
        ready.wait(30)
        try:
            return sweep.begin_part(grid, folder, number, count)
        except ValueError as error:
            return str(error)

    tried = [(number, count) for number in (1, 2, 3, 4) for count in (4, 6)]
    with ThreadPoolExecutor(8) as pool:
        begun = dict(zip(tried, pool.map(begin, *zip(*tried, strict=True)), strict=True))
    kept = sweep.count_of(folder)
    for (number, count), found in begun.items():
        if count == kept:
            assert found == sweep.split(grid, count)[number - 1]
        else:
            assert found == f"expected a part of {kept}, as those in {str(folder)!r} are, got {number}/{count}"
    assert folders.config_of(folder) == dumps(grid.config)


def test_a_part_without_cells_may_be_the_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another part that looked at the folder before, and had to wait for it, is not refused."""
    grid, folder = parse_grid(SWEPT, name="tiny"), tmp_path / "new"
    assert sweep.begin_part(grid, folder, 50, 50) is None
    monkeypatch.setattr(folders, "is_used", lambda _: False)  # what it saw before
    assert sweep.begin_part(grid, folder, 1, 50) == sweep.split(grid, 50)[0]


def test_ranges() -> None:
    assert (sweep.ranges([2, 5, 6, 7]), sweep.ranges([1, 2, 9]), sweep.ranges([])) == ("2,5-7", "1-2,9", "")


def test_environments_of_parts(tmp_path: pathlib.Path) -> None:
    """Different ones stand side by side, with the numbers of their parts; times make no difference."""
    files = {}
    for number, devices in enumerate(["cpu:0 cpu", "gpu:0 H100", "cpu:0 cpu"]):
        files[number] = tmp_path / f"{number}.json"
        files[number].write_text(json.dumps({"devices": [devices], "time": f"at {number}"}))
    files[3] = tmp_path / "missing.json"
    join_environments(tmp_path / "all.json", files)
    assert json.loads((tmp_path / "all.json").read_text()) == {
        "devices": ["cpu:0 cpu"],
        "time": "at 0",
        "parts": [0, 2],
        "others": [{"devices": ["gpu:0 H100"], "time": "at 1", "parts": [1]}],
    }
    join_environments(tmp_path / "none.json", {0: files[3]})
    assert not (tmp_path / "none.json").exists()
