"""Errors of users' code: which algorithm failed, in which function, for which client, and at which line."""

from __future__ import annotations

import bdb
import contextlib
import linecache
import os
import pathlib
import site
import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_OURS = pathlib.Path(__file__).resolve().parents[1]
_LONGEST = 600  # characters of an error's own words
# Where JAX's advice begins.
_ADVICE = ("\n\n", "\nThe error occurred while tracing", "\nThis BatchTracer", "\nSee https://")
# The beginning of a note that names a local step.
_STEP = "local step "
# Packages whose lines say nothing of a user's mistake, if the user's own packages are installed beside them.
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "chex", "jaxtyping", "beartype", "fljax")
# The module of the engine that calls the functions of algorithms.
_CALLER = _OURS / "engine" / "rounds" / "errors.py"
# Code that was typed, without a file.
_TYPED = ("<stdin>", "<ipython-input", "<doctest")


class AlgorithmError(RuntimeError):
    """An exception in a function of an algorithm, as one sentence; ``__cause__`` is the exception itself.

    ``own:moon: train of client 3 (round 0, seed 0, local step 2) raised KeyError: 'nope' (my_algorithms.py:31)``.
    Clients, rounds, seeds and steps are known where numbers are: with ``Execution(clients="debug")`` or
    ``jax_disable_jit``. Elsewhere the functions are traced once for all clients.

    Attributes:
      algorithm: its label in a config, or the name of its builder; None: unknown.
      function: the function of the protocol (``train``, ``contribute``, ...), "the builder", "evaluation",
        "standalone training", or a function of the user's with its name ("the loss mine").
      words: type and message of the exception.
      place: ``file.py:12``, the innermost line of the user's code; without such a line, fljax's own; None: unknown.
      client: its id; None: unknown.
      unseen: whether the client is an unseen one.
      round: the round; in an evaluation, the number of rounds done. None: unknown.
      seed: of the run; None: unknown.
      step: the local step, from 0; None: unknown.
    """

    def __init__(self, function: str, words: str, place: str | None = None) -> None:
        super().__init__(function, words, place)
        self.function, self.words, self.place = function, words, place
        self.algorithm: str | None = None
        self.client: int | None = None
        self.unseen = False
        self.round: int | None = None
        self.seed: int | None = None
        self.step: int | None = None

    def complete(self, **about: Any) -> None:
        """Sets attributes that are unknown so far; arrays become numbers, and traced values are ignored."""
        for name, value in about.items():
            if getattr(self, name) is None or getattr(self, name) is False:
                known = value if isinstance(value, str | bool) else _number(value)
                if known is not None:
                    setattr(self, name, known)

    def __str__(self) -> str:
        who = "" if self.client is None else f" of client {self.client}"
        if self.unseen:
            who = " of an unseen client" if self.client is None else f" of unseen client {self.client}"
        numbers = {"round": self.round, "seed": self.seed, "local step": self.step}
        when = ", ".join(f"{name} {number}" for name, number in numbers.items() if number is not None)
        start = f"{self.algorithm}: " if self.algorithm else ""
        where = f" ({self.place})" if self.place else ""
        return f"{start}{self.function}{who}{f' ({when})' if when else ''} raised {self.words}{where}"


class ProcessLost(Exception):
    """Another process of the run has ended, or cannot be reached. This process cannot go on without it."""


@contextmanager
def during(function: str, **about: Any) -> Generator[None, None, None]:
    """Turns an exception inside into an ``AlgorithmError`` of the innermost function; fljax's own sentences stay."""
    try:
        yield
    except AlgorithmError as error:
        error.complete(**about)
        raise
    except Exception as error:
        ours = is_sentence(error) and _is_raised(error)
        if ours or isinstance(error, bdb.BdbQuit):  # a user left the debugger
            raise
        raised = AlgorithmError(function, in_words(error), place_of(error))
        raised.complete(**about)
        notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_STEP)]
        raised.step = int(notes[0].removeprefix(_STEP)) if notes else None
        raise raised from error


@contextmanager
def at_step(step: Any) -> Generator[None, None, None]:
    """Adds a note with the number of the local step to an exception inside, if the number is not traced."""
    try:
        yield
    except Exception as error:
        number = _number(step)
        attach(error, None if number is None else f"{_STEP}{number}")
        raise


