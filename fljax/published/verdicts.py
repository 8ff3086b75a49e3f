"""Whether our numbers agree with printed ones, our order of algorithms with the printed order, and both with claims.

Claims are what papers say with their tables (``fljax/published/claims.toml``): each compares an algorithm with others,
or with a number, in one metric of one setting, by means over seeds, taken as independent.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.published.tables import (
    AGREES,
    DIFFERS,
    SLACK,
    UNDECIDED,
    Cell,
    Published,
    Sample,
    cell_of,
    plain_label,
    read,
    tables,
    together,
    verdict_on_excess,
    verdict_on_number,
)

NOT_RUN = "not run"

# The kinds of spread after a paper's "±"; papers that are not in SPREADS have the first.
STANDARD_DEVIATION, STANDARD_ERROR = "standard deviation over seeds", "standard error over seeds"
DEVIATION_OVER_CLIENTS = "standard deviation over clients"  # averaged over seeds
SPREADS = {"IAFL": STANDARD_ERROR, "IP-FL": DEVIATION_OVER_CLIENTS}

# The number of seeds behind a printed number, by paper, and where a table has another number. IP-FL does not print it.
# Nor does MaxFL, nor what its "±" is: both are assumed to be INCFL's, whose numbers two of its tables repeat.
SEEDS = {"IAFL": 10, "INCFL": 3, "MaxFL": 3, "PFLlib": 3}
SEEDS_OF_TABLES = {("IAFL", f"Table{number}"): 3 for number in (8, 9, 10)}


class Verdict(NamedTuple):
    """What is said of one number or one claim."""

    word: str  # "agrees", "differs", "undecided" or "not run"
    missing: str = ""  # what is, if it was not run or has no standard error; or the counts of many settings

    def __str__(self) -> str:
        return f"{self.word} ({self.missing})" if self.missing else self.word


def spread(paper: str) -> str:
    """The kind of spread after a paper's "±" (ours is of the same kind), e.g. "standard deviation over seeds"."""
    return SPREADS.get(paper, STANDARD_DEVIATION)


def printed_sample(row: Published) -> Sample:
    """The published number with its standard deviation over seeds; NaN if none is printed, or one over clients."""
    seeds = SEEDS_OF_TABLES.get((row.paper, row.table), SEEDS.get(row.paper, 0))
    of_seeds = {STANDARD_DEVIATION: 1, STANDARD_ERROR: math.sqrt(seeds), DEVIATION_OVER_CLIENTS: math.nan}
    return Sample(row.mean, row.std * of_seeds[spread(row.paper)], seeds)


def errors_apart(row: Published, ours: Sample) -> float:
    """``(ours - published) / standard error of both``; NaN if something is missing, 0 for equal numbers."""
    difference, error = ours.mean - row.mean, together(printed_sample(row), ours)
    if math.isnan(difference) or math.isnan(error):
        return math.nan
    if difference == 0:
        return 0.0
    return math.copysign(math.inf, difference) if error == 0 else difference / error


def judge_number(row: Published, ours: Sample, missing: str = "no results") -> Verdict:
    """The verdict on our number, which is in the paper's units; ``missing`` says what is if its mean is NaN."""
    if math.isnan(row.mean):
        return Verdict(NOT_RUN, "the paper prints no number")
    if math.isnan(ours.mean):
        return Verdict(NOT_RUN, missing)
    printed = printed_sample(row)
    unknown = _unknown([ours]) or ("no spread over seeds is printed" if math.isnan(printed.error) else "")
    digit = 0.0 if math.isnan(row.digit) else row.digit
    return Verdict(verdict_on_number(printed, ours, digit), unknown)


def _unknown(ours: Sequence[Sample]) -> str:
    """Why one of our numbers has no standard error; nothing if all have one."""
    if any(each.seeds == 1 for each in ours):
        return "one seed"
    return "no spread over seeds" if any(math.isnan(each.error) for each in ours) else ""


def rank_correlation(published: Sequence[float], ours: Sequence[float]) -> float:
    """Kendall's tau-b of two orders of the algorithms with both numbers; NaN of fewer than two, or all the same."""
    from scipy.stats import kendalltau

    both = [pair for pair in zip(published, ours, strict=True) if not math.isnan(sum(pair))]
    if len(both) < 2:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions warn where all numbers are the same
        correlation: Any = kendalltau(*zip(*both, strict=True), variant="b")
    return float(correlation.statistic)


