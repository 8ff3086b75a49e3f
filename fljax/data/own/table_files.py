"""Tables in files: CSV or Parquet, one file or several, with test rows or the rows of a client, or paths of images.

In CSV files columns of labels, clients and parts are text first; all other columns are as pandas reads them, with "?"
for a missing value.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import math
import re
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.core.files import check_memory
from fljax.core.names import shown
from fljax.data.arrays import is_file, one_line, with_home
from fljax.data.datasets import Dataset
from fljax.data.own.frames import (
    RowsOfFiles,
    TableOptions,
    as_frame,
    check_column,
    check_complete,
    label_columns,
    named_columns,
    read_columns,
)
from fljax.data.own.image_folders import check_size, read_images

ENDINGS = (".csv", ".csv.gz", ".parquet")


class TableFile(NamedTuple):
    """One file of a table."""

    place: Path
    test: bool = False
    client: Any = None  # whose rows they are; None: a column says it, or rows have no owners


def check_images(options: TableOptions) -> None:
    """Raises a ValueError if options of a column of images do not fit each other."""
    if options.images is None:
        for name in ("image_folder", "size"):
            if getattr(options, name) is not None:
                raise ValueError(f"expected {name} together with images, the column of paths, got {name} alone")
        return
    if options.images in label_columns(options.label):
        raise ValueError(f"expected different columns as label and images, got {options.images!r} as both")
    for name in ("features", "shape", "vocabulary"):
        if getattr(options, name) is not None:
            raise ValueError(f"expected images, the column of paths, or {name}, got both")
    check_size(options.size)


def read_files(name: str, files: Sequence[TableFile], options: TableOptions) -> Dataset:
    """The rows of some files as one data set, in the order of the files; errors call it ``name``."""
    # Either all files have a client or none. Test files without a column of clients have rows of nobody.
    tables = [_read(file, options) for file in files]
    split = any(file.test for file in files)
    full = [len(table) > 0 or not file.test or file.client is None for file, table in zip(files, tables, strict=True)]
    files, tables = list(itertools.compress(files, full)), list(itertools.compress(tables, full))
    if split and not any(file.test for file in files):
        raise ValueError(f"{name}: expected test rows in some file of test rows, got none")
    with naming(name):
        tables = _with_numbers(files, tables, options)
    if len(files) > 1:
        tables = _alike(files, tables, options)
    rows = None
    if len(files) > 1 or files[0].client is not None:
        test = np.concatenate([np.full(len(table), file.test) for file, table in zip(files, tables, strict=True)])
        rows = RowsOfFiles(test, _owners(files, tables, options.client))
    pixels = None if options.images is None else _images(files, tables, options)
    with naming(name):
        return read_columns(_joined(tables), options, pixels=pixels, rows=rows)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts a file's name before what a ValueError says."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def ending(place: Path) -> str:
    """The end of a file's name in small letters, e.g. ``".csv"`` or ``".csv.gz"``."""
    return "".join(place.suffixes[-2:]).lower() if place.suffix.lower() == ".gz" else place.suffix.lower()


def _read(file: TableFile, options: TableOptions) -> Any:
    with naming(_name(file)):
        if ending(file.place) != ".parquet":
            return read_text(file.place, options)
        return as_frame(_read_parquet(file.place))


def _read_parquet(place: Path) -> Any:
    import pandas

    try:
        return pandas.read_parquet(place)
    except ImportError:
        raise ValueError(
            "expected pyarrow to read .parquet, got none; install it (pip install 'fljax[parquet]')"
        ) from None
    except Exception as error:  # pyarrow's errors for damaged files have several classes
        raise ValueError(f"expected a table in Parquet, got {one_line(error)}") from None


