"""The claims that papers make with their tables (``fljax/published/claims.toml``), and whether our numbers agree.

A claim is about one metric of one setting. It compares an algorithm with others, or with a number, by means over seeds.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fljax.published.tables import Cell, cell_of, plain_label, read, tables
from fljax.published.verdicts import AGREES, DIFFERS, NOT_RUN, SLACK, Verdict

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
    """The claims about a published table, by the name of its file.

    Raises:
      ValueError: if there is no table of that name.
    """
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
    """Claims from TOML.

    Raises:
      ValueError: if the text is no TOML, or a claim has an unknown, missing or contradictory key.
    """
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
    own = numbers[claim.algorithm]
    if claim.form in BOUNDS:
        return _exceeds(own, claim.bound, 0.0, BOUNDS[claim.form])
    return all(_exceeds(own, numbers[label], claim.by, COMPARISONS[claim.form]) for label in claim.others)


def _exceeds(own: float, other: float, by: float | None, more: bool) -> bool:
    """``own - other >= by``, or ``> 0`` if ``by`` is None; with the sign turned unless ``more``."""
    difference = own - other if more else other - own
    slack = SLACK * max(abs(own), abs(other))
    return difference > slack if by is None else difference >= by - slack
