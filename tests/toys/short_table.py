"""A scenario that has a table for four rounds only."""

from __future__ import annotations

from fljax.protocol import Algorithm
from fljax.scenarios.common import applied_scenarios


def four_rounds(inner: Algorithm) -> Algorithm:
    return inner._replace(scenarios=applied_scenarios(inner, "four_rounds", 4))
