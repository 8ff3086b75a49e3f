"""Strategies that an attacker tries: around one that pays, and anywhere among the fields that deviations have.

A random search, whose draws depend on its seed alone. The fields are those of the deviations that were tried, so its
strategies change what the algorithm reads, and they are runs of a program of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fljax.games.strategic.deviations import numbers_of
from fljax.scenarios import ByReport, Deviation, Strategy
from fljax.scenarios.strategic import HONEST

_HONEST = numbers_of(HONEST)
_SHARES = ("effort", "flip")
_LEVELS = ("noise", "noise_decay")
_WITHOUT_EFFECT = {"noise_decay"}  # alone
_FLIPPED = 0.15  # how often an update is flipped


def candidate_strategies(
    deviations: Mapping[str, Strategy | Deviation], start: str, count: int, seed: int = 0
) -> dict[str, Strategy]:
    """Strategies of one client by name: half of them around ``start``, the others drawn among all fields.

    Around it, each number that is not honest is ``v 2^z + z' / 4`` with normal z and z', and other fields deviate now
    and then. Elsewhere about half of the fields deviate: shares are uniform, the coefficient of the update is
    ``2^U(-2, 3)`` and sometimes negative, factors of reports are ``10^U(-1.5, 1.5)``, and shifts ``U(-1, 2)``.

    Args:
      deviations: that were tried, by name.
      start: the name of one of them.
      count: of strategies.
      seed: of the draws.

    Returns:
      Strategies in which each field of some deviation is a number. None of them is honest.

    Source: ours; random search as in Bergstra and Bengio, "Random search for hyper-parameter optimization" (2012).
    """
    drawn = np.random.default_rng(seed)
    fields = [name for name in _HONEST if any(name in numbers_of(strategy) for strategy in deviations.values())]
    origin = numbers_of(deviations[start])
    candidates: list[dict[str, float]] = []
    while len(candidates) < count:
        near = 2 * len(candidates) < count
        numbers = _around(origin, fields, drawn) if near else _anywhere(fields, drawn)
        if differing(numbers).keys() - _WITHOUT_EFFECT:
            candidates.append(numbers)
    return {f"candidate {place}": strategy_of(numbers) for place, numbers in enumerate(candidates)}


def differing(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers by dotted name that are not honest."""
    return {field: value for field, value in numbers.items() if value != _HONEST[field]}


def strategy_of(numbers: Mapping[str, float]) -> Strategy:
    """The strategy of numbers by dotted name, the inverse of ``numbers_of``."""

    def by_report(kind: str) -> ByReport:
        parts = {field.partition(".")[2]: value for field, value in numbers.items() if field.startswith(f"{kind}.")}
        return ByReport(**parts)

    rest = {field: value for field, value in numbers.items() if "." not in field}
    return Strategy(**rest, factor=by_report("factor"), shift=by_report("shift"))


def _around(origin: Mapping[str, float], fields: list[str], drawn: np.random.Generator) -> dict[str, float]:
    numbers = {field: origin.get(field, _HONEST[field]) for field in fields}
    further = 1 / (1 + len(fields))
    for field in fields:
        z, shift, other = drawn.normal(), drawn.normal(), drawn.uniform()
        if numbers[field] != _HONEST[field]:
            numbers[field] = _within(field, numbers[field] * 2**z + shift / 4)
        elif other < further:
            numbers[field] = _draw(field, drawn)
    return numbers


def _anywhere(fields: list[str], drawn: np.random.Generator) -> dict[str, float]:
    return {field: _draw(field, drawn) if drawn.uniform() < 0.5 else _HONEST[field] for field in fields}


def _draw(field: str, drawn: np.random.Generator) -> float:
    kind = field.partition(".")[0]
    if kind in _SHARES:
        return float(drawn.uniform())
    if kind == "factor":
        return float(10 ** drawn.uniform(-1.5, 1.5))
    if kind == "own":
        return float(2 ** drawn.uniform(-2, 3) * (-1 if drawn.uniform() < _FLIPPED else 1))
    return _within(field, float(drawn.uniform(-1, 2)))  # shifts, and terms that are added to the update


def _within(field: str, value: float) -> float:
    """The number in the range that the field allows."""
    if field in _SHARES:
        return float(np.clip(value, 0, 1))
    return abs(float(value)) if field in _LEVELS else float(value)
