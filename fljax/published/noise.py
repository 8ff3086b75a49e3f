"""When numbers are told apart: by two standard errors of both sides; undecided below, and without a standard error."""

from __future__ import annotations

import math
from typing import NamedTuple

AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"

ERRORS = 2  # that a verdict needs
SLACK = 1e-9  # relative; numbers of a few decimals are not exact in binary


class Sample(NamedTuple):
    """A number over seeds."""

    mean: float
    deviation: float = math.nan  # standard deviation over seeds; NaN if it is not known
    seeds: int = 0  # 0 if not known

    @property
    def error(self) -> float:
        """The standard error of the mean, ``deviation / sqrt(seeds)``; NaN with one seed, or if it is not known."""
        return self.deviation / math.sqrt(self.seeds) if self.seeds > 1 else math.nan


def verdict_on_excess(excess: float, error: float, strict: bool = False) -> str:
    """Whether a number is at least 0 (``strict``: above 0), as far as two of its standard errors tell."""
    beyond = ERRORS * error
    if math.isnan(beyond):
        return UNDECIDED
    if excess > beyond or (excess == beyond and not strict):
        return AGREES
    return DIFFERS if -excess > beyond or (-excess == beyond and strict) else UNDECIDED


def verdict_on_number(printed: Sample, ours: Sample, digit: float = 0.0) -> str:
    """Whether our mean is the printed one, up to the larger of two printed deviations and one last ``digit``."""
    apart = abs(ours.mean - printed.mean)
    both = ERRORS * together(printed, ours)
    if math.isnan(both):
        return UNDECIDED
    slack = SLACK * max(abs(ours.mean), abs(printed.mean), both)
    if apart - both > digit + slack:
        return DIFFERS
    # Two printed deviations: where one more run of the paper would lie.
    return AGREES if apart + both <= max(ERRORS * printed.deviation, digit) + slack else UNDECIDED


def together(*samples: Sample) -> float:
    """The standard error of a difference or sum of independent means; NaN if one has none."""
    return math.hypot(*(each.error for each in samples))
