"""How far values depend on the algorithm, and on the seed (``benchmarks/estimator_tables.py``)."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr

FOLDER = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the benchmark."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("estimators")


def test_a_dataset_is_saved_as_a_whole(main: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it writes leaves no part of the file."""
    made = xr.Dataset({"a": ("seed", [1.0, 2.0])})

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            main.once(tmp_path / "a.json", lambda: made)
    assert not list(tmp_path.iterdir())
    for make in (lambda: made, lambda: 1 / 0):  # the second time from the disk
        xr.testing.assert_equal(main.once(tmp_path / "a.json", make), made)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which imports its neighbours by their names."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("estimator_tables")


def test_rewards_that_change_hands(tables: Any) -> None:
    """Two algorithms, three seeds: between (1, 3) and (3, 1) a half moves, between (1, 1) and these a quarter."""
    worth = np.array([[[1, 3], [1, 3], [2, 2]], [[1, 3], [3, 1], [4, 4]]], float)
    numbers = tables.spread(worth)
    np.testing.assert_allclose(numbers.moved, [0, 0.5, 0])
    np.testing.assert_allclose(numbers.moved_of_seeds, np.mean([0, 0.25, 0.25, 0.5, 0.25, 0.25]))
    np.testing.assert_allclose(numbers.order[:2], [1, -1])
    assert np.isnan(numbers.order[2])  # clients that are worth the same have no order
    np.testing.assert_allclose(numbers.order_of_seeds, 0)
    assert numbers.unknown == 0


def test_values_that_add_up_to_less_than_nothing_have_no_shares(tables: Any) -> None:
    worth = np.array([[[1, 3], [-1, -3]], [[1, 3], [1, 3]]], float)
    numbers = tables.spread(worth)
    np.testing.assert_array_equal(numbers.moved, [0, np.nan])
    assert numbers.moved_of_seeds == 0
    assert numbers.unknown == 2 / 4
