"""A design that no search has found."""

from __future__ import annotations

import numpy as np

from fljax.contributions import error_bars
from fljax.games import Design
from fljax.games.mechanisms.designing import Chosen
from fljax.games.mechanisms.steps import Found

_UNKNOWN = Found(np.nan, np.nan, np.nan, np.nan, "")
_NOISE = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])


def chosen(objective: float, regret: float, tolerance: float = 0.03, **numbers: float) -> Chosen:
    """A candidate whose first number adds .1, and others nothing."""
    fresh = Found(objective, regret, 0.001, 0.2, "double of client 1")
    worth = {name: error_bars(_NOISE / 10 + (0.0 if place else 0.1)) for place, name in enumerate(numbers)}
    arguments = {name: np.asarray(value, np.float32) for name, value in numbers.items()}
    searched = fresh._replace(objective=objective + 0.05) if numbers else _UNKNOWN
    validated = fresh._replace(objective=objective + 0.03)
    before = {name: np.asarray(1.0, np.float32) for name in numbers}
    return Chosen(tolerance, arguments, searched, validated, fresh, objective + _NOISE, worth, before)


DESIGN = Design(
    {
        "designed": (chosen(0.8, 0.02, rate=1.5, clip=0.7),),
        "$plain": (chosen(0.8, 0.03, rate=1.2),),
        "fixed": (chosen(0.7, 0.25),),
    },
    {"designed": None, "$plain": None, "fixed": None},
    1_234,
)
