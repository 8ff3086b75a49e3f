"""Texts of docstrings and tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(each.split())) for each in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def paragraph(text: str) -> str:
    """A paragraph of ``fljax.cli.catalogue``: a sentence, perhaps with code below it; or a table."""
    sentence, _, block = text.partition("\n")
    if sentence:
        return f"{sentence}\n\n```text\n{block}\n```" if block else sentence
    return table(*_rows(block)) if block else ""


def _rows(block: str) -> tuple[list[str], list[list[str]]]:
    head, *rows = (re.split(r"\s{2,}", each.strip(), maxsplit=1) for each in block.splitlines())
    return head, rows


def prose(text: str) -> str:
    """Paragraphs without the line breaks of the source; lists, examples and indented blocks are kept."""
    kept = re.compile(r"^\s*([-*>|]|\d+\.|>>>|    )", re.MULTILINE)
    parts = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(each if kept.search(each) else " ".join(each.split()) for each in parts)
