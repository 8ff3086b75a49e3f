"""Data sets in files of one's own, named in a config by their path: tables, arrays, and the files of MedMNIST.

A folder of tables (.csv, .parquet) or of arrays (.npz) has one file for each client.
"""

from __future__ import annotations

import re
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

import numpy as np

from fljax.core.files import check_unpacked
from fljax.core.keywords import shows
from fljax.core.names import shown, unknown
from fljax.data.arrays import check_unchanged, existing_file, is_file, is_folder, members_of_zip, one_line, with_home
from fljax.data.datasets import PARTS, Dataset, Piece, TokenKeywords, assemble, check_owners
from fljax.data.own.frames import FolderKeywords, TableKeywords, TableOptions
from fljax.data.own.table_files import ENDINGS, TableFile, check_images, ending, naming, numbers_or_text, read_files

# The parts whose arrays stand in one file, by the ends of their names.
_ENDS = {"_train": 0, "_val": 1, "_valid": 1, "_validation": 1, "_test": 2}


@shows(TableOptions)
def table(path: str | Path, *, label: str | Sequence[str], **options: Unpack[TableKeywords]) -> Dataset:
    """A table in a ``.csv`` (also ``.csv.gz``) or ``.parquet`` file, with one row for each example.

    In a config::

        [data]
        dataset = "patients.csv"  # beside the config
        label = "diagnosis"
        client = "hospital"

    Every hospital is then a client (partition "natural", and ``clients`` is their number). Without ``client`` choose a
    partition and its number of clients.

    Test rows may have a file of their own, and the features may be images whose paths stand in a column::

        [data]
        dataset = "scans/train.csv"
        test_file = "test.csv"  # beside train.csv
        label = "diagnosis"
        images = "file"  # a column with paths such as a/1.png, which begin in the folder scans
        size = [32, 32]

    Args:
      path: the file.
      label: the column to predict; see ``from_frame`` for labels that are not 0..C-1. Several columns are several
        targets.

    In a CSV file, labels, clients and parts are text. They become numbers if every text is a whole number as it is
    usually written: 7 and 10, but neither 007 nor 1e5. A label with decimals is a number, too. Only an empty cell is a
    missing value: "NA" and "None" are text. In columns of features these and "?" are missing values. Blanks at the ends
    of a text are left out. The first column may have no name, as row numbers; it is left out, too.
    """
    place, given = existing_file(path), TableOptions(label, **options)
    with naming(place.name):
        files = [TableFile(place)]
        if given.test_file is not None:
            if given.part is not None:
                raise ValueError("expected part, a column that says which rows are test rows, or test_file, got both")
            files.append(TableFile(_test_file(place, given.test_file, ENDINGS), test=True))
        check_images(given)
    return read_files(place.name, files, given)


@shows(assemble)
def arrays(
    path: str | Path,
    *,
    features: str = "x",
    label: str = "y",
    client: str | None = None,
    test_file: str | None = None,
    **options: Unpack[TokenKeywords],
) -> Dataset:
    """Arrays in an ``.npz`` file: features ``x`` and labels ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``.

    In a config::

        [data]
        dataset = "scans.npz"
        client = "hospital"  # the name of an array, one entry for each row

    Args:
      path: the file.
      features: name of the array of features ``[n, ...]``; uint8 are images, other whole numbers tokens. If there is
        none, but two whose names end in ``_train`` and ``_test``, the latter are upstream's test part. One whose name
        ends in ``_val`` (or ``_valid``, ``_validation``) has validation rows.
      label: name of the array of labels; see ``from_clients`` for labels that are not 0..C-1.
      client: name of the array that says whose row each is, with ``_train`` at its end if features have it. If there
        is one for test rows, too, clients are tested on their own test rows. Validation rows without owners are the
        server's, ``held["validation"]``.
      test_file: an ``.npz`` file with the test rows, relative to the folder of ``path``. Its arrays have the names of
        those of ``path``; it needs none for clients.

    Raises:
      ValueError: if a file cannot be read, an array does not exist or does not fit the others, or an array of features,
        labels or clients of another part, such as ``x_test`` beside ``x``, would not be read.
    """
    place = existing_file(path)
    with naming(place.name):
        second = None if test_file is None else _test_file(place, test_file, (".npz",))
        pieces = read_arrays(place, features, label, client, whole=second is not None)
        if second is not None:
            with naming(second.name):
                pieces += read_arrays(second, features, label, client, whole=True, test=True)
        check_owners(pieces)
        return assemble(pieces, **options)


