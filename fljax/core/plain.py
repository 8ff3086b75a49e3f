"""Texts without effect: no character drives a terminal, and no cell of a table is a formula."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# Categories of characters that end a line, control a terminal or change the direction of text. Two joiners are
# allowed, as scripts and emoji need them.
_CONTROL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
_UNUSUAL = re.compile("[^\n\t -~]")  # what may be one, but for line breaks and tabs
_FORMULA = ("=", "+", "-", "@", "\t")  # how a cell begins that a spreadsheet computes


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _CONTROL and character not in _JOINERS


def has_control(text: str) -> bool:
    """Whether a text has a control character, such as a line break, an escape or a surrogate."""
    return any(map(_is_control, text))


def plain(text: str) -> str:
    r"""A text with its control characters as Python writes them (``\x1b``), but for line breaks and tabs."""
    return _UNUSUAL.sub(lambda found: repr(found[0])[1:-1] if _is_control(found[0]) else found[0], text)


def tell(*values: object, end: str = "\n", sep: str = " ", file: Any = None, flush: bool = False) -> None:
    """``print`` of plain texts."""
    print(*(plain(str(value)) for value in values), sep=sep, end=end, file=file, flush=flush)


def as_csv(table: Any) -> str:
    """A DataFrame without its index as CSV; texts that a spreadsheet would take for a formula begin with ``'``."""
    table = table.copy(deep=False)
    for place, kind in enumerate(table.dtypes):
        if kind.kind not in "biufc":
            table.isetitem(place, table.iloc[:, place].map(in_cell).astype(object))
    return table.rename(columns=in_cell).to_csv(index=False, lineterminator="\n")


def in_cell(value: Any) -> Any:
    """A value of a table: texts are ``plain``; one that begins like a formula, but is no number, gets ``'``."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text if text == text.strip() else f"'{text}"
