"""One data set from one or several files of a table: a file of test rows, a file for each client, paths of images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.core.names import shown
from fljax.data.arrays import is_file, with_home
from fljax.data.datasets import Dataset
from fljax.data.own import csv_tables
from fljax.data.own.csv_tables import TextForm
from fljax.data.own.frames import (
    Columns,
    RowsOfFiles,
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


class ImagePaths(NamedTuple):
    """How the images of a column of paths are read."""

    folder: str | Path | None = None  # where paths begin, relative to the folder of the table
    size: Sequence[int] | None = None  # height and width to which images are resized; None: all have one size


def image_paths(columns: Columns, folder: str | Path | None, size: Sequence[int] | None) -> ImagePaths:
    """Checks the options of a column of images."""
    if columns.images is None:
        for name, value in (("image_folder", folder), ("size", size)):
            if value is not None:
                raise ValueError(f"expected {name} together with images, the column of paths, got {name} alone")
        return ImagePaths()
    if columns.images in label_columns(columns.label):
        raise ValueError(f"expected different columns as label and images, got {columns.images!r} as both")
    for name in ("features", "shape", "vocabulary"):
        if getattr(columns, name) is not None:
            raise ValueError(f"expected images, the column of paths, or {name}, got both")
    check_size(size)
    return ImagePaths(folder, size)


def read_files(
    name: str,
    files: Sequence[TableFile],
    columns: Columns,
    form: TextForm,
    pictures: ImagePaths,
    *,
    standardise: bool,
) -> Dataset:
    """The rows of some files as one data set, in the order of the files; errors call it ``name``."""
    # Either all files have a client or none. Test files without a column of clients have rows of nobody.
    tables = [_read(file, columns, form) for file in files]
    split = any(file.test for file in files)
    full = [len(table) > 0 or not file.test or file.client is None for file, table in zip(files, tables, strict=True)]
    files, tables = list(itertools.compress(files, full)), list(itertools.compress(tables, full))
    if split and not any(file.test for file in files):
        raise ValueError(f"{name}: expected test rows in some file of test rows, got none")
    with naming(name):
        tables = _with_numbers(files, tables, columns, form)
    if len(files) > 1:
        tables = _alike(files, tables, columns)
    rows = None
    if len(files) > 1 or files[0].client is not None:
        test = np.concatenate([np.full(len(table), file.test) for file, table in zip(files, tables, strict=True)])
        rows = RowsOfFiles(test, _owners(files, tables, columns.client))
    pixels = None if columns.images is None else _images(files, tables, columns.images, pictures)
    with naming(name):
        return read_columns(_joined(tables), columns, standardise=standardise, pixels=pixels, rows=rows)


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


def _read(file: TableFile, columns: Columns, form: TextForm) -> Any:
    with naming(_name(file)):
        if ending(file.place) != ".parquet":
            return csv_tables.read_text(file.place, columns, form)
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
        raise ValueError(f"expected a table in Parquet, got {csv_tables.one_line(error)}") from None


def _with_numbers(files: Sequence[TableFile], tables: Sequence[Any], columns: Columns, form: TextForm) -> list[Any]:
    """The tables, with numbers in place of texts of CSV files; Parquet has types of its own."""
    numbered = list(tables)
    texts = [place for place, file in enumerate(files) if ending(file.place) != ".parquet"]
    made = csv_tables.with_numbers(
        [numbered[place] for place in texts], [_name(files[place]) for place in texts], columns, form.decimal
    )
    for place, table in zip(texts, made, strict=True):
        numbered[place] = table
    return numbered


def _alike(files: Sequence[TableFile], tables: Sequence[Any], columns: Columns) -> list[Any]:
    """The tables with the columns of the first one, in its order."""
    named = named_columns(columns)
    with naming(_name(files[0])):
        for name in [*named, *(columns.features or ())]:
            check_column(tables[0], name)
    chosen = columns.features is not None or columns.images is not None
    used = list(tables[0].columns)
    if chosen:
        used = list(dict.fromkeys([*named, *(columns.features or ())]))
    alike = []
    for file, table in zip(files, tables, strict=True):
        with naming(_name(file)):
            if not len(table):
                raise ValueError("expected at least one row, got none")
            written = {str(name).strip().lower() for name in table.columns}
            absent = columns.client if file.test and str(columns.client).lower() not in written else None
            names = [name for name in used if name != absent]
            missing = [name for name in names if name not in table.columns]
            more = [name for name in table.columns if name not in used and not chosen]
            if missing or more:
                got = [f"none named {_listed(missing)}"] * bool(missing) + [f"{_listed(more)} more"] * bool(more)
                raise ValueError(f"expected the columns of {_name(files[0])}, got {' and '.join(got)}")
            part = table if list(table.columns) == names else table[names]
            gaps = part.isna().to_numpy().any(axis=0)
            for name, gap in zip(names, gaps, strict=True):
                if gap:
                    check_complete(part[name], name)
            alike.append(part)
    several = len(label_columns(columns.label)) > 1
    strict = [columns.client] if several or columns.regression is not None else [columns.client, columns.label]
    types = [dict(table.dtypes) for table in alike]
    for name in used:
        different = {str(kinds[name]) for kinds in types if name in kinds}
        if len(different) > 1 or "category" in different:
            _check_kinds(files, alike, name, whole=name in strict, feature=name not in named)
    return alike


def _check_kinds(files: Sequence[TableFile], tables: Sequence[Any], name: Any, *, whole: bool, feature: bool) -> None:
    """Raises a ValueError if the values of a column are of several kinds in several files."""
    having = [(file, table[name]) for file, table in zip(files, tables, strict=True) if name in table.columns]
    kinds = [_kind(column, whole) for _, column in having]
    if len(set(kinds)) == 1:
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
    lists: list[list[Any]] = []
    for file, table in zip(files, tables, strict=True):
        known = file.client is None and client in table.columns
        lists.append(table[client].tolist() if known else [file.client] * len(table))
    joined = [owner for owners in lists for owner in owners]
    plain = {type(owner) for owner in joined} <= {int}
    return pandas.Series(joined, dtype=None if plain else object)


def _images(files: Sequence[TableFile], tables: Sequence[Any], column: Any, pictures: ImagePaths) -> np.ndarray:
    """The images whose paths are in a column."""
    paths: list[Path] = []
    for file, table in zip(files, tables, strict=True):
        with naming(_name(file)):
            check_column(table, column)
            check_complete(table[column], column)
            base = file.place.parent / with_home(pictures.folder or "")
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
    return read_images(paths, pictures.size)


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