def _alike(files: Sequence[TableFile], tables: Sequence[Any], options: TableOptions) -> list[Any]:
    """The tables with the columns of the first one, in its order."""
    named = named_columns(options)
    with naming(_name(files[0])):
        for name in [*named, *(options.features or ())]:
            check_column(tables[0], name)
    chosen = options.features is not None or options.images is not None
    used = list(tables[0].columns)
    if chosen:
        used = list(dict.fromkeys([*named, *(options.features or ())]))
    alike = []
    for file, table in zip(files, tables, strict=True):
        with naming(_name(file)):
            if not len(table):
                raise ValueError("expected at least one row, got none")
            written = {str(name).strip().lower() for name in table.columns}
            absent = options.client if file.test and str(options.client).lower() not in written else None
            names = [name for name in used if name != absent]
            missing = [name for name in names if name not in table.columns]
            more = [name for name in table.columns if name not in used and not chosen]
            if missing or more:
                got = [f"none named {_listed(missing)}"] * bool(missing) + [f"{_listed(more)} more"] * bool(more)
                raise ValueError(f"expected the columns of {_name(files[0])}, got {' and '.join(got)}")
            part = table if list(table.columns) == names else table[names]
            for name in named:
                if name in names:
                    check_complete(part[name], name)
            alike.append(part)
    several = len(label_columns(options.label)) > 1
    strict = [options.client] if several or options.regression is not None else [options.client, options.label]
    types = [dict(table.dtypes) for table in alike]
    for name in used:
        different = {str(kinds[name]) for kinds in types if name in kinds}
        if len(different) > 1 or "category" in different:
            _check_kinds(files, alike, name, whole=name in strict, feature=name not in named)
    return alike


def _check_kinds(files: Sequence[TableFile], tables: Sequence[Any], name: Any, *, whole: bool, feature: bool) -> None:
    """Raises a ValueError if the values of a column are of several kinds in several files."""
    columns = [(file, table[name].dropna()) for file, table in zip(files, tables, strict=True) if name in table.columns]
    having = [(file, column.infer_objects()) for file, column in columns if len(column)]
    kinds = [_kind(column, whole) for _, column in having]
    if len(set(kinds)) <= 1:
        return
    right = next((kind for kind in kinds if feature and kind == "numbers"), kinds[0])
    like = _name(having[kinds.index(right)][0])
    place = next(place for place, kind in enumerate(kinds) if kind != right)
    file, column = having[place]
    values = column.tolist()
    example = _no_number(values) if right == "numbers" else values[0]
    raise ValueError(
        f"{_name(file)}: expected {right} in the column {name!r}, as in {like}, got {kinds[place]}, e.g. "
        f"{shown(example)}"
    )


def _kind(column: Any, whole: bool) -> str:
    """The kind of values of a column, in words; with ``whole``, whole numbers are a kind apart."""
    dtype = column.cat.categories.dtype if hasattr(column, "cat") else column.dtype
    if dtype.kind in "iuf":
        return "whole numbers" if whole and dtype.kind in "iu" else "numbers with decimals" if whole else "numbers"
    return {"b": "true or false", "M": "dates", "m": "times", "c": "complex numbers"}.get(dtype.kind, "text")


def _no_number(values: Sequence[Any]) -> Any:
    """The first value that is no number; the first one if all are numbers."""

    def is_number(value: Any) -> bool:
        try:
            return not isinstance(value, bool) and math.isfinite(float(value))
        except (TypeError, ValueError):
            return False

    return next((value for value in values if not is_number(value)), values[0])


def _owners(files: Sequence[TableFile], tables: Sequence[Any], client: str | None) -> Any:
    """The owner of each row of all files; None if no training row has one."""
    import pandas

    if files[0].client is None and client is None:
        return None
    joined: list[Any] = []
    for file, table in zip(files, tables, strict=True):
        known = file.client is None and client in table.columns
        joined += table[client].tolist() if known else [file.client] * len(table)
    plain = {type(owner) for owner in joined} <= {int}
    return pandas.Series(joined, dtype=None if plain else object)


def _images(files: Sequence[TableFile], tables: Sequence[Any], options: TableOptions) -> np.ndarray:
    """The images whose paths are in a column."""
    column, paths = options.images, list[Path]()
    for file, table in zip(files, tables, strict=True):
        with naming(_name(file)):
            check_column(table, column)
            check_complete(table[column], column)
            base = file.place.parent / with_home(options.image_folder or "")
            cells = table[column].tolist()
            wrong = next((cell for cell in cells if not isinstance(cell, str)), None)
            if wrong is not None:
                raise ValueError(f"expected paths of image files in the column {column!r}, got {shown(wrong)}")
            images = [base / cell for cell in cells]
            missing = [path for path in images if not is_file(path)]
            if missing:
                raise ValueError(
                    f"expected the image files that the column {column!r} names, got no file at "
                    f"{shown(str(missing[0]))} ({len(missing)} of {len(images)} are missing); paths begin in the "
                    "folder of the table, or in image_folder="
                )
            paths.extend(images)
    return read_images(paths, options.size)


