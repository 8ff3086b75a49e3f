"""What every command prints with."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def fail(sentence: str, code: int) -> int:
    """Prints one sentence on stderr, with escapes for what would steer the terminal; returns the exit code."""
    print(f"fljax: {_escaped(' '.join(sentence.split()))}", file=sys.stderr)
    return code


def _escaped(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_json(value: Any) -> None:
    """Prints a value as JSON, with null for NaN and infinities."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
