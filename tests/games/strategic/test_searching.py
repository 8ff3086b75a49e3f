"""Strategies that an attacker tries."""

from __future__ import annotations

import numpy as np

from fljax.games.strategic.certificates import candidate_strategies, differing, strategy_of
from fljax.games.strategic.playing import Messages, numbers_of, usual_deviations
from fljax.scenarios import ByReport, Strategy

USUAL = usual_deviations(Messages(("size", "bid"), True, True, True, True))


def test_numbers_and_strategies() -> None:
    strategy = Strategy(effort=0.5, own=1.0, factor=ByReport(size=10.0), shift=ByReport(bid=1.0))
    assert strategy_of(numbers_of(strategy)) == strategy
    assert differing(numbers_of(strategy)) == {"effort": 0.5, "factor.size": 10.0, "shift.bid": 1.0}


def test_candidates_have_the_fields_of_the_deviations() -> None:
    """So that they run in a program of the same form; none of them is honest, and all numbers are allowed."""
    tried = candidate_strategies(USUAL, "update times 2", 60)
    assert len(tried) == 60
    fields = {field for strategy in USUAL.values() for field in numbers_of(strategy)}
    for strategy in tried.values():
        numbers = numbers_of(strategy)
        assert numbers.keys() == fields
        assert differing(numbers).keys() - {"noise_decay"}
        assert 0 <= numbers["effort"] <= 1
        assert numbers["noise"] >= 0 <= numbers["noise_decay"]
    rows = np.array([list(numbers_of(strategy).values()) for strategy in tried.values()])
    assert len(np.unique(rows, axis=0)) == 60
    assert tried == candidate_strategies(USUAL, "update times 2", 60)
    assert tried != candidate_strategies(USUAL, "update times 2", 60, seed=1)


def test_half_of_them_are_near_the_start() -> None:
    tried = list(candidate_strategies(USUAL, "size times 10", 40).values())
    changed = [differing(numbers_of(strategy)) for strategy in tried]
    assert all("factor.size" in numbers for numbers in changed[:20])
    near, far = (np.mean([len(numbers) for numbers in part]) for part in (changed[:20], changed[20:]))
    assert near < 3 < far


def test_the_search_over_one_number() -> None:
    tried = candidate_strategies({"half": Strategy(effort=0.5)}, "half", 10)
    assert all(numbers_of(strategy).keys() == {"effort"} for strategy in tried.values())
    assert all(numbers_of(strategy)["effort"] < 1 for strategy in tried.values())
