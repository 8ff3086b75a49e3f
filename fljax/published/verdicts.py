"""Whether our number agrees with a printed one, and our order of algorithms with the printed order.

A number agrees if the difference is at most the larger of two published standard deviations and one unit of the last
printed decimal. Papers print different spreads after "±" (``spread``); ``standard_deviation`` makes one kind of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from fljax.published.tables import Published

AGREES, DIFFERS, NOT_RUN = "agrees", "differs", "not run"

# The kinds of spread after a paper's "±"; papers that are not in SPREADS have the first.
STANDARD_DEVIATION, STANDARD_ERROR = "standard deviation over seeds", "standard error over seeds"
DEVIATION_OVER_CLIENTS = "standard deviation over clients"  # averaged over seeds
SPREADS = {"IAFL": STANDARD_ERROR, "IP-FL": DEVIATION_OVER_CLIENTS}

# The number of seeds behind a printed standard error, by paper, and where a table has another number.
SEEDS = {"IAFL": 10}
SEEDS_OF_TABLES = {("IAFL", f"Table{number}"): 3 for number in (8, 9, 10)}

DEVIATIONS = 2  # within which numbers agree
SLACK = 1e-9  # relative; numbers of a few decimals are not exact in binary


class Verdict(NamedTuple):
    """What is said of one number or one claim.

    Attributes:
      word: "agrees", "differs" or "not run".
      missing: what is missing, if it was not run; else "".
    """

    word: str
    missing: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.missing})" if self.missing else self.word


def spread(paper: str) -> str:
    """The kind of spread after a paper's "±" (ours is of the same kind), e.g. "standard deviation over seeds"."""
    return SPREADS.get(paper, STANDARD_DEVIATION)


def standard_deviation(row: Published) -> float:
    """The published standard deviation of one seed's number; NaN if no spread is printed.

    A standard error over ``n`` seeds is multiplied by ``sqrt(n)``. A standard deviation over clients stays as it is,
    since the paper prints no other.
    """
    if spread(row.paper) != STANDARD_ERROR:
        return row.std
    return row.std * math.sqrt(SEEDS_OF_TABLES.get((row.paper, row.table), SEEDS[row.paper]))


def deviations(row: Published, mean: float) -> float:
    """``(mean - published) / standard deviation``; NaN if a number is missing; +-inf if 0.00 is printed as the spread.

    Equal numbers are 0 deviations apart, whatever the spread.
    """
    difference, std = mean - row.mean, standard_deviation(row)
    if math.isnan(difference) or math.isnan(std):
        return math.nan
    if difference == 0:
        return 0.0
    return math.copysign(math.inf, difference) if std == 0 else difference / std


def tolerance(row: Published) -> float:
    """``max(2 * standard deviation, digit)``; a spread or a digit that is not known counts as 0."""
    parts = (DEVIATIONS * standard_deviation(row), row.digit)
    return max(0.0 if math.isnan(part) else part for part in parts)


def judge_number(row: Published, mean: float, missing: str = "no results") -> Verdict:
    """The verdict on our mean, which is in the paper's units.

    Args:
      row: the printed number.
      mean: ours; NaN if there is none.
      missing: what is missing if there is none.
    """
    if math.isnan(row.mean):
        return Verdict(NOT_RUN, "the paper prints no number")
    if math.isnan(mean):
        return Verdict(NOT_RUN, missing)
    slack = SLACK * max(abs(row.mean), abs(mean))
    return Verdict(AGREES if abs(mean - row.mean) <= tolerance(row) + slack else DIFFERS)


def rank_correlation(published: Sequence[float], ours: Sequence[float]) -> float:
    """Kendall's tau-b of two orders of the same algorithms, from -1 to 1, over those with both numbers.

    NaN if fewer than two algorithms have both, or if one side has the same number for all.
    """
    from scipy.stats import kendalltau

    both = [pair for pair in zip(published, ours, strict=True) if not math.isnan(sum(pair))]
    if len(both) < 2:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions warn where all numbers are the same
        correlation: Any = kendalltau(*zip(*both, strict=True), variant="b")
    return float(correlation.statistic)


class Column(NamedTuple):
    """One column of a table: a metric of all algorithms in one setting.

    Attributes:
      table: paper and table.
      setting: data set, partition and split.
      metric: the published metric.
      agrees: how many numbers agree.
      differs: how many differ.
      not_run: how many there are not.
      tau: Kendall's tau-b of both orders of algorithms; NaN if there is none.
    """

    table: str
    setting: tuple[str, str, str]
    metric: str
    agrees: int
    differs: int
    not_run: int
    tau: float


def summarise_columns(numbers: Sequence[tuple[Published, float]]) -> list[Column]:
    """What is said of each column, in the order of the numbers: printed ones and ours (NaN: none)."""
    columns: dict[tuple[str, ...], list[tuple[Published, float]]] = {}
    for row, mean in numbers:
        place = (f"{row.paper}, {row.table}", row.dataset, row.partition, row.split, row.metric)
        columns.setdefault(place, []).append((row, mean))
    summaries = []
    for (table, dataset, partition, split, metric), pairs in columns.items():
        words = [judge_number(row, mean).word for row, mean in pairs]
        tau = rank_correlation([row.mean for row, _ in pairs], [mean for _, mean in pairs])
        agrees, differs, not_run = (words.count(word) for word in (AGREES, DIFFERS, NOT_RUN))
        summaries.append(Column(table, (dataset, partition, split), metric, agrees, differs, not_run, tau))
    return summaries