class Column(NamedTuple):
    """One column of a table: a metric of all algorithms in one setting."""

    table: str  # paper and table
    setting: tuple[str, str, str]  # data set, partition and split
    metric: str  # the published one
    agrees: int  # how many numbers do
    differs: int
    undecided: int  # how many are neither
    not_run: int  # how many there are not
    tau: float  # Kendall's tau-b of both orders of algorithms; NaN if there is none


def summarise_columns(numbers: Sequence[tuple[Published, Sample]]) -> list[Column]:
    """What is said of each column, in the order of the numbers: printed ones and ours (a mean of NaN: none)."""
    columns: dict[tuple[str, ...], list[tuple[Published, Sample]]] = {}
    for row, ours in numbers:
        place = (f"{row.paper}, {row.table}", row.dataset, row.partition, row.split, row.metric)
        columns.setdefault(place, []).append((row, ours))
    summaries = []
    for (table, dataset, partition, split, metric), pairs in columns.items():
        words = [judge_number(row, ours).word for row, ours in pairs]
        tau = rank_correlation([row.mean for row, _ in pairs], [ours.mean for _, ours in pairs])
        agrees, differs, undecided, not_run = (words.count(word) for word in (AGREES, DIFFERS, UNDECIDED, NOT_RUN))
        setting = (dataset, partition, split)
        summaries.append(Column(table, setting, metric, agrees, differs, undecided, not_run, tau))
    return summaries


# Our or a paper's numbers by cell.
Numbers = Mapping[Cell, Sample]

# The forms of a claim: the key, and whether more is better.
COMPARISONS = {"greater_than": True, "less_than": False}
BOUNDS = {"at_least": True, "at_most": False}


class Instead(NamedTuple):
    """Another data set on which we have run what the claim is about, whose own data were not at hand."""

    dataset: str
    partition: str


class Claim(NamedTuple):
    """A statement of a paper that numbers can contradict; its place is as in the published tables."""

    name: str  # unique
    paper: str
    table: str
    dataset: str
    partition: str
    split: str
    metric: str
    statement: str  # in plain English
    printed: str  # where the paper says so
    algorithm: str  # the one that the statement is about
    form: str  # "greater_than", "less_than", "at_least" or "at_most"
    others: tuple[str, ...] = ()  # the algorithms of a comparison
    by: float | None = None  # the least difference of a comparison; None: any above 0; with 0 equal numbers agree
    bound: float = math.nan  # the number of the other forms
    in_print: str = AGREES  # on the printed means, which some statements contradict; "not run" without numbers
    beside: Sequence[str] = ()  # table and partition of the others' numbers, where these are not the claim's own
    best_in: int | None = None  # the comparison holds in so many settings of the table (data sets and partitions)
    instead: Instead | None = None  # where else we have run it
    cause: str = ""  # why ours differ, or what was ruled out

    def cell(self, algorithm: str, instead: bool = False) -> Cell:
        """The place of one algorithm's number; ``instead`` puts it on the other data set."""
        place = Instead(self.dataset, self.partition) if not instead or self.instead is None else self.instead
        return Cell(self.paper, self.table, *place, self.split, algorithm, self.metric)

    def places(self, instead: bool = False) -> dict[str, Cell]:
        """The cells of a claim's numbers by label, its own first."""
        own = self.cell(self.algorithm, instead)
        table, partition = self.beside or (own.table, own.partition)
        named = f" in {table}" if self.beside else ""
        others = {each + named: own._replace(algorithm=each, table=table, partition=partition) for each in self.others}
        return {self.algorithm: own, **others}


class Judged(NamedTuple):
    """A verdict on a claim, and the numbers behind it."""

    claim: Claim
    verdict: Verdict
    numbers: dict[str, Sample]  # by algorithm, the claim's own first, as far as there are any


