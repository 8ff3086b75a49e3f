"""Reads the package's docstrings: paragraphs, arguments and sources, for ``fljax list`` and ``fljax show``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields", "Example", "Examples")
# What only equations have, between double backticks.
_EQUATION = re.compile(r"<-| = | ~ |\|\||\b(?:sum|min|max|argmin|argmax|mean)_")


class Docstring(NamedTuple):
    """The parts of a docstring, each without line breaks that say nothing.

    Attributes:
      paragraphs: the text outside of sections, except for the source; a literal block keeps its lines.
      arguments: the lines of ``Args`` or ``Attributes``, by name.
      sections: the text of the other sections, by heading.
      source: the paragraph that begins with "Source:", without this word; "" if there is none.
    """

    paragraphs: tuple[str, ...]
    arguments: Mapping[str, str]
    sections: Mapping[str, str]
    source: str

    @property
    def equations(self) -> tuple[str, ...]:
        """The paragraphs that state an equation."""
        return tuple(each for each in self.paragraphs if states_equation(each))


def docstring_of(value: Any) -> Docstring:
    """The parts of an object's own docstring, of a partial function's inner one; empty parts if it has none."""
    return parse(getattr(getattr(value, "func", value), "__doc__", None) or "")


def parse(text: str) -> Docstring:
    """The parts of a docstring in Google's style."""
    heading, blocks = "", {"": list[str]()}
    for line in inspect.cleandoc(text).splitlines():
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            heading = line.rstrip(":")
        elif heading and line and not line.startswith(" "):
            heading = ""
        blocks.setdefault(heading, []).append("" if heading and line.rstrip(":") == heading else line)
    paragraphs = _paragraphs(blocks.pop(""))
    arguments: dict[str, str] = {}
    for name in ("Args", "Attributes"):
        arguments |= _entries(blocks.pop(name, []))
    sections = {name: " ".join(" ".join(lines).split()) for name, lines in blocks.items()}
    source = next((each for each in paragraphs if each.startswith("Source:")), "")
    others = tuple(each for each in paragraphs if each != source)
    return Docstring(others, arguments, sections, source.removeprefix("Source:").strip())


def first_sentence(text: str) -> str:
    """A text up to its first full stop at the end or before a capital letter, without the stop."""
    return re.split(r"(?<!et al)\.(?= [A-Z`]|$)", text, maxsplit=1)[0]


def states_equation(paragraph: str) -> bool:
    """Whether a paragraph has an equation between double backticks, or in a literal block that is no config."""
    sentence, _, literal = paragraph.partition("\n")
    block = sentence and literal and not literal.lstrip().startswith("[")
    return bool(block) or any(_EQUATION.search(each) for each in re.findall(r"``(.+?)``", paragraph))


def plain(text: str, mark: str = "`") -> str:
    """A text with ``mark`` for double backticks."""
    return text.replace("``", mark)


def _paragraphs(lines: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        if not block.strip():
            continue
        if block.startswith("  ") and found:  # a literal block belongs to the sentence above it
            found[-1] = f"{found[-1].removesuffix(':')}\n{block.rstrip()}"
        elif block.startswith("==="):  # a table
            rows = [f"  {line}" for line in block.splitlines() if not line.startswith("===")]
            found.append("\n".join(["", *rows]))
        else:
            found.append("" if block.strip() == "::" else " ".join(block.split()))
    return tuple(filter(None, found))


def _entries(lines: list[str]) -> dict[str, str]:
    """``name: text`` at the least indentation; what is indented more goes on with the text."""
    filled = [line for line in lines if line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    found: dict[str, str] = {}
    name = ""
    for line in filled:
        match = re.match(rf"\s{{{least}}}(\*{{0,2}}\w[\w, *]*):\s*(.*)", line)
        if match:
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found
