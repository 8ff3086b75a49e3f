"""One-sentence descriptions of unexpected errors: the algorithm, the place in the user's code, and the error."""

from __future__ import annotations

import os
import pathlib
import site
import sysconfig
import traceback

from fljax.naming import ABOUT_ALGORITHM

_OURS = pathlib.Path(__file__).resolve().parents[1]


def in_words(error: BaseException) -> str:
    """``algorithm 'mine' failed in train (my_module.py:12): KeyError: 'nope'``; unknown parts are omitted."""
    whose = next((note for note in getattr(error, "__notes__", ()) if note.startswith(ABOUT_ALGORITHM)), "")
    frame = _of_user(error)
    where = "" if frame is None else f"in {frame.name} ({_short(frame.filename)}:{frame.lineno})"
    # JAX's errors have explanations in further paragraphs.
    message = f"{type(error).__name__}: {str(error).strip().partition(chr(10) * 2)[0]}"
    start = " ".join(filter(None, [whose, "failed" if whose or where else "", where]))
    return " ".join(": ".join(filter(None, [start, message])).split())


def _of_user(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame that is in neither fljax, nor Python, nor an installed package."""
    paths = sysconfig.get_paths()
    others = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")] + site.getsitepackages()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = pathlib.Path(frame.filename)
        if file.is_file() and not any(file.resolve().is_relative_to(each) for each in (_OURS, *others)):
            return frame
    return None


def _short(file: str) -> str:
    """The path of a file, relative to the current directory if the file is below it."""
    return os.path.relpath(file) if pathlib.Path(file).is_relative_to(os.getcwd()) else file
