"""Data sets in files of one's own: tables (.csv, .parquet) and arrays (.npz, .npy), named in a config by their path."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fljax.data import csv_tables
from fljax.data.assembly import Piece, assemble
from fljax.data.datasets import Dataset
from fljax.data.frames import Columns, read_columns
from fljax.naming import shown, unknown


def table(
    path: str | Path,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    part: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    shape: Sequence[int] | None = None,
    vocabulary: int | None = None,
    standardise: bool = True,
    encoding: str = "utf-8",
    separator: str = ",",
    decimal: str = ".",
) -> Dataset:
    """A table in a ``.csv`` (also ``.csv.gz``) or ``.parquet`` file, with one row for each example.

    In a config::

        [data]
        dataset = "patients.csv"  # beside the config
        label = "diagnosis"
        client = "hospital"

    Every hospital is then a client (partition "natural", and ``clients`` is their number). Without ``client`` choose a
    partition and its number of clients.

    Args:
      path: the file.
      label: the column to predict; see ``from_frame`` for labels that are not 0..C-1. Several columns are several
        targets.
      client: the column that says whose row it is.
      features: the columns of the features; all other columns that have a name if not given.
      part: the column with "train", "valid" or "test"; None: rows are split by fractions.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      shape: the shape of one example, e.g. ``[28, 28, 1]`` for 784 columns of pixels.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see each feature with mean 0 and standard deviation 1, on the training rows of the
        clients that train.
      encoding: of a CSV file's text, e.g. ``"latin-1"``, ``"utf-16"`` or ``"gbk"``.
      separator: the character between the cells of a CSV file, e.g. ``";"``, or ``"\\t"`` for a tab.
      decimal: the character before the decimals of numbers in a CSV file, e.g. ``","``.

    In a CSV file, labels, clients and parts are text. They become numbers if every text is a whole number as it is
    usually written: 7 and 10, but neither 007 nor 1e5. A label with decimals is a number, too. Only an empty cell is a
    missing value: "NA" and "None" are text.

    Raises:
      ValueError: if the file cannot be read, rows have more cells than the line of names, a column does not exist or is
        empty in some rows, features are not numbers, or pyarrow is not installed for ``.parquet``.
    """
    place = existing_file(path)
    try:
        columns = Columns(label, client, features, part, classes, regression, shape, vocabulary)
        if _ending(place) == ".parquet":
            found = _read_parquet(place)
        else:
            found = csv_tables.read(place, columns, encoding=encoding, separator=separator, decimal=decimal)
        made = read_columns(found, columns, standardise=standardise)
    except ValueError as error:
        raise ValueError(f"{place.name}: {error}") from None
    return made._replace(mean=0.0, std=1.0) if made.x.dtype == np.float32 else made


def arrays(
    path: str | Path,
    *,
    features: str = "x",
    label: str = "y",
    client: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    standardise: bool = True,
) -> Dataset:
    """Arrays in an ``.npz`` file: features ``x`` and labels ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``.

    In a config::

        [data]
        dataset = "scans.npz"
        client = "hospital"  # the name of an array, one entry for each row

    Args:
      path: the file.
      features: name of the array of features ``[n, ...]``; uint8 are images, other whole numbers tokens. If there is
        none, but two whose names end in ``_train`` and ``_test``, the latter are upstream's test part.
      label: name of the array of labels; see ``from_clients`` for labels that are not 0..C-1.
      client: name of the array that says whose row each is, with ``_train`` at its end if features have it. If there
        is one for test rows, too, clients are tested on their own test rows.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.

    Raises:
      ValueError: if the file cannot be read, or an array does not exist or does not fit the others.
    """
    place = existing_file(path)
    try:
        with _npz(place) as file:
            pieces = _pieces(file, features, label, client)
        return assemble(pieces, classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)
    except ValueError as error:
        raise ValueError(f"{place.name}: {error}") from None


def mapped(
    path: str | Path,
    *,
    label: str = "y.npy",
    client: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    standardise: bool = True,
) -> Dataset:
    """Features in an ``.npy`` file that is mapped, not read, so that it may be larger than the memory.

    In a config::

        [data]
        dataset = "scans/x.npy"
        label = "y.npy"  # beside it
        client = "hospital.npy"  # one entry for each row

    A run leaves the features in the file, and moves the rows of the clients that train (``execution.examples``).

    Args:
      path: the file with features ``[n, ...]``; uint8 are images, int32 tokens, float32 other numbers. Features of
        other dtypes are copied to the memory.
      label: the file of labels ``[n, ...]``, relative to the folder of ``path``; see ``from_clients`` for labels that
        are not 0..C-1.
      client: the file that says whose row each is.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.

    Raises:
      ValueError: if a file cannot be read, or does not fit the others.
    """
    place = existing_file(path)
    try:
        beside = lambda name: existing_file(place.parent / name)  # noqa: E731
        y = _read_npy(beside(label), mapped=False)
        owner = None if client is None else _read_npy(beside(client), mapped=False)
        piece = Piece(_read_npy(place, mapped=True), y, owner, name="rows")
        return assemble([piece], classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)
    except ValueError as error:
        raise ValueError(f"{place.name}: {error}") from None


def existing_file(path: str | Path) -> Path:
    """The path with ``~`` replaced.

    Raises:
      ValueError: if there is no such file.
    """
    place = with_home(path)
    try:
        found = place.is_file()
    except (OSError, ValueError):  # names that no system has
        found = False
    if not found:
        got = "a folder" if is_folder(place) else "nothing there"
        raise ValueError(f"expected the path of a file, got {shown(str(path))} ({got})")
    return place


def with_home(path: str | Path) -> Path:
    """The path with ``~`` replaced, if it means somebody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_folder(place: Path) -> bool:
    """Whether there is such a folder; False for names that no system has, too."""
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False


def _ending(place: Path) -> str:
    return "".join(place.suffixes[-2:]).lower() if place.suffix.lower() == ".gz" else place.suffix.lower()


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


@contextmanager
def _npz(place: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of a file by name; each is read when it is asked for."""
    if not zipfile.is_zipfile(place):
        raise ValueError("expected arrays of numpy.savez, got a file of another kind")
    try:
        with np.load(place, allow_pickle=False) as file:
            yield file
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
        raise ValueError(f"expected arrays of numpy.savez, got {csv_tables.one_line(error)}") from None


def _read_npy(place: Path, *, mapped: bool) -> np.ndarray:
    try:
        return np.load(place, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"expected an array of numpy.save in {place.name}, got {csv_tables.one_line(error)}") from None


def _pieces(found: Mapping[str, np.ndarray], features: str, label: str, client: str | None) -> list[Piece]:
    """The rows of the file: all, or those for training and for test."""
    if features in found:
        split = {"": False}
    else:
        split = {end: end == "_test" for end in ("_train", "_test") if f"{features}{end}" in found}
    split = split or {"": False}

    def array(name: str) -> np.ndarray:
        if name not in found:
            raise ValueError(unknown("array", name, sorted(found)))
        try:
            return found[name]
        except ValueError as error:
            if "pickle" not in str(error):
                raise
            raise ValueError(
                f"expected numbers or text in the array {name!r}, got Python objects; {name}.astype(str) makes text of "
                "them before they are saved"
            ) from None

    def owner(end: str) -> np.ndarray | None:
        needed = client is not None and (end != "_test" or f"{client}_test" in found)
        return array(f"{client}{end}") if needed else None

    return [
        Piece(array(f"{features}{end}"), array(f"{label}{end}"), owner(end), test, "test rows" if test else "rows")
        for end, test in split.items()
    ]
