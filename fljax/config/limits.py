"""Limits on the size and values of a config, checked before any array is made.

A comment gives the reason of each limit. A config beyond a limit raises an error with one sentence.
"""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Mapping
from typing import Any

from fljax.core.names import shown

# JAX indexes arrays with 32-bit integers.
LARGEST_INTEGER = 2**31 - 1
# A random key holds the round in 27 bits, above five bits of purpose, and the client's id in 24
# (fljax.engine.rounds.keys).
MOST_ROUNDS = 2**27 - 1
MOST_CLIENTS = 2**24
# Keys are made of 32-bit seeds; larger seeds would repeat the random numbers of smaller seeds.
LARGEST_SEED = 2**32 - 1
# Every seed has its own federation and models on the device.
MOST_SEEDS = 2**16
# Every cell of a sweep is parsed and checked, and its results are kept.
MOST_CELLS = 10_000
# TOML's integers have 64 bits.
INTEGERS = range(-(2**63), 2**63)
# The limit for algorithms in a comparison and for scenarios around an algorithm; scenarios are nested calls.
MOST_ENTRIES = 200
# In bytes; tomllib needs some seconds for a file of this size.
LARGEST_FILE = 2**22
DEEPEST_TABLE = 32
MOST_BASES = 16
LONGEST_LABEL = 100

# Categories of characters that end a line, control a terminal or change the direction of text. Two joiners are
# allowed, as scripts and emoji need them.
_CONTROL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"


def has_control(text: str) -> bool:
    """Whether a text has a control character, such as a line break, an escape or a surrogate."""
    return any(unicodedata.category(each) in _CONTROL and each not in _JOINERS for each in text)


def label(value: Any) -> Any:
    """Checks a label for tables and pictures and returns it; pydantic checks values other than text.

    Raises:
      ValueError: if the label is blank, longer than ``LONGEST_LABEL`` or has control characters.
    """
    if isinstance(value, str) and (not value.strip() or len(value) > LONGEST_LABEL or has_control(value)):
        raise ValueError(
            f"expected a label of 1 to {LONGEST_LABEL} characters without control characters, got {shown(value)}"
        )
    return value


def printable(value: Any) -> Any:
    """Checks a text for control characters and returns it; pydantic checks values other than text.

    Raises:
      ValueError: if the text has control characters.
    """
    if isinstance(value, str) and has_control(value):
        raise ValueError(f"expected text without control characters, got {shown(value)}")
    return value


def check_values(raw: Mapping[str, Any]) -> None:
    """Checks every value of nested tables and lists, independent of its key.

    Raises:
      ValueError: if tables and lists are nested more than ``DEEPEST_TABLE`` deep, an integer has more than 64 bits, a
        number is NaN, or a text has a NUL or a surrogate, which files and results cannot hold.
    """
    # A stack instead of recursion, since tables may be deeper than Python's own stack.
    left: list[tuple[tuple[str, ...], Any]] = [((), raw)]
    while left:
        path, value = left.pop()
        if isinstance(value, Mapping | list | tuple):
            if len(path) >= DEEPEST_TABLE:
                top = ".".join(path[:1])
                raise ValueError(f"{top}: expected tables and lists at most {DEEPEST_TABLE} deep, got deeper ones")
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, each in pairs:
                _check_text(path, key)
                left.append(((*path, str(key)), each))
        elif isinstance(value, int) and value not in INTEGERS:
            raise ValueError(f"{'.'.join(path)}: expected an integer of at most 64 bits, got {shown(value)}")
        elif isinstance(value, float) and value != value:
            raise ValueError(f"{'.'.join(path)}: expected a number, got nan")
        else:
            _check_text(path, value)


def _check_text(path: tuple[str, ...], value: Any) -> None:
    if isinstance(value, str) and any(each == "\0" or unicodedata.category(each) == "Cs" for each in value):
        where = f"{'.'.join(path)}: " if path else ""
        raise ValueError(f"{where}expected text without NUL and surrogates, got {shown(value)}")


def is_date(value: Any) -> bool:
    """Whether a value is one of TOML's dates or times."""
    return isinstance(value, datetime.date | datetime.time)
