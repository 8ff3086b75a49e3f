"""Finished parts of the study of estimators, and how far values depend on the algorithm and on the seed."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
import xarray as xr

from benchmarks.papers import estimators


def test_a_dataset_is_saved_as_a_whole(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it writes leaves no part of the file."""
    made = xr.Dataset({"a": ("seed", [1.0, 2.0])})

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            estimators.once(tmp_path / "a.json", lambda: made)
    assert not list(tmp_path.iterdir())
    makes: list[Any] = [lambda: made, lambda: 1 / 0]  # the second time from the disk
    for make in makes:
        xr.testing.assert_equal(estimators.once(tmp_path / "a.json", make), made)


def test_rewards_that_change_hands() -> None:
    """Two algorithms, three seeds: between (1, 3) and (3, 1) a half moves, between (1, 1) and these a quarter."""
    worth = np.array([[[1, 3], [1, 3], [2, 2]], [[1, 3], [3, 1], [4, 4]]], float)
    numbers = estimators.spread(worth)
    np.testing.assert_allclose(numbers.moved, [0, 0.5, 0])
    np.testing.assert_allclose(numbers.moved_of_seeds, np.mean([0, 0.25, 0.25, 0.5, 0.25, 0.25]))
    np.testing.assert_allclose(numbers.order[:2], [1, -1])
    assert np.isnan(numbers.order[2])  # clients that are worth the same have no order
    np.testing.assert_allclose(numbers.order_of_seeds, 0)
    assert numbers.unknown == 0


def test_values_that_add_up_to_less_than_nothing_have_no_shares() -> None:
    worth = np.array([[[1, 3], [-1, -3]], [[1, 3], [1, 3]]], float)
    numbers = estimators.spread(worth)
    np.testing.assert_array_equal(numbers.moved, [0, np.nan])
    assert (numbers.moved_of_seeds, numbers.unknown) == (0, 2 / 4)
