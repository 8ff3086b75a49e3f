"""Whether our numbers agree with printed ones, our order of algorithms with the printed order, and both with claims.

A number agrees if the difference is at most the larger of two published standard deviations and one unit of the last
printed decimal. Papers print different spreads after "±" (``spread``); ``standard_deviation`` makes one kind of them.

The claims are those that papers make with their tables (``fljax/published/claims.toml``). A claim is about one metric
of one setting. It compares an algorithm with others, or with a number, by means over seeds.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.published.tables import Cell, Published, cell_of, plain_label, read, tables

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


# Our or a paper's means by cell.
Numbers = Mapping[Cell, float]

# The forms of a claim: the key, and whether more is better.
COMPARISONS = {"greater_than": True, "less_than": False}
BOUNDS = {"at_least": True, "at_most": False}


class Instead(NamedTuple):
    """Another data set on which we have run what the claim is about, whose own data were not at hand."""

    dataset: str
    partition: str


class Claim(NamedTuple):
    """A statement of a paper that numbers can contradict.

    Attributes:
      name: unique.
      paper: as in the published tables; ``table``, ``dataset``, ``partition``, ``split`` and ``metric`` likewise.
      statement: in plain English.
      printed: where the paper says so.
      algorithm: the one that the statement is about.
      form: "greater_than", "less_than", "at_least" or "at_most".
      others: the algorithms of a comparison.
      by: the least difference of a comparison; None: any difference above 0. With 0 equal numbers agree.
      bound: the number of the other forms.
      in_print: the verdict on the paper's own numbers. Some statements contradict their table.
      instead: where else we have run it.
      cause: why ours differ, or what was ruled out; "" if ours do not differ.
    """

    name: str
    paper: str
    table: str
    dataset: str
    partition: str
    split: str
    metric: str
    statement: str
    printed: str
    algorithm: str
    form: str
    others: tuple[str, ...] = ()
    by: float | None = None
    bound: float = math.nan
    in_print: str = AGREES
    instead: Instead | None = None
    cause: str = ""

    def cell(self, algorithm: str, instead: bool = False) -> Cell:
        """The place of one algorithm's number; ``instead`` puts it on the other data set."""
        place = Instead(self.dataset, self.partition) if not instead or self.instead is None else self.instead
        return Cell(self.paper, self.table, *place, self.split, algorithm, self.metric)


class Judged(NamedTuple):
    """A verdict on a claim, and the numbers behind it.

    Attributes:
      claim: the claim.
      verdict: agrees, differs or not run.
      numbers: means by algorithm, the claim's own first, as far as there are any.
    """

    claim: Claim
    verdict: Verdict
    numbers: dict[str, float]


def judge(claim: Claim, numbers: Numbers, instead: bool = False) -> Judged:
    """Evaluates one claim.

    Args:
      claim: the claim.
      numbers: means in the paper's units by cell; labels of algorithms count without case and punctuation.
      instead: whether to evaluate it on the other data set, which the claim must name.
    """
    by_label = {cell._replace(algorithm=plain_label(cell.algorithm)): mean for cell, mean in numbers.items()}
    means = {
        label: by_label.get(claim.cell(plain_label(label), instead), math.nan)
        for label in (claim.algorithm, *claim.others)
    }
    present = {label: mean for label, mean in means.items() if not math.isnan(mean)}
    missing = [label for label in means if label not in present]
    if missing:
        what = "no numbers" if not present else f"no number of {', '.join(missing)}"
        return Judged(claim, Verdict(NOT_RUN, what), present)
    return Judged(claim, Verdict(AGREES if _holds(claim, present) else DIFFERS), present)


def judge_all(claims: Sequence[Claim], numbers: Numbers) -> list[Judged]:
    """Evaluates claims on their own data sets."""
    return [judge(claim, numbers) for claim in claims]


def claims_of(table: str) -> list[Claim]:
    """The claims about a published table, by the name of its file."""
    printed = {(row.paper, row.table) for row in read(table)}
    return [claim for claim in read_claims() if (claim.paper, claim.table) in printed]


@functools.cache
def published_numbers() -> dict[Cell, float]:
    """All printed means."""
    return {cell_of(row): row.mean for name in tables() for row in read(name)}


@functools.cache
def read_claims() -> tuple[Claim, ...]:
    """The claims of ``claims.toml``, in its order.

    Raises:
      ValueError: if the file has an error.
    """
    file = importlib.resources.files("fljax").joinpath("published", "claims.toml")
    return parse_claims(file.read_text(encoding="utf-8"))


def parse_claims(text: str) -> tuple[Claim, ...]:
    """Claims from TOML."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"expected claims in TOML, got an error: {error}") from None
    claims = tuple(_claim(table, number) for number, table in enumerate(raw.get("claims", ()), 1))
    names = [claim.name for claim in claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"expected a name of its own for every claim, got {', '.join(twice)} twice")
    return claims


def _claim(raw: Mapping[str, Any], number: int) -> Claim:
    forms = [key for key in (*COMPARISONS, *BOUNDS) if key in raw]
    where = f"claim {raw.get('name', number)}"
    if len(forms) != 1:
        valid = ", ".join((*COMPARISONS, *BOUNDS))
        raise ValueError(f"expected one of {valid} in {where}, got {', '.join(forms) or 'none'}")
    form = forms[0]
    options = {key: value for key, value in raw.items() if key != form}
    valid = set(Claim._fields) - {"form", "others", "bound"}
    if set(options) - valid:
        raise ValueError(f"expected other keys than {', '.join(sorted(set(options) - valid))} in {where}")
    lacking = sorted(valid - set(Claim._field_defaults) - set(options))
    if lacking:
        raise ValueError(f"expected {', '.join(lacking)} in {where}, got none")
    if form in BOUNDS and "by" in options:
        raise ValueError(f"expected by with greater_than or less_than in {where}, got {form}")
    if options.get("in_print", AGREES) not in (AGREES, DIFFERS):
        raise ValueError(f"expected in_print to be {AGREES} or {DIFFERS} in {where}, got {options['in_print']!r}")
    if "instead" in options:
        if set(options["instead"]) != set(Instead._fields):
            raise ValueError(f"expected instead with dataset and partition in {where}, got {options['instead']!r}")
        options["instead"] = Instead(**options["instead"])
    comparison: dict[str, Any] = {"others": tuple(raw[form])} if form in COMPARISONS else {"bound": float(raw[form])}
    return Claim(**options, **comparison, form=form)


def _holds(claim: Claim, numbers: Mapping[str, float]) -> bool:
    mean = numbers[claim.algorithm]
    if claim.form in BOUNDS:
        return _exceeds(mean, claim.bound, 0.0, BOUNDS[claim.form])
    return all(_exceeds(mean, numbers[label], claim.by, COMPARISONS[claim.form]) for label in claim.others)


def _exceeds(mean: float, other: float, by: float | None, more: bool) -> bool:
    """``mean - other >= by``, or ``> 0`` if ``by`` is None; with the sign turned unless ``more``."""
    difference = mean - other if more else other - mean
    slack = SLACK * max(abs(mean), abs(other))
    return difference > slack if by is None else difference >= by - slack
