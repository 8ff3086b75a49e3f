"""Docstrings in Google's style, signatures and tables, as Markdown."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_HEAD = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^  (\*{0,2}\w[\w, ]*): ?(.*)$")
# Annotations in words; all else stays code.
_WORDS = {
    "float": "number",
    "int": "integer",
    "bool": "true or false",
    "str": "text",
    "None": "None",
    "Optimizer": "an optax optimizer",
    "Sequence[float]": "one for each client",
    "Sequence[int]": "integers",
    "Sequence[str]": "names",
    "Sequence[Sequence[float]]": "lists of numbers",
    "Sequence[Any]": "a list",
    "Callable[[str], bool]": "a function",
    "os.PathLike[str]": "a path",
}


def sections(thing: Any) -> dict[str, str]:
    """The sections of a docstring by name; "" has what comes before the first."""
    text = inspect.getdoc(thing) or ""
    first, *rest = _HEAD.split(text)
    return {"": first.strip(), **{name: body.rstrip() for name, body in zip(rest[::2], rest[1::2], strict=True)}}


def items(section: str) -> dict[str, str]:
    """The entries ``name: text`` of a section, each in one line."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        match = _ITEM.match(line)
        if match:
            names = [each.strip(" *") for each in match[1].split(",")]
            found |= dict.fromkeys(names, match[2])
        elif line.strip():
            for name in names:
                found[name] += " " + line.strip()
    return found


def prose(text: str) -> str:
    """Paragraphs without the line breaks of the source; lists, tables and indented blocks are kept."""
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", text.strip())))


def _paragraph(text: str) -> str:
    if text.startswith("===="):
        _, head, _, *rows, _ = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.splitlines())
        return table(head, rows)
    kept = re.search(r"^\s*([-*>|]|\d+\.|>>>|    )", text, re.MULTILINE)
    return text if kept else " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(each.split())) for each in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def alternatives(annotation: str) -> list[str]:
    """The parts of ``A | B[C | D]``, at the outermost level."""
    parts, depth, quoted = [""], 0, False
    for letter in annotation:
        quoted ^= letter == '"'
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [each.strip() for each in parts]


def type_in_words(annotation: Any, names: Mapping[str, Any] | None = None) -> str:
    """An annotation of a hyper-parameter, in words; ``names`` has the meaning of aliases."""
    found: list[str] = []
    for part in alternatives(str(annotation).replace("'", '"')):
        alias = (names or {}).get(part)
        if typing.get_origin(alias) is typing.Literal:
            found += [f'`"{each}"`' for each in typing.get_args(alias)]
            continue
        if re.match(r'(Float|Real|Int)\[\w+, ""\]', part):
            continue  # the traced form of a number
        if part.startswith("Literal["):
            found += [f"`{each.strip()}`" for each in part[8:-1].split(",")]
        elif re.match(r'(Float|Real|Shaped|Int|Bool)\[\w+, " ?N"\]', part):
            found.append("one for each client")
        elif re.match(r'\w+\[\w+, "\*rounds N"\]', part):
            found.append("one for each client, or for each round and client")
        else:
            found.append(_WORDS.get(part, f"`{part}`"))
    return ", ".join(dict.fromkeys(found))


def value_in_words(value: Any) -> str:
    """A value as code, texts in double quotes."""
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


def default_in_words(parameter: inspect.Parameter) -> str:
    """A default as code."""
    if parameter.default is parameter.empty:
        return "required"
    if hasattr(parameter.default, "_fields"):
        return f"`{type(parameter.default).__name__}()`"
    return value_in_words(parameter.default)


def own_parameters(build: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The keyword parameters of a builder: its hyper-parameters or options."""
    parameters = inspect.signature(build).parameters
    return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


def in_toml(value: Any) -> str:
    """A plain value as TOML."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return str(value)
