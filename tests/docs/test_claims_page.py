"""The page of claims: counts, verdicts and causes are those of the data."""

from __future__ import annotations

import re

import pytest

from docs import generate
from docs.generator import claims as generator
from fljax.published.tables import read_folder
from fljax.published.verdicts import judge_all, read_claims


def test_the_page_counts_what_it_lists() -> None:
    text = generator.pages()["claims.md"]
    counted = r"\*\*(\d+) claims: (\d+) agree, (\d+) differ, (\d+) undecided, (\d+) not run\*\*"
    said = [int(each) for each in re.findall(counted, text)[0]]
    assert said[0] == sum(said[1:]) == len(read_claims())
    lines = [line for line in text.splitlines() if line.startswith("| ") and "**" in line]
    words = [re.findall(r"\*\*(agrees|differs|undecided|not run)\*\*", line)[-1] for line in lines]
    assert [words.count(word) for word in ("agrees", "differs", "undecided", "not run")] == said[1:]


def test_spread_and_seeds_stand_beside_every_number() -> None:
    text = generator.pages()["claims.md"]
    numbers = {each.cell: each.sample for each in read_folder(generator.CELLS)}
    for judged in judge_all(read_claims(), numbers):
        for label, each in judged.numbers.items():
            digits = 1 if "pct" in judged.claim.metric else 2
            spread = f" ± {each.deviation:.{digits}f}" if each.seeds > 1 else ""
            there = re.escape(f"{label} {each.mean:.{digits}f}{spread}") + rf"[^|]*\({each.seeds} seed"
            assert re.search(there, text), judged


def test_every_claim_that_differs_has_its_cause_on_the_page() -> None:
    text = generator.pages()["claims.md"]
    numbers = {each.cell: each.sample for each in read_folder(generator.CELLS)}
    for judged in judge_all(read_claims(), numbers):
        if judged.verdict.word == "differs":
            assert f"{judged.claim.statement} {judged.claim.cause.strip()}" in text, judged.claim.name


def test_claims_are_printed_where_readers_find_them() -> None:
    """Tables, figures, sections and paragraphs; lines are numbered in some versions of a paper only."""
    for claim in read_claims():
        assert re.match(r"(Caption of )?(Table|Figure|Section|Appendix) ", claim.printed), claim.printed
        assert not re.search(r"\blines? \d", claim.printed, re.IGNORECASE), claim.printed


def test_nothing_is_claimed_without_numbers() -> None:
    text = generator.page(read_claims(), [])
    assert f"{len(read_claims())} claims: 0 agree, 0 differ, 0 undecided, {len(read_claims())} not run" in text
    assert "Kendall" in text


@pytest.mark.in_turn
def test_the_site_has_the_page() -> None:
    assert "claims.md" in generate.pages()
    assert "claims.md" in (generate.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
