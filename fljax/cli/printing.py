"""Printing for all commands: errors as sentences, JSON and tables.

The sentence of an unexpected error says the algorithm, the place in the user's code, and the error.
"""

from __future__ import annotations

import ast
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

from fljax.core.errors import AlgorithmError, short, user_frame
from fljax.core.errors import in_words as words_of
from fljax.core.names import ABOUT_ALGORITHM
from fljax.core.texts.plain import tell
from fljax.experiments.consoles import PlainConsole


def fail(sentence: str, code: int) -> int:
    """Prints one sentence on stderr; returns the exit code."""
    tell(f"fljax: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def print_json(value: Any) -> None:
    """Prints a value as JSON in ASCII, with null for NaN and infinities."""
    tell(json.dumps(_finite(value), indent=2))


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def console(width: int | None = None) -> PlainConsole:
    """A console for tables, which prints labels literally; ``width`` without a terminal, so that no cell is wrapped."""
    return PlainConsole(width=None if sys.stdout.isatty() else width)


def absent_platform() -> str | None:
    """A sentence if JAX cannot start on the platforms that the environment asks for; None: it can."""
    asked = os.environ.get("JAX_PLATFORMS")
    if not asked:
        return None
    import jax

    try:
        jax.devices()
    except Exception:  # RuntimeError or AssertionError, with and without the platform's package
        return (
            f"JAX_PLATFORMS: expected platforms that JAX finds on this machine, got {asked!r}; without this variable "
            "JAX takes the best one that it finds"
        )
    return None


def sentence(error: BaseException) -> str:
    """A sentence of an error, after the label of the algorithm that it is about, unless it has the label."""
    words, label = str(error), _label(error)
    named = label is None or words.startswith((f"{label}:", f"algorithms.{label}"))
    return words if named else f"{label}: {words}"


def _label(error: BaseException) -> str | None:
    notes = getattr(error, "__notes__", ())
    label = next((note.removeprefix(ABOUT_ALGORITHM) for note in notes if note.startswith(ABOUT_ALGORITHM)), None)
    return None if label is None else str(ast.literal_eval(label))


def in_words(error: BaseException) -> str:
    """``algorithm 'mine' failed in train (my_module.py:12): KeyError: 'nope'``; unknown parts are omitted."""
    if isinstance(error, AlgorithmError):
        return str(error)
    whose = next((note for note in getattr(error, "__notes__", ()) if note.startswith(ABOUT_ALGORITHM)), "")
    frame = user_frame(error)
    where = "" if frame is None else f"in {frame.name} ({short(frame.filename)}:{frame.lineno})"
    start = " ".join(filter(None, [whose, "failed" if whose or where else "", where]))
    return ": ".join(filter(None, [start, words_of(error)]))
