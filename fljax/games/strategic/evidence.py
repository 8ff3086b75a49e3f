"""What stands beside the cells of a certificate: positive controls, and an attack that was searched for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CERTIFIED, VIOLATED, INCONCLUSIVE = "CERTIFIED", "VIOLATED", "INCONCLUSIVE"


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


def left_out_sentences(label: str, left_out: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each deviation that was asked for and not played, without a full stop.

    Args:
      label: of the algorithm.
      left_out: names of deviations with a clause about the algorithm.
    """
    return [f"deviation {name!r} is left out for {label}, {reason}" for name, reason in left_out]
