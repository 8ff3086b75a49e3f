"""The papers in ``references.bib``."""

from __future__ import annotations

import re

from fljax import algorithms, scenarios
from fljax.algorithms.entries import _entries, bibtex

CITED = [each.references for each in (*algorithms.REGISTRY.values(), *scenarios.REGISTRY.values())]


def test_every_paper_of_the_file_is_cited_and_none_is_missing() -> None:
    assert {key for keys in CITED for key in keys} == set(_entries())


def test_entries_are_whole() -> None:
    for key, entry in _entries().items():
        assert re.match(rf"@(article|inproceedings)\{{{key},\n  title = \{{", entry)
        assert entry.endswith("\n}")
        assert entry.count("{") == entry.count("}")
        assert "@" not in entry[1:]


def test_several_papers_are_in_the_order_of_their_keys() -> None:
    both = bibtex(("wu2024incentive", "khan2023ipfl"))
    assert re.findall(r"^@\w+\{(\w+),", both, re.MULTILINE) == ["wu2024incentive", "khan2023ipfl"]
    assert "}\n\n@article{khan2023ipfl,\n" in both
    assert bibtex(()) == ""
