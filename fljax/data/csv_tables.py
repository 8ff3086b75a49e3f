"""Tables in CSV files: columns of labels, clients and parts are text first, all others are as pandas reads them."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.data.frames import Columns, label_columns
from fljax.naming import shown

_MARK = "="
Kind = Literal["id", "label", "number", "text"]
# A number as Python writes it: different texts of this form are different numbers.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class TextForm(NamedTuple):
    """How a CSV file is written.

    Attributes:
      encoding: of the file's text, e.g. ``"latin-1"``, ``"utf-16"`` or ``"gbk"``.
      separator: one character between the cells of a row, e.g. ``";"`` or a tab.
      decimal: the character before the decimals of a number, e.g. ``","``.
    """

    encoding: str = "utf-8"
    separator: str = ","
    decimal: str = "."


def read_text(place: Path, columns: Columns, form: TextForm) -> Any:
    """The table in a file whose first line has the names of columns.

    Columns of labels, clients, parts and paths of images are text, and None where a cell is empty; ``with_numbers``
    makes numbers of them.

    Args:
      place: the file; its end ``.gz`` means that it is compressed.
      columns: what the columns are.
      form: how the file is written.

    Returns:
      A pandas DataFrame. A column without a name, as pandas writes row numbers, is left out.

    Raises:
      ValueError: if the file cannot be read, or rows have more cells than the first line.
    """
    import pandas

    encoding, separator, decimal = form
    _check_form(encoding, separator, decimal)
    kinds = _kinds(columns)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            found = pandas.read_csv(
                place,
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
    found = found[[name for name in found.columns if not str(name).startswith("Unnamed: ")]]
    _check_separator(list(found.columns), list(kinds), separator)
    for name in kinds:
        if name in found.columns:
            texts = [text.removeprefix(_MARK) or None for text in found[name].tolist()]
            found = found.assign(**{name: pandas.Series(texts, found.index, object)})
    return found


def with_numbers(tables: Sequence[Any], columns: Columns, decimal: str = ".") -> list[Any]:
    """Tables of ``read_text`` with numbers in place of texts, as ``numbers_or_text`` says of each column of all tables.

    So a column is text in all tables if it is text in one: "7" is no number if another file has "007".
    """
    import pandas

    found = list(tables)
    for name, kind in _kinds(columns).items():
        having = [place for place, table in enumerate(found) if name in table.columns]
        if not having:
            continue
        joined = numbers_or_text(pandas.concat([found[place][name] for place in having]), kind, decimal)
        start = 0
        for place in having:
            end = start + len(found[place])
            found[place] = found[place].assign(**{name: joined.iloc[start:end]})
            start = end
    return found


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
    """A column of text as numbers, if its texts are numbers without doubt: then different texts are different numbers.

    Args:
      column: a pandas Series of text and None.
      kind: "id" makes whole numbers alone, if every text is one as Python writes it: 7, and neither 007 nor 1e5.
        "label" also makes bools of True and False, and floats if all are numbers and one is written with decimals.
        "number" makes floats of all numbers. "text" makes none.
      decimal: the character before decimals.
    """
    import pandas

    texts = [each for each in column.tolist() if each is not None]
    if kind == "text" or not texts or len(texts) < len(column):
        return column
    if kind != "number" and all(_WHOLE.fullmatch(each) for each in texts):
        return pandas.Series(np.array([int(each) for each in texts], np.int64), column.index)
    if kind == "label" and set(texts) <= {"True", "False"}:
        return pandas.Series(np.array([each == "True" for each in texts]), column.index)
    if kind != "id" and (decimal == "." or not any("." in each for each in texts)):
        texts = [each.replace(decimal, ".") for each in texts]
        written = kind == "number" or any("." in each for each in texts)
        if written and all(_DECIMAL.fullmatch(each) for each in texts):
            return pandas.Series(np.array([float(each) for each in texts]), column.index)
    return column


def one_line(error: BaseException) -> str:
    """What an error of another library says, for a sentence."""
    return shown(" ".join(str(error).split()) or type(error).__name__)
