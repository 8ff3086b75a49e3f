"""The page about the papers' claims: ``fljax/published/claims.toml`` beside the committed cells of our results."""

from __future__ import annotations

import math
import pathlib
from collections import Counter
from collections.abc import Sequence

from docs.generator.markdown import table
from fljax.published.beside import number
from fljax.published.tables import UNDECIDED, Measured, Sample, cell_of, read, read_folder, tables
from fljax.published.verdicts import (
    AGREES,
    DIFFERS,
    NOT_RUN,
    Claim,
    Judged,
    Numbers,
    judge,
    judge_all,
    read_claims,
    summarise_columns,
)

CELLS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "cells"

OPENING = """# The papers' claims

This page lists what four papers claim with their tables, and says whether our numbers agree. The claims are data
(`fljax/published/claims.toml`): each says where it is printed, and is checked with means over seeds. Our numbers come
from committed reports (`benchmarks/results/cells`). This page is generated from both.

**{counts}**

Our numbers are mean ± standard deviation over seeds, with the number of seeds. A claim *agrees* if our means have the
claimed order, or difference, by at least two standard errors of both means together, and it *differs* if they miss it
by as much. Otherwise, and with one seed, it is *undecided*. If a claim differs, the error may be in the paper or in
fljax; known reasons are [below](#why-ours-differ). {contradicted} claims are contradicted by the means of their own
table.

Methods share data and seeds, but we add their errors as if they were independent. This is cautious if a seed helps or
hurts both methods. With few seeds two standard errors are a weak rule: two equal methods with three seeds each differ
by more in 12 of 100 cases, with five seeds in 8.
"""

# How the rates of our runs were chosen, where papers print grids alone; and what is absent.
NOTES = {
    "INCFL": "All methods have rate 0.005 in all tables, at which INCFL's IPR of Table 1 was the largest of a grid.",
    "MaxFL": "In Tables 1 and 2 each method has the rate of its highest test accuracy under flexible participation, as "
    "the paper says: 0.001 for MaxFL. In Tables 3 and 4, whose printed numbers are INCFL's, all have INCFL's, 0.005.",
    "IAFL": "Rates are those of the authors' code. Section 4.2 names two measures of contributions that fljax does not "
    "have: FedFAIM and R-RCCE.",
    "IP-FL": "On Fashion-MNIST all methods have rate 0.1, the best of three for FedAvg and for IP-FL.",
}

NUMBERS = """## Number by number

Take the difference of our mean and the printed one, and two standard errors of both together. A number *differs* if the
difference minus the errors is more than one unit of the last printed decimal. It *agrees* if the difference plus the
errors is at most two printed standard deviations (another run of the paper would lie there), or one unit. Otherwise it
is *undecided*. A number of one seed, or without a printed spread over seeds, is undecided, too. IAFL prints standard
errors over 10 seeds (3 in Tables 8 to 10), INCFL standard deviations over 3. MaxFL does not say what its spreads are.
We assume standard deviations over 3 seeds as in INCFL, whose numbers MaxFL's Tables 3 and 4 repeat. With any number of
seeds from 2 to 5 the verdicts on its numbers are the same. IP-FL prints standard deviations over clients, which say
nothing about seeds. Kendall's τ compares the printed order of algorithms with ours: 1 is the same order, -1 the
opposite. Columns without any run are left out.
"""


OWN = """## Check it yourself

```bash
fljax reproduce --list
fljax reproduce incfl_table1_unseen --dataset FMNIST
```

The first command says what each table needs and costs. The second starts or resumes the missing runs, and prints
our numbers beside the printed ones, with a verdict for each number and each claim. `--quick` only shows that everything
runs. `--save FILE.csv` writes our numbers in the form of the committed files. `fljax reproduce TABLE FOLDER` uses the
numbers of an existing run. A claim that compares two tables is not judged there, because it needs the numbers of both.
"""


def pages() -> dict[str, str]:
    """The page by its path."""
    return {"claims.md": page(read_claims(), read_folder(CELLS))}