@contextmanager
def writing_to(what: str, path: Any) -> Generator[None, None, None]:
    """Turns an OSError inside into a ValueError: ``expected WHAT, got 'PATH' (the system's words)``."""
    try:
        yield
    except OSError as error:
        words = getattr(error.__cause__, "strerror", None) or error.strerror or error  # ``files.write`` names its cause
        raise ValueError(f"expected {what}, got {str(path)!r} ({words})") from None


def attach(error: BaseException, note: str | None = None, **results: Any) -> None:
    """Adds a note and attributes to an error, also to a frozen one, which gets a subclass; Python sets some."""
    kind, usual = type(error), BaseException.__setattr__
    with contextlib.suppress(Exception):  # a layout of its own
        if kind.__setattr__ is not usual:
            named = {"__setattr__": usual, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
            object.__setattr__(error, "__class__", type(kind.__name__, (kind,), named))
        for name, value in results.items():
            setattr(error, name, value)
        if note is not None:
            error.add_note(note)


def is_own(error: BaseException) -> bool:
    """Whether the last line in which the error was is of fljax's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _is_below(frames[-1].filename, _OURS)


def is_sentence(error: BaseException) -> bool:
    """Whether the error is a message to the user about bad input, which fljax's own code raised."""
    return isinstance(error, ValueError | FileNotFoundError) and is_own(error)


def _is_raised(error: BaseException) -> bool:
    """Whether the last line in which the error was is a ``raise``."""
    # JAX removes its own lines, so that the last one left may be a line of ours that called JAX.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return not line or line.startswith("raise")


def in_words(error: BaseException) -> str:
    """Type and message on one line; JAX's advice in further paragraphs or after the first line is left out."""
    message = str(error).strip()
    for advice in _ADVICE:
        message = message.partition(advice)[0]
    words = " ".join(f"{type(error).__name__}: {message}".removesuffix(": ").split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the user's code, else of a package that fljax does not stand on; None if there is none."""
    frames, paths = _frames(error), sysconfig.get_paths()
    of_python = [pathlib.Path(paths[name]) for name in ("stdlib", "platstdlib")]
    installed = [pathlib.Path(folder) for folder in {paths["purelib"], paths["platlib"], *site.getsitepackages()}]
    libraries = [folder / name for folder in installed for name in _LIBRARIES]
    outside = [frame for frame in frames if _is_code(frame.filename) and not _is_below(frame.filename, _OURS)]
    of_user = [frame for frame in outside if not _is_below(frame.filename, *installed, *of_python)]
    others = [
        frame
        for frame in outside
        if _is_below(frame.filename, *installed) and not _is_below(frame.filename, *libraries)
    ]
    return next((frame for group in (of_user, others) for frame in reversed(group)), None)


def place_of(error: BaseException) -> str | None:
    """``file.py:12`` of the user's code; without any, of fljax's own; None if there is neither."""
    frame = user_frame(error)
    if frame is not None:
        return f"{short(frame.filename)}:{frame.lineno}"
    ours = [frame for frame in _frames(error) if _is_below(frame.filename, _OURS)]
    if not ours or ours[-1].filename == __file__:
        return None
    return f"{pathlib.Path(ours[-1].filename).resolve().relative_to(_OURS.parent)}:{ours[-1].lineno}"


def short(file: str) -> str:
    """The path of a file, relative to the current directory if the file is below it; a notebook's cell by its name."""
    if "ipykernel_" in file:
        return "a cell of the notebook"
    return os.path.relpath(file) if pathlib.Path(file).is_relative_to(os.getcwd()) else file


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames below the last call of this module."""
    # An operation of a gradient fails where JAX computes the gradient. JAX then gives the place of the operation itself
    # as the cause, with the whole stack.
    cause = error.__cause__
    if cause is not None and type(cause).__name__ == "JaxStackTraceBeforeTransformation":
        frames = traceback.extract_tb(cause.__traceback__)
        calls = [place for place, frame in enumerate(frames) if pathlib.Path(frame.filename) == _CALLER]
        if calls:
            return list(frames[calls[-1] + 1 :])
    return list(traceback.extract_tb(error.__traceback__))


def _is_code(file: str) -> bool:
    """Whether a frame's file holds code that somebody wrote, and not generated code."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    return os.path.isabs(file) or os.path.isfile(file)


def _is_below(file: str, *folders: pathlib.Path) -> bool:
    path = pathlib.Path(file)
    return any(path.is_relative_to(folder) or path.resolve().is_relative_to(folder) for folder in folders)


def _number(value: Any) -> int | None:
    """A concrete whole number; None for traced values, arrays of several numbers and None."""
    with contextlib.suppress(Exception):
        return int(value)
    return None
