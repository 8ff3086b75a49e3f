"""HTML, made by the templates of ``page.html`` alone, which escape what they are given."""

from __future__ import annotations

import base64
import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

# What is no ``Markup`` is text, so HTML that was put together as a string is shown and not obeyed.


@functools.cache
def _templates() -> Any:
    """The macros of the file are attributes, which no type knows."""
    text = importlib.resources.files("fljax").joinpath("core", "page.html").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(text).module


def page(heading: str, parts: Sequence[str], attached: Mapping[str, str], reload: int | None = None) -> str:
    """A page of its own: a heading, the parts, and the attached texts by title; ``reload`` in seconds, None: never."""
    # A lone surrogate, which is no text, is written as its escape.
    return str(_templates().page(heading, parts, attached, reload)).encode(errors="backslashreplace").decode()


def joined(*parts: str) -> Markup:
    """Parts one after another."""
    return Markup("").join(parts)


def section(title: str, *parts: str) -> Markup:
    """Parts under a title."""
    return joined(_templates().title(title), *parts)


def table(lines: Sequence[Sequence[str]], caption: str = "") -> Markup:
    """A table; the first line has its headings."""
    return _templates().table(lines, caption)


def wide(part: str) -> Markup:
    """A part that readers may scroll sideways."""
    return _templates().wide(part)


def figures(parts: Sequence[str]) -> Markup:
    """Parts beside each other."""
    return _templates().figures(parts)


def note(*sentences: str, kind: str = "note") -> Markup:
    """Sentences, a line each; ``kind`` is "note", "warning" or, for neither, ""."""
    return _templates().note(sentences, kind)


def folded(words: str, part: str) -> Markup:
    """A part that is shown when a reader asks for it."""
    return _templates().folded(words, part)


def long_table(lines: Sequence[Sequence[str]], words: str, most: int) -> Markup:
    """A wide table; one of more than ``most`` lines is folded under ``words``."""
    framed = wide(table(lines))
    return framed if len(lines) - 1 <= most else folded(words, framed)


def image(content: bytes, words: str) -> Markup:
    """A PNG picture; ``words`` say what it shows, for readers who cannot see it."""
    return _templates().image(base64.b64encode(content).decode("ascii"), words)


def bar(share: float) -> Markup:
    """How much of something is done, from 0 to 1."""
    return _templates().bar(f"{share:.4f}")
