"""One-sentence descriptions of unexpected errors: the algorithm, the place in the user's code, and the error."""

from __future__ import annotations

import ast
import os

from fljax.core.errors import AlgorithmError, short, user_frame
from fljax.core.errors import in_words as words_of
from fljax.core.names import ABOUT_ALGORITHM


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
    found = next((note.removeprefix(ABOUT_ALGORITHM) for note in notes if note.startswith(ABOUT_ALGORITHM)), None)
    return None if found is None else str(ast.literal_eval(found))


def in_words(error: BaseException) -> str:
    """``algorithm 'mine' failed in train (my_module.py:12): KeyError: 'nope'``; unknown parts are omitted.

    An ``AlgorithmError`` is a sentence already.
    """
    if isinstance(error, AlgorithmError):
        return str(error)
    whose = next((note for note in getattr(error, "__notes__", ()) if note.startswith(ABOUT_ALGORITHM)), "")
    frame = user_frame(error)
    where = "" if frame is None else f"in {frame.name} ({short(frame.filename)}:{frame.lineno})"
    start = " ".join(filter(None, [whose, "failed" if whose or where else "", where]))
    return ": ".join(filter(None, [start, words_of(error)]))
