"""When numbers are told apart: by two standard errors of both sides together.

Less than that is undecided, and so is whatever has no standard error: one seed, or no printed spread over seeds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"

ERRORS = 2  # that a verdict needs
SLACK = 1e-9  # relative; numbers of a few decimals are not exact in binary


class Sample(NamedTuple):
    """A number over seeds.

    Attributes:
      mean: over seeds.
      deviation: the standard deviation over seeds; NaN if it is not known.
      seeds: their number; 0 if it is not known.
    """

    mean: float
    deviation: float = math.nan
    seeds: int = 0

    @property
    def error(self) -> float:
        """The standard error of the mean, ``deviation / sqrt(seeds)``; NaN with one seed, or if it is not known."""
        return self.deviation / math.sqrt(self.seeds) if self.seeds > 1 else math.nan


def verdict_on_excess(excess: float, error: float, strict: bool = False) -> str:
    """Whether a number is at least 0, or with ``strict`` above 0, as far as its standard error tells.

    "agrees" if ``excess >= 2 error``, "differs" if ``excess <= -2 error`` (with ``strict``; else below), and
    "undecided" between, or if ``error`` is NaN. So 0 without an error agrees, and with ``strict`` it differs.
    """
    beyond = ERRORS * error
    if math.isnan(beyond):
        return UNDECIDED
    if excess > beyond or (excess == beyond and not strict):
        return AGREES
    return DIFFERS if -excess > beyond or (-excess == beyond and strict) else UNDECIDED


def verdict_on_number(printed: Sample, ours: Sample, digit: float = 0.0) -> str:
    """Whether our mean is the printed one.

    The limit of agreement is two printed deviations, where one more run of the paper would lie, or one digit if that is
    more: ``max(2 printed.deviation, digit)``. With ``d`` the absolute difference and ``e`` the standard error of both
    sides together, ``e^2 = printed.error^2 + ours.error^2``: "differs" if ``d - 2 e > digit``; else "agrees" if
    ``d + 2 e <= limit``; else "undecided".

    Args:
      printed: the paper's number.
      ours: our number.
      digit: one unit of the last printed decimal, within which rounding may have moved both.
    """
    apart = abs(ours.mean - printed.mean)
    both = ERRORS * together(printed, ours)
    if math.isnan(both):
        return UNDECIDED
    slack = SLACK * max(abs(ours.mean), abs(printed.mean), both)
    if apart - both > digit + slack:
        return DIFFERS
    return AGREES if apart + both <= max(ERRORS * printed.deviation, digit) + slack else UNDECIDED


def together(*samples: Sample) -> float:
    """The standard error of a difference or sum of independent means; NaN if one has none."""
    return math.hypot(*(each.error for each in samples))
