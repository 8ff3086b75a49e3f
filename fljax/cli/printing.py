"""Printing for all commands: errors as sentences, JSON, tables, and the pictures that are written.

The sentence of an unexpected error says the algorithm, the place in the user's code, and the error.
"""

from __future__ import annotations

import ast
import json
import math
import os
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fljax.cli.running import FigureOptions
from fljax.core.errors import AlgorithmError, short, user_frame, writing_to
from fljax.core.errors import in_words as words_of
from fljax.core.names import ABOUT_ALGORITHM
from fljax.core.plain import tell
from fljax.experiments.progress_bars import PlainConsole

if TYPE_CHECKING:
    import xarray as xr

    from fljax.report.kinds.registry import Asked


def fail(sentence: str, code: int) -> int:
    """Prints one sentence on stderr; returns the exit code."""
    tell(f"fljax: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def print_json(value: Any) -> None:
    """Prints a value as JSON in ASCII, with null for NaN and infinities."""
    tell(json.dumps(_finite(value), indent=2))


def print_places(folder: pathlib.Path, report: Sequence[pathlib.Path]) -> None:
    """Prints where results are, and the pictures and pages that were written."""
    tell(f"Results: {folder}")
    for path in report:
        tell(f"Report:  {path}")


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


def as_table(
    lines: Sequence[Sequence[str]],
    title: str = "",
    caption: str = "",
    *,
    words: Collection[str] = (),  # headings of columns of words; the others but the first are numbers
    sums: bool = False,  # whether a rule is above the last line
    fold: bool = False,  # whether a long word goes on in another line where it would be cut
    whole: bool = False,  # whether the first column is never wrapped
    **look: Any,
) -> Table:
    """A table for the terminal; the first line has its headings."""
    table = Table(title=title or None, caption=caption or None, **look)
    for place, head in enumerate(lines[0]):
        justify, overflow = "left" if not place or head in words else "right", "fold" if fold else "ellipsis"
        table.add_column(head, justify=justify, overflow=overflow, no_wrap=whole and not place)
    for place, line in enumerate(lines[1:], 2):
        if sums and place == len(lines):
            table.add_section()
        table.add_row(*line)
    return table


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


PICTURES = "pictures"  # folder of single pictures in a run's folder


def asked_for(options: FigureOptions) -> Asked | None:
    """The figures of --figures; None without it."""
    if options.figures is None:
        if options.clients is not None:
            raise ValueError("expected --clients with --figures, got it without")
        return None
    from fljax.report.kinds.registry import Asked

    names = [name.strip() for name in options.figures.split(",") if name.strip()]
    words = [] if options.clients is None else [word.strip() for word in options.clients.split(",")]
    for word in words:
        if not (word.isascii() and word.removeprefix("-").isdigit()):
            raise ValueError(f"expected ids of clients such as 0,5,9 with --clients, got {options.clients!r}")
    return Asked(tuple(names), tuple(map(int, words)), tuple(options.metric or ()))


def report_of(run: pathlib.Path, asked: Asked | None, targets: Mapping[str, float]) -> list[pathlib.Path]:
    """Writes the report of a run, and figures and rounds to targets if they are asked for; returns the paths."""
    from fljax.core.files import replace
    from fljax.report import page

    if asked is None:
        return list(page.write(run, targets=targets))
    more = page.pictures(run, asked)
    _say(more.missing, f"{run}: ")
    paths = list(page.write(run, more=more, targets=targets))
    with writing_to("a folder to write in", run / PICTURES):
        (run / PICTURES).mkdir(exist_ok=True)
        for name, content in more.content.items():
            paths.append(run / PICTURES / f"{name}.png")
            replace(paths[-1], content)
    return paths


def write_figures(run: pathlib.Path, asked: Asked, folder: pathlib.Path) -> None:
    """Writes the figures that are asked for as PDF and SVG files, and prints their paths."""
    from fljax.report.exporting import write_kinds

    with writing_to("a folder to write in", folder):
        written, missing = write_kinds(run, asked, folder)
    _say(missing)
    _print(written)


def write_pictures(metrics: xr.Dataset, records: xr.Dataset, folder: pathlib.Path) -> None:
    """Writes every picture of the report as a PDF and an SVG file, and prints their paths."""
    from fljax.report.exporting import write_panels

    with writing_to("a folder to write in", folder):
        written = write_panels(metrics, records, folder)
    _print(written)


def _print(paths: list[pathlib.Path]) -> None:
    for path in paths:
        tell(path)


def _say(sentences: tuple[str, ...], before: str = "") -> None:
    """Prints sentences on stderr, beside what the command writes."""
    for sentence in sentences:
        fail(before + sentence, 0)
