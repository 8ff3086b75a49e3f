"""Fonts for letters that matplotlib's own font lacks, such as Chinese ones: installed ones, or else one sentence."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterable, Iterator

import matplotlib
import xarray as xr
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

_SHOWN = 20  # letters in the sentence
_BOXES = "Last Resort"  # the name of a font that has a box for every letter


def texts_of(metrics: xr.Dataset, *more: str) -> list[str]:
    """Texts that pictures of these metrics may show: names in coordinates, and others that are given."""
    found = [str(each) for axis in metrics.coords.values() if axis.dtype.kind in "UO" for each in axis.values.flat]
    return [*found, *more]


@contextlib.contextmanager
def fonts_for(texts: Iterable[str]) -> Iterator[None]:
    """Within it, figures that are made and drawn take installed fonts for letters that the usual font lacks.

    Letters that no font has are boxes, without a warning for each of them; ``font_note`` says so.
    """
    families, _ = _found(_letters(texts))
    usual = matplotlib.rcParams["font.family"]
    with matplotlib.rc_context({"font.family": [*usual, *families]}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def font_note(texts: Iterable[str]) -> str | None:
    """A sentence on letters that no installed font has; None: there are none."""
    _, lacking = _found(_letters(texts))
    if not lacking:
        return None
    letters = "".join(lacking[:_SHOWN]) + ("..." if len(lacking) > _SHOWN else "")
    return f"No installed font has the letters {letters}, which are boxes in pictures; another font may have them."


def _letters(texts: Iterable[str]) -> str:
    """The letters of some texts that the usual font lacks, in ascending order."""
    usual = _charmap(findfont(FontProperties()))
    return "".join(sorted({letter for text in texts for letter in text if letter.isprintable()} - usual))


@functools.lru_cache(maxsize=64)
def _found(letters: str) -> tuple[tuple[str, ...], str]:
    """The families that have these letters, those with most of them first, and the letters that none has."""
    families: list[str] = []
    lacking = set(letters)
    fonts = [each for each in fontManager.ttflist if letters and not each.name.startswith(_BOXES)]
    having = {each.name: lacking & _charmap(each.fname) for each in fonts}
    while lacking:
        name = max(sorted(having), key=lambda name: len(having[name] & lacking), default=None)
        if name is None or not having[name] & lacking:
            break
        families.append(name)
        lacking -= having[name]
    return tuple(families), "".join(sorted(lacking))


@functools.lru_cache(maxsize=1024)
def _charmap(path: str) -> frozenset[str]:
    """The letters of a font; none if its file cannot be read."""
    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()
