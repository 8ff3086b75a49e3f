"""Printing for all commands: errors, JSON and tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def fail(sentence: str, code: int) -> int:
    """Prints one sentence on stderr, with control characters escaped; returns the exit code."""
    print(f"fljax: {_escaped(' '.join(sentence.split()))}", file=sys.stderr)
    return code


def _escaped(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_json(value: Any) -> None:
    """Prints a value as JSON, with null for NaN and infinities."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def console(width: int) -> Console:
    """A console for tables that prints labels literally: no markup, and no emoji for ``:moon``.

    Args:
      width: width of the output without a terminal (a file, a pipe), so that no cell is wrapped.
    """
    return Console(width=None if sys.stdout.isatty() else width, markup=False, emoji=False)
