"""Data sets with one file for each client: folders of tables (.csv, .parquet) or of arrays (.npz)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fljax.data.assembly import Piece, assemble
from fljax.data.csv_tables import TextForm, numbers_or_text
from fljax.data.datasets import Dataset
from fljax.data.files import read_arrays
from fljax.data.frames import Columns
from fljax.data.paths import is_folder, with_home
from fljax.data.table_files import ENDINGS, TableFile, ending, image_paths, naming, read_files
from fljax.naming import shown

ARRAYS = (".npz",)
# Files with these names are parts of one data set, and no clients.
_PARTS = {"train", "training", "test", "testing", "valid", "validation", "val", "dev"}


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

    Raises:
      ValueError: if a file cannot be read, has other columns than the first one or no rows, and as for a single table.
    """
    columns = Columns(label, None, features, part, classes, regression, shape, vocabulary, images)
    place = _folder(path)
    with naming(place.name):
        files = client_files(place, ENDINGS)
        if part is not None and any(each.test for each in files):
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
    Names are numbers if all of them are whole numbers. Each file may have ``x_train``, ``y_train``, ``x_test`` and
    ``y_test`` instead. Or the folder has two folders ``train`` and ``test``, and rows of ``test/north.npz`` are the own
    test rows of north.

    Args:
      path: the folder.
      features: name of the array of features ``[n, ...]``; uint8 are images, other whole numbers tokens.
      label: name of the array of labels; see ``from_clients`` for labels that are not 0..C-1.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.

    Raises:
      ValueError: if a file cannot be read, or an array does not exist or does not fit those of the other files.
    """
    place = _folder(path)
    with naming(place.name):
        files = client_files(place, ARRAYS)
        pieces: list[Piece] = []
        for file in files:
            name = _below(file.place, place)
            with naming(name):
                own = read_arrays(file.place, features, label, None, whole=file.place.parent != place, test=file.test)
                if not file.test and not any(len(each.y) for each in own if not each.test):
                    raise ValueError("expected at least one training row, got none")
            pieces += [each._replace(owner=[file.client] * len(each.y), name=f"{each.name} of {name}") for each in own]
        return assemble(pieces, classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)


def files_in(folder: Path, endings: Iterable[str]) -> list[Path]:
    """The files in a folder whose names have one of these ends, in alphabetical order, without hidden ones."""
    if not is_folder(folder):
        return []
    found = [each for each in folder.iterdir() if ending(each) in endings and not each.name.startswith(".")]
    return sorted(each for each in found if each.is_file())


def client_files(place: Path, endings: Sequence[str]) -> list[TableFile]:
    """The files of a folder, each of one client; those in its folder ``test`` have test rows.

    Raises:
      ValueError: if files are not as ``table_folder`` says.
    """
    direct = files_in(place, endings)
    inside = {each.name: files_in(each, endings) for each in sorted(place.iterdir()) if is_folder(each)}
    inside = {name: files for name, files in inside.items() if files}
    split = {name: inside[name] for name in ("train", "test") if name in inside}
    others = [files[0] for name, files in inside.items() if name not in split]
    mixed = [direct[0], *(files[0] for files in split.values())] if direct and split else []
    if mixed or (others and not direct):
        got = " and ".join(_below(each, place) for each in mixed or others[:1])
        raise ValueError(
            f"expected a file for each client in the folder itself, or in its folders train and test, got {got}"
        )
    if not direct and "train" not in split:
        got = f"test/{split['test'][0].name} alone" if split else "none"
        raise ValueError(f"expected files ({', '.join(endings)}) with training rows, got {got}")
    stems = [_stem(each).lower() for each in direct]
    if set(stems) <= _PARTS and stems:
        names = " and ".join(each.name for each in direct)
        raise ValueError(
            f"expected a file for each client, got {names}; for two files of one data set name the first one and say "
            "test_file"
        )
    found = [(each, False) for each in [*direct, *split.get("train", [])]]
    found += [(each, True) for each in split.get("test", [])]
    seen: dict[tuple[str, bool], Path] = {}
    for each, test in found:
        other = seen.setdefault((_stem(each), test), each)
        if other != each:
            raise ValueError(f"expected one file for each client, got {other.name} and {each.name}")
    names = _client_names([_stem(each) for each, _ in found])
    return [TableFile(each, test, name) for (each, test), name in zip(found, names, strict=True)]


def _client_names(stems: Sequence[str]) -> list[Any]:
    """The names of files as names of clients: whole numbers if all of them are."""
    import pandas

    return numbers_or_text(pandas.Series(stems, dtype=object), "id").tolist()


def _stem(file: Path) -> str:
    return file.name[: -len(ending(file))]


def _below(file: Path, place: Path) -> str:
    return file.relative_to(place).as_posix()


def _folder(path: str | Path) -> Path:
    place = with_home(path)
    if not is_folder(place):
        raise ValueError(f"expected a folder with a file for each client, got none at {shown(str(path))}")
    return place