def page(claims: Sequence[Claim], cells: Sequence[Measured]) -> str:
    """The page as Markdown."""
    numbers = {each.cell: each.sample for each in cells}
    judged = judge_all(claims, numbers)
    contradicted = sum(claim.in_print == DIFFERS for claim in claims)
    parts = [OPENING.format(counts=in_words(judged), contradicted=contradicted)]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        own = [each for each in judged if each.claim.paper == paper]
        lines = [_line(each, numbers) for each in own]
        listed = table(("claim", "place in the paper", "ours", "verdict"), lines)
        parts.append(f"## {paper}\n\n{in_words(own)}. {NOTES[paper]}\n\n{listed}\n")
    causes = [_cause(each, numbers) for each in judged]
    parts.append("## Why ours differ\n\n" + "\n".join(cause for cause in causes if cause) + "\n")
    parts += [f"{NUMBERS}\n{_columns(numbers)}\n", OWN]
    return "\n".join(parts)


def in_words(judged: Sequence[Judged]) -> str:
    """The counts of verdicts: "52 claims: 12 agree, 9 differ, 10 undecided, 21 not run"."""
    count = Counter(each.verdict.word for each in judged)
    decided = f"{count[AGREES]} agree, {count[DIFFERS]} differ"
    return f"{len(judged)} claims: {decided}, {count[UNDECIDED]} undecided, {count[NOT_RUN]} not run"


def _line(judged: Judged, numbers: Numbers) -> tuple[str, ...]:
    claim = judged.claim
    statement = f"{claim.statement} *{claim.dataset}, {claim.partition}, {claim.split}: `{claim.metric}`*"
    verdict, ours = f"**{judged.verdict.word}**", _numbers(judged)
    if judged.verdict.missing:
        verdict += f" ({judged.verdict.missing})"
    if claim.in_print == DIFFERS:
        verdict += "; contradicts its own table"
    if claim.in_print == NOT_RUN:
        verdict += "; no number is printed"
    if claim.instead is not None and judged.verdict.word == NOT_RUN:
        other = judge(claim, numbers, instead=True)
        verdict += f"; on {claim.instead.dataset}, {claim.instead.partition}, it {_verb(other.verdict.word)}"
        ours = f"{claim.instead.dataset}: {_numbers(other)}" if other.numbers else ours
    return statement, claim.printed, ours or "–", verdict


def _verb(word: str) -> str:
    return {NOT_RUN: "was not run", UNDECIDED: "is undecided"}.get(word, word)


def _numbers(judged: Judged) -> str:
    """Mean ± standard deviation of each method, and the seeds: once, if all have the same number."""
    seeds = [each.seeds for each in judged.numbers.values()]
    own = [
        f"{label} {number(each.mean, each.deviation, judged.claim.metric)}" for label, each in judged.numbers.items()
    ]
    if len(set(seeds)) > 1:
        return ", ".join(f"{text} ({_seeds(count)})" for text, count in zip(own, seeds, strict=True))
    return f"{', '.join(own)} ({_seeds(seeds[0])})" if seeds else ""


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _cause(judged: Judged, numbers: Numbers) -> str:
    """A line about a claim that differs, or is undecided though something is known, on its own data or on others."""
    claim = judged.claim
    words = [judged.verdict.word]
    if claim.instead is not None:
        words.append(judge(claim, numbers, instead=True).verdict.word)
    return f"- **{claim.paper}:** {claim.statement} {claim.cause.strip()}" if claim.cause or DIFFERS in words else ""


def _columns(numbers: Numbers) -> str:
    rows = [row for name in tables() for row in read(name)]
    pairs = [(row, numbers.get(cell_of(row), Sample(math.nan))) for row in rows]
    lines = [
        (
            each.table.replace("Table", "Table "),
            ", ".join(each.setting),
            f"`{each.metric}`",
            *(str(count) for count in (each.agrees, each.differs, each.undecided)),
            "–" if math.isnan(each.tau) else f"{each.tau:.2f}",
        )
        for each in summarise_columns(pairs)
        if each.agrees + each.differs + each.undecided
    ]
    return table(("table", "setting", "metric", "agree", "differ", "undecided", "τ"), lines)
