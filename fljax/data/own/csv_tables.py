"""Tables in CSV files: columns of labels, clients and parts are text first, all others are as pandas reads them."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import re
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.core.files import check_memory
from fljax.core.names import shown
from fljax.data.own.frames import Columns, label_columns

_MARK = "="
Kind = Literal["id", "label", "number", "text"]
# A number as Python writes it: different texts of this form are different numbers.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_WORDS = {"i": "whole numbers", "f": "numbers with decimals", "b": "True and False"}
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class TextForm(NamedTuple):
    """How a CSV file is written; the options of ``table`` with these names."""

    encoding: str = "utf-8"
    separator: str = ","
    decimal: str = "."


class Unpacked(gzip.GzipFile):
    """A compressed file that may not unpack to more than the memory."""

    def read(self, size: int | None = -1) -> bytes:
        """As any file."""
        check_memory(self.tell())
        return super().read(size)

    read1 = read  # through which text is read


def read_text(place: Path, columns: Columns, form: TextForm) -> Any:
    """The table in a CSV file (or .gz), with text or None in columns of labels, clients, parts and images."""
    # ``with_numbers`` makes numbers of texts. A first column without a name is left out: pandas' row numbers.
    import pandas

    encoding, separator, decimal = form
    _check_form(encoding, separator, decimal)
    kinds = _kinds(columns)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            table = pandas.read_csv(
                Unpacked(place) if place.suffix.lower() == ".gz" else place,
                encoding=encoding,
                sep=separator,
                decimal=decimal,
                skipinitialspace=True,
                # Otherwise rows with one cell more than the line of names would be shifted by one column.
                index_col=False,
                # Otherwise the type of a column would depend on the length of the file.
                low_memory=False,
                # The mark in front keeps pandas from taking "NA", "None" or "null" for a missing value.
                converters=dict.fromkeys(kinds, _MARK.__add__),
            )
    except pandas.errors.ParserWarning:
        raise ValueError(
            "expected rows with as many fields as the line of names, got longer ones; "
            f"{shown(separator)} inside a text or a number needs quotes around it"
        ) from None
    except UnicodeError as error:
        raise ValueError(
            f"expected text with the encoding {encoding}, got {one_line(error)}; "
            "name the file's own, e.g. encoding = 'latin-1', 'utf-16' or 'gbk'"
        ) from None
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, EOFError, zlib.error) as error:
        raise ValueError(
            f"expected a table with a line of names and {separator!r} between cells, got {one_line(error)}"
        ) from None
    except OSError as error:
        raise ValueError(f"expected a file that can be read, got {one_line(error)}") from None
    last = table.iloc[:, -1]
    table = _named_columns(table, _line_of_names(place, form, checked=bool((last.isna() | (last == _MARK)).any())))
    _check_separator(list(table.columns), list(kinds), separator)
    made: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name in table.columns:
            texts = [text.removeprefix(_MARK) for text in table[name].tolist()]
            if kind != "text":  # blanks at the ends, and accents apart from their letters, make no other value
                texts = [unicodedata.normalize("NFC", text).strip() for text in texts]
            texts = [text or None for text in texts]
            made[name] = pandas.Series(texts, table.index, object)
    return table.assign(**made)


def with_numbers(tables: Sequence[Any], names: Sequence[str], columns: Columns, decimal: str = ".") -> list[Any]:
    """Tables of ``read_text`` with numbers in place of texts, by ``numbers_or_text`` of columns of all tables."""
    # A column is text in all tables if it is text in one: "7" is no number if another file has "007".
    import pandas

    made, changed = list(tables), [dict[Any, Any]() for _ in tables]
    for name, kind in _kinds(columns).items():
        having = [place for place, table in enumerate(made) if name in table.columns]
        if not having:
            continue
        parts = [made[place][name] for place in having]
        joined = numbers_or_text(pandas.concat(parts), kind, decimal)
        files = [names[place] for place in having]
        if kind != "text" and joined.dtype == object:
            _check_forms(parts, files, name, decimal)
        if len(parts) > 1 and name in label_columns(columns.label) and kind != "number":
            _check_kinds(parts, joined, files, name, decimal)
        start = 0
        for place in having:
            end = start + len(made[place])
            changed[place][name] = joined.iloc[start:end]
            start = end
    return [table.assign(**each) if each else table for table, each in zip(made, changed, strict=True)]


def _check_forms(parts: Sequence[Any], files: Sequence[str], name: Any, decimal: str) -> None:
    """Raises a ValueError if a whole number is written with decimals, too: 1 and 1.0."""
    where: dict[str, str] = {}
    for part, file in zip(parts, files, strict=True):
        for text in part.tolist():
            if text is not None:
                where.setdefault(text, file)
    for text, file in where.items():
        whole, point, decimals = text.partition(decimal)
        if point and whole in where and _WHOLE.fullmatch(whole) and not decimals.strip("0"):
            raise ValueError(
                f"expected each value of the column {name!r} in one form, got {whole!r} in {where[whole]} and {text!r} "
                f"in {file}"
            )


def _check_kinds(parts: Sequence[Any], joined: Any, files: Sequence[str], name: Any, decimal: str) -> None:
    """Raises a ValueError if some files have whole numbers as labels, and others bools or 1.0."""
    # Numbers such as 1.5 leave no doubt that labels are numbers to predict, and text that they are classes.
    having: dict[str, str] = {}
    for part, file in zip(parts, files, strict=True):
        if len(part):
            having.setdefault(numbers_or_text(part, "label", decimal).dtype.kind, file)
    doubt = joined.dtype.kind == "f" and bool(np.all(joined.to_numpy() % 1 == 0))
    for one, other in (("i", "b"), ("f", "b"), *([("i", "f")] if doubt else [])):
        if one in having and other in having:
            advice = "; regression = true makes numbers to predict of both" if other == "f" else ""
            raise ValueError(
                f"expected labels of one kind in the column {name!r}, got {_WORDS[one]} in {having[one]} and "
                f"{_WORDS[other]} in {having[other]}{advice}"
            )


def _line_of_names(place: Path, form: TextForm, checked: bool) -> list[str]:
    """The names of columns as the file has them: pandas would call the second one of two equal names y.1."""
    # If it is ``checked``, a row with fewer cells is refused, as its values may stand in wrong columns.
    opened = gzip.open if place.suffix.lower() == ".gz" else open
    # Without a byte order mark.
    encoding = "utf-8-sig" if codecs.lookup(form.encoding).name == "utf-8" else form.encoding
    with opened(place, "rt", encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=form.separator, skipinitialspace=True)
        rows = (cells for cells in reader if len(cells) > 1 or any(map(str.strip, cells)))
        try:
            names = [cells.strip() for cells in next(rows, [])]
            width = max((place for place, name in enumerate(names, 1) if name), default=0)
            short = ((place, len(cells)) for place, cells in enumerate(rows) if len(cells) < width)
            row, count = next(short, (0, width)) if checked else (0, width)
        except csv.Error as error:
            raise ValueError(f"expected a line of names, got {one_line(error)}") from None
    if count < width:
        raise ValueError(
            f"expected {width} cells in each row, as in the line of names, got {count} in row {row}, counted from 0"
        )
    return names


def _named_columns(table: Any, written: Sequence[str]) -> Any:
    """The columns that have names; ``written`` are the names in the file."""
    twice = next((name for name, count in Counter(written).items() if name and count > 1), None)
    if twice is not None:
        raise ValueError(f"expected different names of columns, got {twice!r} twice")
    named = [not str(name).startswith("Unnamed: ") for name in table.columns]
    if all(named):
        return table
    for place, (name, text) in enumerate(itertools.zip_longest(table.columns, written, fillvalue="")):
        if place >= len(named) or named[place]:
            continue
        # pandas calls columns of row numbers so when it reads and writes a table again.
        numbers = place == 0 or (text and not any(named[:place]))
        if not numbers and table[name].notna().any():
            raise ValueError(
                f"expected a name for each column but the first one, got none for column {place + 1} of {len(named)}, "
                f"which stands after {str(table.columns[place - 1])!r}"
            )
    return table[list(itertools.compress(table.columns, named))]


def _kinds(columns: Columns) -> dict[Any, Kind]:
    """The columns that are read as text, and what becomes of their texts."""
    labels = label_columns(columns.label)
    of_labels: Kind = "number" if columns.regression or len(labels) > 1 else "label"
    kinds: dict[Any, Kind] = dict.fromkeys(labels, "id" if columns.regression is False else of_labels)
    kinds |= {name: "id" for name in (columns.client, columns.part) if name is not None}
    if columns.images is not None:
        kinds[columns.images] = "text"
    return kinds


def _check_form(encoding: str, separator: str, decimal: str) -> None:
    if not isinstance(separator, str) or len(separator) != 1 or separator in "\"'\r\n":
        raise ValueError(f"expected separator to be one character, such as ';', got {separator!r}")
    if not isinstance(decimal, str) or len(decimal) != 1 or decimal == separator or decimal.isalnum():
        raise ValueError(f"expected decimal to be one character other than the separator, got {decimal!r}")
    try:
        "".encode(encoding)
    except (LookupError, TypeError):
        raise ValueError(f"expected a known encoding, such as utf-8 or latin-1, got {encoding!r}") from None


def _check_separator(names: Sequence[str], texts: Sequence[str], separator: str) -> None:
    """Raises a ValueError if the line of names seems to have another separator."""
    if all(name in names for name in texts):
        return
    for other, said in ((";", "';'"), ("\t", "a tab ('\\t')"), ("|", "'|'"), (",", "','")):
        if other != separator and any(other in str(name) for name in names):
            raise ValueError(
                f"expected {separator!r} between cells, got a line of names with {said}, {shown(str(names[0]))}; "
                f"say separator = {other!r}"
            )


def numbers_or_text(column: Any, kind: Kind, decimal: str = ".") -> Any:
    """A column of text as numbers, if these are numbers without doubt: different texts, different numbers."""
    # "id" makes whole numbers alone (7, but neither 007 nor 1e5), "label" also bools, and floats if one has decimals.
    # "number" makes floats of all numbers. "text" makes none.
    import pandas

    texts = [text for text in column.tolist() if text is not None]
    if kind == "text" or not texts or len(texts) < len(column):
        return column
    if kind != "number" and all(_WHOLE.fullmatch(text) for text in texts):
        return pandas.Series(np.array([int(text) for text in texts], np.int64), column.index)
    if kind == "label" and set(texts) <= {"True", "False"}:
        return pandas.Series(np.array([text == "True" for text in texts]), column.index)
    if kind != "id" and (decimal == "." or not any("." in text for text in texts)):
        texts = [text.replace(decimal, ".") for text in texts]
        written = kind == "number" or any("." in text for text in texts)
        if written and all(_DECIMAL.fullmatch(text) for text in texts):
            return pandas.Series(np.array([float(text) for text in texts]), column.index)
    return column


def one_line(error: BaseException) -> str:
    """What an error of another library says, for a sentence."""
    return shown(" ".join(str(error).split()) or type(error).__name__)
