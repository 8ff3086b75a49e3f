"""Candidates and profiles are runs of few programs, whatever the number of generations."""

from __future__ import annotations

from typing import Any

import pytest

from fljax.engine.programs import jit
from fljax.engine.whole_runs.program import whole_runs
from fljax.games import Design, Interval, design
from tests.compiled import compilations
from tests.games.mechanisms import known


def test_each_number_of_federations_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(jit.STORE, "_kept", kept)

    def searched(budget: int, seed: int) -> Design:
        """With candidates that it keeps, and generations that play some of the lies."""
        sizes: dict[str, Any] = {"pool": 4, "resample": 2, "validation": 3, "fresh": 5, "candidates": 4}
        same: dict[str, Any] = {"rounds": 1, "outside": None, "tolerance": [0.1], "over": {"server_lr": Interval(0, 2)}}
        targets = [0.0, 1.0]
        return design(known.UNIFORM, lambda _: known.of_targets(targets), budget=budget, seed=seed, **sizes, **same)

    searched(1_500, 0)
    assert [program for program, *_ in kept].count(whole_runs) == 3
    with compilations() as more:
        assert searched(3_000, 1).runs > 2_000
    assert not more