@shows(assemble)
def mapped(
    path: str | Path, *, label: str = "y.npy", client: str | None = None, **options: Unpack[TokenKeywords]
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
    """
    place = existing_file(path)
    with naming(place.name):
        y = _read_npy(existing_file(place.parent / label), mapped=False)
        owner = None if client is None else _read_npy(existing_file(place.parent / client), mapped=False)
        piece = Piece(_read_npy(place, mapped=True), y, owner, name="rows")
        return assemble([piece], **options)


@contextmanager
def opened_npz(place: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of a file by name; each is read when it is asked for."""
    if not zipfile.is_zipfile(place):
        raise ValueError("expected arrays of numpy.savez, got a file of another kind")
    try:
        check_unpacked(place)
        with np.load(place, allow_pickle=False) as file:
            yield file
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
        raise ValueError(f"expected arrays of numpy.savez, got {one_line(error)}") from None


def _read_npy(place: Path, *, mapped: bool) -> np.ndarray:
    try:
        array = np.load(place, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"expected an array of numpy.save in {place.name}, got {one_line(error)}") from None
    check_unchanged(array)
    return array


def _test_file(place: Path, name: str, endings: Sequence[str]) -> Path:
    """The file of test rows beside a file of training rows."""
    file = with_home(name)
    with naming("test_file"):
        file = existing_file(place.parent / file)
        if ending(file) not in endings:
            raise ValueError(f"expected a file that ends in {' or '.join(endings)}, got {shown(name)}")
        if file.samefile(place):
            raise ValueError(f"expected another file than {place.name}, got the same one")
    return file


def read_arrays(
    place: Path, features: str, label: str, client: str | None, *, whole: bool = False, test: bool = False
) -> list[Piece]:
    """The rows of an ``.npz`` file, by parts (``_train``, ``_val``, ``_test``) unless they are of one (``whole``)."""
    # Parts of test or validation rows may lack the array ``client``.
    with opened_npz(place) as stored:
        ends = {} if whole or features in stored else _ENDS
        split = {end: part for end, part in ends.items() if f"{features}{end}" in stored} or {"": 2 * test}

        def piece(end: str, part: int) -> Piece:
            x, y = _array(stored, f"{features}{end}"), _array(stored, f"{label}{end}")
            needed = client is not None and (part == 0 or f"{client}{end}" in stored)
            owner = _array(stored, f"{client}{end}") if needed else None
            if len(x) != len(y):
                raise ValueError(
                    f"expected features and labels of the same number of rows, got {len(x)} in {features}{end} and "
                    f"{len(y)} in {label}{end}"
                )
            return Piece(x, y, owner, part == 2, ("rows", "validation rows", "test rows")[part], part == 1)

        pieces = [piece(end, part) for end, part in split.items()]
        _check_all_read(stored, [name for name in (features, label, client) if name is not None], split)
        return pieces


def _check_all_read(stored: Mapping[str, np.ndarray], names: Sequence[str], split: Mapping[str, int]) -> None:
    """Raises a ValueError if a file has arrays of other parts than those of ``split``, or two of one part."""
    parts = list(split.values())
    twice = next((end for place, end in enumerate(split) if parts[place] in parts[:place]), None)
    unread = [
        f"{name}_{word}" for word in PARTS for name in names if f"_{word}" not in split and f"{name}_{word}" in stored
    ]
    if twice is not None or unread:
        got = f"{names[0]}{twice}" if twice is not None else unread[0]
        read = " and ".join(f"{names[0]}{end}" for end in split)
        raise ValueError(
            f"expected arrays of one part, or of the parts train, val and test ({names[0]}_train, {names[0]}_val, "
            f"{names[0]}_test), got {got} beside {read}, which would not be read"
        )


def _array(stored: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in stored:
        raise ValueError(unknown("array", name, sorted(stored)))
    try:
        array = stored[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise ValueError(
            f"expected numbers or text in the array {name!r}, got Python objects; {name}.astype(str) makes text of "
            "them before they are saved"
        ) from None
    if not array.ndim:
        raise ValueError(f"expected one entry for each row in the array {name!r}, got a single value")
    return array


_MEDMNIST_PARTS = ("train", "val", "test")
_MEDMNIST_NAMES = tuple(f"{part}_{kind}" for part in _MEDMNIST_PARTS for kind in ("images", "labels"))


def medmnist(path: str | Path, *, classes: int | None = None) -> Dataset:
    """A file of MedMNIST, of any size of images, as it is downloaded.

    In a config::

        [data]
        dataset = "pathmnist.npz"  # beside the config
        partition = "dirichlet"
        clients = 20

    The file has the arrays ``train_images``, ``train_labels``, ``val_images``, ``val_labels``, ``test_images`` and
    ``test_labels``. Clients share the training rows. The rows of ``val`` are the server's, ``held["validation"]``,
    and those of ``test`` are the global test set, ``held["test"]`` (``test = "global"`` tests all clients on it).

    Args:
      path: the file.
      classes: number of classes, if some class has no row.

    Images are uint8 ``[n, height, width, channels]``, with one channel if they are grey; images in three dimensions
    become ``[n, depth, height, width, 1]``. Labels ``[n, 1]`` become ``[n]``. ChestMNIST has several labels for each
    row, ``[n, 14]``, which need a model of one's own.

    Source: Yang et al., "MedMNIST v2: A large-scale lightweight benchmark for 2D and 3D biomedical image
    classification", Scientific Data, 2023.
    """
    place = existing_file(path)
    with naming(place.name), opened_npz(place) as file:
        return assemble([_medmnist_piece(file, part) for part in _MEDMNIST_PARTS], classes=classes)


def is_medmnist(place: Path) -> bool:
    """Whether a file has the six arrays of MedMNIST."""
    return {f"{name}.npy" for name in _MEDMNIST_NAMES} <= set(members_of_zip(place))


def _medmnist_piece(file: Mapping[str, np.ndarray], part: str) -> Piece:
    """The rows of one part."""
    images, labels = _array(file, f"{part}_images"), _array(file, f"{part}_labels")
    if images.ndim not in (3, 4, 5) or images.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 images [n, height, width] or [n, height, width, 3] in {part}_images, got {images.dtype} "
            f"{list(images.shape)}"
        )
    # Only images in colour have channels; MedMNIST's images in three dimensions are grey.
    coloured = images.ndim == 5 or (images.ndim == 4 and images.shape[-1] in (1, 3))
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    return Piece(
        images if coloured else images[..., None],
        labels,
        test=part == "test",
        name=f"rows of {part}",
        valid=part == "val",
    )


ARRAYS = (".npz",)
# Files about a folder that hold no data, and what systems and Spark leave in a folder.
_ABOUT = re.compile(
    r"(README|LICEN[CS]E)([._-].*)?|.*\.md|(config|(data(set)?[_-]?)?(package|info|metadata))\.json", re.IGNORECASE
)
_LEFT = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini", "_SUCCESS"})
# The name of a part before or after the name of a client.
_WITH_PART = re.compile(rf"^({'|'.join(PARTS)})[ ._-]+|[ ._-]+({'|'.join(PARTS)})$", re.IGNORECASE)


@shows(TableOptions)
def table_folder(path: str | Path, *, label: str | Sequence[str], **options: Unpack[FolderKeywords]) -> Dataset:
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

    All files have the same columns, in any order, and one kind of values in each column. Labels are text in all files
    if they are text in one.
    """
    place, given = _folder(path), TableOptions(label, **options)
    with naming(place.name):
        files = client_files(place, ENDINGS)
        if given.part is not None and any(file.test for file in files):
            raise ValueError("expected part, a column that says which rows are test rows, or a folder test, got both")
        check_images(given)
    return read_files(place.name, files, given)


@shows(assemble)
def array_folder(
    path: str | Path, *, features: str = "x", label: str = "y", **options: Unpack[TokenKeywords]
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
        return assemble(pieces, **options)


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
    import pandas

    # Whole numbers if all names of files are.
    names = numbers_or_text(pandas.Series([_stem(file) for file, _ in listed], dtype=object), "id").tolist()
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