def judge(claim: Claim, numbers: Numbers, instead: bool = False) -> Judged:
    """Evaluates one claim by numbers in the paper's units: it agrees if all differences do, and differs if one does."""
    # Labels count without case and punctuation.
    if claim.best_in is not None:
        return _judge_settings(claim, claim.best_in, numbers)
    by_label = {_plain(cell): each for cell, each in numbers.items()}
    found = {label: by_label.get(_plain(cell), Sample(math.nan)) for label, cell in claim.places(instead).items()}
    present = {label: each for label, each in found.items() if not math.isnan(each.mean)}
    missing = [label for label in found if label not in present]
    if missing:
        what = "no numbers" if not present else f"no number of {', '.join(missing)}"
        return Judged(claim, Verdict(NOT_RUN, what), present)
    words = _words(claim, present)
    word = next((each for each in (DIFFERS, UNDECIDED) if each in words), AGREES)
    return Judged(claim, Verdict(word, _unknown(list(present.values())) if word == UNDECIDED else ""), present)


def _judge_settings(claim: Claim, least: int, numbers: Numbers) -> Judged:
    """Agrees if the comparison agrees in so many settings, and differs if it cannot in so many."""
    rows = [row for name in tables() for row in read(name) if (row.paper, row.table) == (claim.paper, claim.table)]
    settings = dict.fromkeys((row.dataset, row.partition) for row in rows if row.metric == claim.metric)
    each = claim._replace(best_in=None)
    words = [judge(each._replace(dataset=one, partition=two), numbers).verdict.word for one, two in settings]
    agrees, differs, undecided, not_run = (words.count(word) for word in (AGREES, DIFFERS, UNDECIDED, NOT_RUN))
    word = NOT_RUN if not_run else UNDECIDED
    word = AGREES if agrees >= least else DIFFERS if len(words) - differs < least else word
    known = f"of {len(words)} settings {agrees} agree, {differs} differ, {undecided} are undecided, {not_run} not run"
    return Judged(claim, Verdict(word, known), {})


def _plain(cell: Cell) -> Cell:
    return cell._replace(algorithm=plain_label(cell.algorithm))


def judge_all(claims: Sequence[Claim], numbers: Numbers) -> list[Judged]:
    """Evaluates claims on their own data sets."""
    return [judge(claim, numbers) for claim in claims]


def claims_of(table: str) -> list[Claim]:
    """The claims about a published table, by the name of its file."""
    printed = {(row.paper, row.table) for row in read(table)}
    return [claim for claim in read_claims() if (claim.paper, claim.table) in printed]


@functools.cache
def published_numbers() -> dict[Cell, Sample]:
    """All printed means, as if they had no spread."""
    return {cell_of(row): Sample(row.mean, 0.0, 2) for name in tables() for row in read(name)}


@functools.cache
def read_claims() -> tuple[Claim, ...]:
    """The claims of ``claims.toml``, in its order."""
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
    if options.get("in_print", AGREES) not in (AGREES, DIFFERS, NOT_RUN):
        valid = f"{AGREES}, {DIFFERS} or {NOT_RUN}"
        raise ValueError(f"expected in_print to be {valid} in {where}, got {options['in_print']!r}")
    ways = [key for key in ("best_in", "beside", "instead") if key in options]
    if len(ways) > 1:
        raise ValueError(f"expected at most one of best_in, beside and instead in {where}, got {', '.join(ways)}")
    if "instead" in options:
        if set(options["instead"]) != set(Instead._fields):
            raise ValueError(f"expected instead with dataset and partition in {where}, got {options['instead']!r}")
        options["instead"] = Instead(**options["instead"])
    comparison: dict[str, Any] = {"others": tuple(raw[form])} if form in COMPARISONS else {"bound": float(raw[form])}
    return Claim(**options, **comparison, form=form)


def _words(claim: Claim, numbers: Mapping[str, Sample]) -> list[str]:
    """The verdict on each comparison of a claim, or on its bound, which has no error."""
    own, by = numbers[claim.algorithm], claim.by or 0.0
    if claim.form in BOUNDS:
        return [_exceeds(own, Sample(claim.bound, 0.0, 2), 0.0, BOUNDS[claim.form])]
    more = COMPARISONS[claim.form]
    others = [each for label, each in numbers.items() if label != claim.algorithm]
    return [_exceeds(own, other, by, more, claim.by is None) for other in others]


def _exceeds(own: Sample, other: Sample, by: float, more: bool, strict: bool = False) -> str:
    """Whether ``own - other >= by``, or ``> 0`` with ``strict``; with the sign turned unless ``more``."""
    excess = (own.mean - other.mean if more else other.mean - own.mean) - by
    slack = SLACK * max(abs(own.mean), abs(other.mean))
    return verdict_on_excess(0.0 if abs(excess) <= slack else excess, together(own, other), strict)
