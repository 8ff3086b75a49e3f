"""Finished parts of the study of estimators."""

from __future__ import annotations

import os
import pathlib
from typing import Any

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
