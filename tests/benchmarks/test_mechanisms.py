"""The study of mechanisms at its smallest size."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import registry, run
from benchmarks.papers import mechanisms


@pytest.mark.thorough
def test_a_finished_search_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--small", "--runs", str(tmp_path), "--save", str(tmp_path / "found")]
    options = run.arguments(registry.MEASUREMENTS["mechanisms"], words)
    rows = list(mechanisms.measure(options))
    monkeypatch.setattr(mechanisms, "design", None)
    assert list(mechanisms.measure(options)) == rows
    assert [row[1] for row in rows] == ["designed", "uniform"]
    assert all(len(row) == len(registry.MEASUREMENTS["mechanisms"].columns) for row in rows)
    assert len(pd.read_csv(tmp_path / "found.csv")) == 2
    assert (tmp_path / "found.png").stat().st_size


def test_clients_have_their_rows_in_every_federation() -> None:
    for name, (rows, *_) in mechanisms.SETTINGS.items():
        made: list[Any] = [mechanisms.federation(name, seed).clients for seed in (0, 1)]
        assert all(np.asarray(clients.train.size).tolist() == list(rows) for clients in made)
