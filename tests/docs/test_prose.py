"""Pages are written for readers whose first language is another one: sentences begin with their subject."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").glob("*.toml"))]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# Clauses without a subject or a noun, and words that a dictionary of learners lacks.
HARD = re.compile(r'^(Of|That of|Those of|Who|Whoever|Whose|Nor)\b|(?<!")\b[Ww]hoever\b|\bheed')


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs, points and cells of tables, without blocks of code and headings."""
    prose = re.sub(r"^( *)```.*?^\1```|^#.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d+\.) )|\s\|\s|^\w+ = |\"\"\"", prose, flags=re.MULTILINE)
    return [each for part in parts for each in re.split(r"(?<=[.:;!?])\s+", " ".join(part.split()).lstrip('-*`["'))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_sentences_begin_with_their_subject(path: pathlib.Path) -> None:
    hard = [each for each in sentences(path.read_text(encoding="utf-8")) if HARD.search(each) and each[-1:] != "?"]
    assert not hard


@pytest.mark.parametrize("room", ["config", "data", "experiments", "games"])
def test_docstrings_begin_with_their_subject(room: str) -> None:
    for path in sorted((ROOT / "fljax" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                said = sentences(ast.get_docstring(node) or "")
                assert not [each for each in said if HARD.search(each) and each[-1:] != "?"], path
