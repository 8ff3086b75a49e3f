"""Verdicts, and what stands beside the cells of a certificate: positive controls, an attack that was searched for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fljax.contributions import Bounds

CERTIFIED, VIOLATED, INCONCLUSIVE = "CERTIFIED", "VIOLATED", "INCONCLUSIVE"
UNSEEN = "NO EFFECT SEEN"  # a gain within the tolerance that is the same with all seeds: nothing bounds rare ones


class Control(NamedTuple):
    """What the functions of a certificate say of a mechanism whose gain is known.

    Attributes:
      name: of the mechanism.
      expected: the verdict that is right.
      verdict: the verdict.
      known: the largest gain that a client has by definition, or what it is at least.
      low: the largest lower bound of a cell; of a fee for honesty the smallest.
      high: the largest upper bound of a cell.
    """

    name: str
    expected: str
    verdict: str
    known: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the verdict is right."""
        return self.verdict == self.expected


class Attack(NamedTuple):
    """The strategy of one client that gains most among many, chosen on the first half of the seeds.

    Attributes:
      client: the one that attacks.
      strategy: the numbers that are not honest by dotted name, such as ``("factor.size", 12.0)``.
      candidates: how many strategies were tried.
      searched: its mean gain with the seeds that chose it, which is too large by selection.
      mean: its mean gain with the other seeds.
      low: of their t-interval.
      high: of their t-interval.
    """

    client: int
    strategy: tuple[tuple[str, float], ...]
    candidates: int
    searched: float
    mean: float
    low: float
    high: float


class Confirmed(NamedTuple):
    """The cell that gains most with the first half of the seeds, and its gain with the others.

    Attributes:
      cell: its place.
      mean: over the other seeds.
      low: of their t-interval.
      high: of their t-interval.
    """

    cell: int
    mean: float
    low: float
    high: float


class Rationality(NamedTuple):
    """Whether clients gain from joining an honest federation (individual rationality).

    Attributes:
      share: the mean over seeds of the share of clients with less than their outside option.
      low: of its t-interval over seeds, at least 0.
      high: of its t-interval over seeds, at most 1.
      surplus: bounds of what each client has beyond its outside option, each side for all clients at once.
    """

    share: float
    low: float
    high: float
    surplus: Bounds


class Harmful(NamedTuple):
    """The cells by which the others lose in the mean: a client that gains by what is good for all harms nobody.

    Attributes:
      cell: the place of the one with the largest mean gain.
      count: how many there are.
      low: their largest lower bound of a gain.
      high: their largest upper bound of a gain.
    """

    cell: int
    count: int
    low: float
    high: float


def verdict_of(low: float, high: float, tolerance: float, width: float = -np.inf) -> str:
    """The verdict on a gain that is from ``low`` to ``high``; bounds of at most this width say nothing."""
    if high <= tolerance:
        return UNSEEN if high - low <= width else CERTIFIED
    return VIOLATED if low > tolerance else INCONCLUSIVE


def verdicts_of(bounds: Bounds, tolerance: float, rounding: float) -> tuple[str, ...]:
    """The verdict on each cell, if gains may differ by ``rounding``."""
    ends = zip(bounds.low.tolist(), bounds.high.tolist(), strict=True)
    return tuple(verdict_of(*each, tolerance + rounding, rounding) for each in ends)


def verdict_of_all(verdicts: Sequence[str]) -> str:
    """The verdict on several cells: violated if one is, and otherwise that of all of them, if it is the same."""
    return VIOLATED if VIOLATED in verdicts else verdicts[0] if len(set(verdicts)) == 1 else INCONCLUSIVE


def seeds_that_decide(
    bounds: Bounds, attack: Attack | None, tolerance: float, rounding: float, seeds: int
) -> int | None:
    """``(c sd / (tolerance - mean))^2``: of one cell above the tolerance, or else of all cells. None if no number is.

    The attack is a cell. Without variation no number decides. The c of more seeds is smaller, so that fewer may do.
    """
    mean, high = bounds.mean, bounds.high
    if attack is not None:
        mean, high = np.append(mean, attack.mean), np.append(high, attack.high)
    gap, half = tolerance - mean, high - mean
    gap = np.where(np.abs(gap) <= rounding, 0.0, gap)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(2 * half > rounding, seeds * (half / gap) ** 2, np.inf)
    above = gap < 0
    count = needed[above].min() if above.any() else needed.max()
    return int(np.ceil(count)) if np.isfinite(count) else None


def left_out_sentences(label: str, left_out: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each deviation that was asked for and not played, without a full stop.

    Args:
      label: of the algorithm.
      left_out: names of deviations with a clause about the algorithm.
    """
    return [f"deviation {name!r} is left out for {label}, {reason}" for name, reason in left_out]
