"""Columns of words: one column of 0 and 1 for each word, and a last one for missing words and all others."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from fljax.core.names import shown
from fljax.data.arrays import is_missing, text_of

# A column of more different words, or of another one in each of so many rows, has names or texts.
MOST, _ROWS = 1000, 20
# Beside "?", texts that pandas takes for missing values in CSV files.
MISSING = {"", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None"}
_OTHERS = {"M": "dates", "m": "times", "c": "complex numbers"}


def words_of(name: Any, column: Any, trains: np.ndarray) -> tuple[str, ...] | None:
    """The words of a column of features in the rows that may train, in order; None: it has numbers."""
    import pandas

    read: Any = pandas.to_numeric
    cells = list(map(text_of, column.tolist()))
    known = [cell for cell in cells if not _is_missing(cell)]
    wrong = next((value for value in known if not isinstance(value, str | numbers.Real | np.bool_)), None)
    texts, marked = any(isinstance(cell, str) for cell in known), not MISSING.isdisjoint(map(_word, cells))
    in_training = [_word(cell) for cell in compress(cells, trains) if not _is_missing(cell)]
    if hasattr(column, "cat"):
        words = dict.fromkeys(map(_word, column.cat.categories.tolist()))
    elif column.dtype.kind in _OTHERS or wrong is not None:
        got = f"{_OTHERS.get(column.dtype.kind) or shown(wrong)} in {name!r}; choose columns with features="
        raise ValueError(f"expected numbers or words in the columns of features, got {got}")
    elif not texts or (marked and not np.isnan(read(np.array(known, object), errors="coerce")).any()):
        return None
    else:
        words = dict.fromkeys(sorted(set(in_training)))
    if len(words) > MOST or _ROWS < len(in_training) == len(words):
        raise ValueError(
            f"expected at most {MOST} different words in a column of features, and fewer than rows, got {len(words)} "
            f"in {len(in_training)} rows of {name!r}; choose columns with features="
        )
    return tuple(words)


def one_hot(values: Any, words: Sequence[str]) -> np.ndarray:
    """``[n, words + 1]``."""
    place = {word: number for number, word in enumerate(words)}
    cells = np.asarray(values).tolist()
    found = [len(words) if _is_missing(cell) else place.get(_word(text_of(cell)), len(words)) for cell in cells]
    return np.eye(len(words) + 1, dtype=np.float32)[found]


def as_numbers(values: Any) -> np.ndarray:
    """Numbers, also as text, as float64; NaN for a missing one."""
    cells = np.asarray(values)
    if cells.dtype.kind in "OU" and cells.ndim == 1:
        cells = np.array([np.nan if _is_missing(cell) else cell for cell in cells.tolist()])
    return cells.astype(np.float64)


def _is_missing(cell: Any) -> bool:
    return is_missing(cell) or (isinstance(cell, str) and cell.strip() in MISSING)


def _word(value: Any) -> str:
    """A word without blanks at its ends; 1.0 is 1, since pandas makes floats of whole numbers beside missing ones."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
