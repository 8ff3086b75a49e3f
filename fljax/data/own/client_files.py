"""Data sets with one file for each client: folders of tables (.csv, .parquet) or of arrays (.npz)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fljax.core.names import shown
from fljax.data.arrays import is_file, is_folder, with_home
from fljax.data.assembly import PARTS, Piece, assemble, check_owners
from fljax.data.datasets import Dataset
from fljax.data.own.csv_tables import TextForm, numbers_or_text
from fljax.data.own.files import read_arrays
from fljax.data.own.frames import Columns
from fljax.data.own.table_files import ENDINGS, TableFile, ending, image_paths, naming, read_files

ARRAYS = (".npz",)
# Files about a folder that hold no data, and what systems and Spark leave in a folder.
_ABOUT = re.compile(
    r"(README|LICEN[CS]E)([._-].*)?|.*\.md|(config|(data(set)?[_-]?)?(package|info|metadata))\.json", re.IGNORECASE
)
_LEFT = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini", "_SUCCESS"})
# The name of a part before or after the name of a client.
_WITH_PART = re.compile(rf"^({'|'.join(PARTS)})[ ._-]+|[ ._-]+({'|'.join(PARTS)})$", re.IGNORECASE)


def table_folder(
    path: str | Path,
    *,
    label: str | Sequence[str],
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
    images: str | None = None,
    image_folder: str | None = None,
    size: Sequence[int] | None = None,
) -> Dataset:
    """A folder with one table (``.csv``, ``.csv.gz`` or ``.parquet``) for each client.

    In a config::

        [data]
        dataset = "hospitals/"  # beside the config, with the files north.csv and south.csv
        label = "diagnosis"

    Every file is then a client (partition "natural"), called by the file's name without its ending: north and south.
    Names are numbers if all of them are whole numbers. Two folders ``train`` and ``test`` may stand in the folder:
    rows of ``test/north.csv`` are the own test rows of north. Test rows of a client without training rows are the
    global test part.

    Args:
      path: the folder.
      label: the column to predict; see ``from_frame`` for labels that are not 0..C-1. Several columns are several
        targets.
      features: the columns of the features; all other columns that have a name if not given.
      part: the column with "train", "valid" or "test"; None: rows are split by fractions, or by folders.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      shape: the shape of one example, e.g. ``[28, 28, 1]`` for 784 columns of pixels.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see each feature with mean 0 and standard deviation 1, on the training rows of the
        clients that train.
      encoding: of the text of CSV files, e.g. ``"latin-1"``, ``"utf-16"`` or ``"gbk"``.
      separator: the character between the cells of CSV files, e.g. ``";"``, or ``"\\t"`` for a tab.
      decimal: the character before the decimals of numbers in CSV files, e.g. ``","``.
      images: the column with paths of image files, which are then the features.
      image_folder: where these paths begin, relative to the folder of each table; that folder if not given.
      size: height and width to which images are resized; without it all must have one size.

    All files have the same columns, in any order, and one kind of values in each column. Labels are text in all files
    if they are text in one.
    """
    columns = Columns(label, None, features, part, classes, regression, shape, vocabulary, images)
    place = _folder(path)
    with naming(place.name):
        files = client_files(place, ENDINGS)
        if part is not None and any(file.test for file in files):
            raise ValueError("expected part, a column that says which rows are test rows, or a folder test, got both")
        pictures = image_paths(columns, image_folder, size)
    form = TextForm(encoding, separator, decimal)
    return read_files(place.name, files, columns, form, pictures, standardise=standardise)


def array_folder(
    path: str | Path,
    *,
    features: str = "x",
    label: str = "y",
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    standardise: bool = True,
) -> Dataset:
    """A folder with one ``.npz`` file for each client, with the arrays ``x`` and ``y``.

    In a config::

        [data]
        dataset = "hospitals/"  # beside the config, with the files north.npz and south.npz

    Every file is then a client (partition "natural"), called by the file's name without its ending: north and south.
    Names are numbers if all of them are whole numbers. Each file may have ``x_train``, ``y_train``, ``x_val``,
    ``y_val``, ``x_test`` and ``y_test`` instead. Or the folder has two folders ``train`` and ``test``, and rows of
    ``test/north.npz`` are the own test rows of north. Other files are refused, as by ``table_folder``.

    Args:
      path: the folder.
      features: name of the array of features ``[n, ...]``; uint8 are images, other whole numbers tokens.
      label: name of the array of labels; see ``from_clients`` for labels that are not 0..C-1.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.
    """
    place = _folder(path)
    with naming(place.name):
        files = client_files(place, ARRAYS)
        pieces: list[Piece] = []
        for file in files:
            name = _below(file.place, place)
            with naming(name):
                rows = read_arrays(file.place, features, label, None, whole=file.place.parent != place, test=file.test)
                if not file.test and not any(len(piece.y) for piece in rows if not (piece.test or piece.valid)):
                    raise ValueError("expected at least one training row, got none")
            pieces += [
                piece._replace(owner=[file.client] * len(piece.y), name=f"{piece.name} of {name}") for piece in rows
            ]
        check_owners(pieces)
        return assemble(pieces, classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)


def files_in(folder: Path, endings: Iterable[str]) -> list[Path]:
    """The files in a folder whose names have one of these ends, in alphabetical order, without hidden ones."""
    if not is_folder(folder):
        return []
    return sorted(file for file in _visible(folder) if ending(file) in endings and is_file(file))


def part_folders(place: Path) -> list[Path]:
    """The folders in a folder that are called like a part of a data set, such as train, in small or capital letters."""
    if not is_folder(place):
        return []
    return sorted(folder for folder in _visible(place) if folder.name.lower() in PARTS and is_folder(folder))


def client_files(place: Path, endings: Sequence[str]) -> list[TableFile]:
    """The files of a folder, each of one client; those in its folder ``test`` have test rows."""
    direct = files_in(place, endings)
    split = {
        folder: files_in(folder, endings) for folder in part_folders(place) if folder.name.lower() in ("train", "test")
    }
    split = {folder: files for folder, files in split.items() if files}
    train, test = (
        [file for folder, files in split.items() if folder.name.lower() == name for file in files]
        for name in ("train", "test")
    )
    if direct and split:
        _refuse_form([direct[0], *(files[0] for files in split.values())], place, endings)
    unread = [*_unread(place, [*direct, *split]), *(file for item in split.items() for file in _unread(*item))]
    if unread:
        _refuse_form(unread[:1], place, endings)
    if not direct and not train:
        got = f"{_below(test[0], place)} alone" if test else "none"
        raise ValueError(f"expected files ({', '.join(endings)}) with training rows, got {got}")
    parts = [file for file in direct if _stem(file).lower() in PARTS]
    if parts:
        names = " and ".join(file.name for file in parts)
        raise ValueError(
            f"expected a file for each client, got {names}; for two files of one data set name the first one and say "
            "test_file"
        )
    listed = [*((file, False) for file in [*direct, *train]), *((file, True) for file in test)]
    seen: dict[tuple[str, bool], Path] = {}
    for file, of_test in listed:
        other = seen.setdefault((_stem(file), of_test), file)
        if other != file:
            got = " and ".join(_below(path, place) for path in (other, file))
            raise ValueError(f"expected one file for each client, got {got}")
    _check_names([file for file, _ in listed], place)
    names = _client_names([_stem(file) for file, _ in listed])
    return [TableFile(file, of_test, name) for (file, of_test), name in zip(listed, names, strict=True)]


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, except hidden files and what systems and programs leave there."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in _LEFT)


def _unread(folder: Path, read: Sequence[Path]) -> list[Path]:
    """The files of a folder that would not be read: other ones than ``read``, and the first one in each folder."""
    pointers = {path.with_name(f"{path.name}.dvc") for path in read}  # DVC's, of files that are here
    others = [path for path in _visible(folder) if path not in read and path not in pointers]
    firsts = [next(_files_below(path), None) if is_folder(path) else path for path in others]
    return [file for file in firsts if file is not None and not _ABOUT.fullmatch(file.name)]


def _files_below(folder: Path) -> Iterator[Path]:
    for path in _visible(folder):
        if is_folder(path):
            yield from _files_below(path)
        elif not _ABOUT.fullmatch(path.name):
            yield path


def _refuse_form(files: Sequence[Path], place: Path, endings: Sequence[str]) -> None:
    got = " and ".join(_below(file, place) for file in files)
    if len(files) == 1:
        gone = files[0].is_symlink() and not files[0].exists()
        advice = "a link to a file that is not here; fetch it, e.g. with git annex or DVC"
        got += f", {advice if gone else 'which would not be read; move it out of the folder'}"
    raise ValueError(
        f"expected a file for each client ({', '.join(endings)}) in the folder itself, or in its folders train and "
        f"test, got {got}"
    )


def _check_names(files: Sequence[Path], place: Path) -> None:
    """Raises a ValueError if the names of two files differ by the name of a part alone: north_train and north_test."""
    seen: dict[str, Path] = {}
    for file in files:
        other = seen.setdefault(_WITH_PART.sub("", _stem(file)), file)
        if _stem(other) != _stem(file):
            got = " and ".join(_below(path, place) for path in (other, file))
            raise ValueError(
                f"expected one name for each client, got {got}; put training and test rows of a client into files of "
                "one name in the folders train and test"
            )


def _client_names(stems: Sequence[str]) -> list[Any]:
    """The names of files as names of clients: whole numbers if all of them are."""
    import pandas

    return numbers_or_text(pandas.Series(stems, dtype=object), "id").tolist()


def _stem(file: Path) -> str:
    """The name of a client's file without its ending; some systems store accents apart from their letters."""
    return unicodedata.normalize("NFC", file.name[: -len(ending(file))]).strip()


def _below(file: Path, place: Path) -> str:
    return file.relative_to(place).as_posix()


def _folder(path: str | Path) -> Path:
    place = with_home(path)
    if not is_folder(place):
        raise ValueError(f"expected a folder with a file for each client, got none at {shown(str(path))}")
    return place
