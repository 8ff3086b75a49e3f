"""Every test has a cache of data sets of its own."""

from __future__ import annotations

import pathlib

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
