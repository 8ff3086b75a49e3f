"""Data sets in files of one's own, named in a config by their path: tables, arrays, and the files of MedMNIST."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fljax.core.files import check_unpacked
from fljax.core.names import shown, unknown
from fljax.data.arrays import check_unchanged, existing_file, with_home
from fljax.data.assembly import PARTS, Piece, assemble, check_owners
from fljax.data.datasets import Dataset
from fljax.data.own import csv_tables
from fljax.data.own.csv_tables import TextForm
from fljax.data.own.frames import Columns
from fljax.data.own.table_files import ENDINGS, TableFile, ending, image_paths, naming, read_files

# The parts whose arrays stand in one file, by the ends of their names.
_ENDS = {"_train": 0, "_val": 1, "_valid": 1, "_validation": 1, "_test": 2}


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
    test_file: str | None = None,
    images: str | None = None,
    image_folder: str | None = None,
    size: Sequence[int] | None = None,
) -> Dataset:
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
      test_file: the file of test rows, relative to the folder of ``path``, with the same columns in any order. If it
        has the column of clients, too, clients are tested on their own test rows. Test rows of nobody who trains are
        the global test part. None: rows are split.
      images: the column with paths of image files, which are then the features: uint8 ``[n, height, width, channels]``.
        Other columns are not used.
      image_folder: where these paths begin, relative to the folder of ``path``; that folder if not given. Paths of a
        test file begin in its own folder.
      size: height and width to which images are resized; without it all must have one size.

    In a CSV file, labels, clients and parts are text. They become numbers if every text is a whole number as it is
    usually written: 7 and 10, but neither 007 nor 1e5. A label with decimals is a number, too. Only an empty cell is a
    missing value: "NA" and "None" are text. Blanks at the ends of a text are left out. The first column may have no
    name, as row numbers; it is left out, too.
    """
    place = existing_file(path)
    columns = Columns(label, client, features, part, classes, regression, shape, vocabulary, images)
    with naming(place.name):
        files = [TableFile(place)]
        if test_file is not None:
            if part is not None:
                raise ValueError("expected part, a column that says which rows are test rows, or test_file, got both")
            files.append(TableFile(_test_file(place, test_file, ENDINGS), test=True))
        pictures = image_paths(columns, image_folder, size)
    form = TextForm(encoding, separator, decimal)
    return read_files(place.name, files, columns, form, pictures, standardise=standardise)


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
    test_file: str | None = None,
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
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.
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
        return assemble(pieces, classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)


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
    """
    place = existing_file(path)
    with naming(place.name):
        y = _read_npy(existing_file(place.parent / label), mapped=False)
        owner = None if client is None else _read_npy(existing_file(place.parent / client), mapped=False)
        piece = Piece(_read_npy(place, mapped=True), y, owner, name="rows")
        return assemble([piece], classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)


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
        raise ValueError(f"expected arrays of numpy.savez, got {csv_tables.one_line(error)}") from None


def _read_npy(place: Path, *, mapped: bool) -> np.ndarray:
    try:
        array = np.load(place, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"expected an array of numpy.save in {place.name}, got {csv_tables.one_line(error)}") from None
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
    try:
        with zipfile.ZipFile(place) as file:
            return {f"{name}.npy" for name in _MEDMNIST_NAMES} <= set(file.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


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
