"""A scenario that has a table for four rounds only."""

from __future__ import annotations

from fljax.scenarios.common import applied_scenarios
from fljax.types import Algorithm


def four_rounds(inner: Algorithm) -> Algorithm:
    return inner._replace(scenarios=applied_scenarios(inner, "four_rounds", 4))