def _joined(tables: Sequence[Any]) -> Any:
    """One table of all rows; labels that are categories in all tables stay categories, in order of appearance."""
    import pandas

    if len(tables) == 1:
        return tables[0]
    frames, labels = [table.reset_index(drop=True) for table in tables], {}
    for name in frames[0].columns:
        having = [frame for frame in frames if name in frame.columns]
        if all(hasattr(frame[name], "cat") for frame in having) and len(having) == len(frames):
            labels[name] = pandas.api.types.union_categoricals([frame[name] for frame in frames], ignore_order=True)
    whole = pandas.concat(frames, ignore_index=True)
    for name, values in labels.items():
        whole[name] = values
    return whole


def _name(file: TableFile) -> str:
    """The name of a file in error messages: with the folder train or test above it, if there is one."""
    above = file.place.parent.name
    in_part = file.client is not None and above.lower() in ("train", "test")
    return f"{above}/{file.place.name}" if in_part else file.place.name


def _listed(names: Sequence[Any]) -> str:
    more = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


_MARK = "="
Kind = Literal["id", "label", "number", "text"]
# A number as Python writes it: different texts of this form are different numbers.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_WORDS = {"i": "whole numbers", "f": "numbers with decimals", "b": "True and False"}
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Unpacked(gzip.GzipFile):
    """A compressed file that may not unpack to more than the memory."""

    def read(self, size: int | None = -1) -> bytes:
        """As any file."""
        check_memory(self.tell())
        return super().read(size)

    read1 = read  # through which text is read


def read_text(place: Path, options: TableOptions) -> Any:
    """The table in a CSV file (or .gz), with text or None in columns of labels, clients, parts and images."""
    # ``_with_numbers`` makes numbers of texts. A first column without a name is left out: pandas' row numbers.
    import pandas

    encoding, separator, decimal = options.encoding, options.separator, options.decimal
    _check_form(encoding, separator, decimal)
    kinds = _kinds(options)
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
                na_values=["?"],  # beside pandas' own
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
    table = _named_columns(table, _line_of_names(place, options, checked=bool((last.isna() | (last == _MARK)).any())))
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


def _with_numbers(files: Sequence[TableFile], tables: Sequence[Any], options: TableOptions) -> list[Any]:
    """The tables, with numbers in place of texts of CSV files, by ``numbers_or_text``; Parquet has types of its own."""
    # A column is text in all tables if it is text in one: "7" is no number if another file has "007".
    import pandas

    texts = [place for place, file in enumerate(files) if ending(file.place) != ".parquet"]
    changed = [dict[Any, Any]() for _ in tables]
    for name, kind in _kinds(options).items():
        having = [place for place in texts if name in tables[place].columns]
        if not having:
            continue
        parts, names = [tables[place][name] for place in having], [_name(files[place]) for place in having]
        joined = numbers_or_text(pandas.concat(parts), kind, options.decimal)
        if kind != "text" and joined.dtype == object:
            _check_forms(parts, names, name, options.decimal)
        if len(parts) > 1 and name in label_columns(options.label) and kind != "number":
            _check_kinds_of_labels(parts, joined, names, name, options.decimal)
        ends = np.cumsum([len(part) for part in parts])
        for place, part, end in zip(having, parts, ends, strict=True):
            changed[place][name] = joined.iloc[end - len(part) : end]
    return [table.assign(**each) if each else table for table, each in zip(tables, changed, strict=True)]


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


def _check_kinds_of_labels(parts: Sequence[Any], joined: Any, files: Sequence[str], name: Any, decimal: str) -> None:
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


def _line_of_names(place: Path, options: TableOptions, checked: bool) -> list[str]:
    """The names of columns as the file has them: pandas would call the second one of two equal names y.1."""
    # If it is ``checked``, a row with fewer cells is refused, as its values may stand in wrong columns.
    opened = gzip.open if place.suffix.lower() == ".gz" else open
    # Without a byte order mark.
    encoding = "utf-8-sig" if codecs.lookup(options.encoding).name == "utf-8" else options.encoding
    with opened(place, "rt", encoding=encoding, newline="") as file:
        reader = csv.reader(file, delimiter=options.separator, skipinitialspace=True)
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


def _kinds(options: TableOptions) -> dict[Any, Kind]:
    """The columns that are read as text, and what becomes of their texts."""
    labels = label_columns(options.label)
    of_labels: Kind = "number" if options.regression or len(labels) > 1 else "label"
    kinds: dict[Any, Kind] = dict.fromkeys(labels, "id" if options.regression is False else of_labels)
    kinds |= {name: "id" for name in (options.client, options.part) if name is not None}
    if options.images is not None:
        kinds[options.images] = "text"
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
