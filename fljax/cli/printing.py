"""Printing for all commands: errors, JSON and tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Container, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

# Headings of the metrics that tables on the terminal show, in their order.
_MAIN = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "preferred_model_accuracy": "preferred",
    "average_accuracy": "average",
    "unseen_average_accuracy": "average unseen",
}
# Also those of a task without accuracies, and where messages that are not finite are dropped.
_LOSSES = {"average_loss": "average loss", "unseen_average_loss": "average loss unseen"}
_DROPPED = {"dropped_messages": "dropped"}


def main_columns(names: Container[str]) -> dict[str, str]:
    """The headings of the main metrics among ``names``, by metric."""
    headings = (_MAIN if "average_accuracy" in names else _MAIN | _LOSSES) | _DROPPED
    return {name: words for name, words in headings.items() if name in names}


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
