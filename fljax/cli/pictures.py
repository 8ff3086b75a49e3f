"""Files of pictures that ``fljax report`` and ``fljax export`` write, with the kinds of figure that are asked for."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fljax.cli.options import FigureOptions
from fljax.cli.printing import fail
from fljax.core.texts.plain import tell

if TYPE_CHECKING:
    import xarray as xr

    from fljax.report.kinds.registry import Asked

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
    try:
        (run / PICTURES).mkdir(exist_ok=True)
        for name, content in more.content.items():
            paths.append(run / PICTURES / f"{name}.png")
            replace(paths[-1], content)
    except OSError as error:
        raise _no_folder(run / PICTURES, error) from None
    return paths


def write_figures(run: pathlib.Path, asked: Asked, folder: pathlib.Path) -> None:
    """Writes the figures that are asked for as PDF and SVG files, and prints their paths."""
    from fljax.report.exporting import write_kinds

    try:
        written, missing = write_kinds(run, asked, folder)
    except OSError as error:
        raise _no_folder(folder, error) from None
    _say(missing)
    _print(written)


def write_pictures(metrics: xr.Dataset, records: xr.Dataset, folder: pathlib.Path) -> None:
    """Writes every picture of the report as a PDF and an SVG file, and prints their paths."""
    from fljax.report.exporting import write_panels

    try:
        written = write_panels(metrics, records, folder)
    except OSError as error:
        raise _no_folder(folder, error) from None
    _print(written)


def _print(paths: list[pathlib.Path]) -> None:
    for path in paths:
        tell(path)


def _say(sentences: tuple[str, ...], before: str = "") -> None:
    """Prints sentences on stderr, beside what the command writes."""
    for sentence in sentences:
        fail(before + sentence, 0)


def _no_folder(folder: pathlib.Path, error: OSError) -> ValueError:
    return ValueError(f"expected a folder to write in, got {str(folder)!r} ({error.strerror})")
