"""Data in the folders of PFLlib, which has two pickled files for each client."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fljax.core.names import shown
from fljax.data.assembly import Piece, assemble
from fljax.data.datasets import Dataset
from fljax.data.own.pickled_arrays import ArrayOfObjects, array_of, read_pickle
from fljax.data.paths import is_hidden

_CHANNELS = (1, 3)
# The folder in which PFLlib keeps what it downloaded.
_RAW = "rawdata"


def pfllib(
    path: str | Path,
    *,
    move_channels: bool = True,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    standardise: bool = True,
) -> Dataset:
    """A folder that PFLlib generated: ``train/0.npz``, ``test/0.npz``, ``train/1.npz`` and so on, as it is.

    In a config::

        [data]
        dataset = "PFLlib/dataset/MNIST/"  # beside the config; the folders train and test are in it

    Every file of ``train`` is a client (partition "natural"), called by its number. Rows of the file in ``test`` with
    the same number are the client's own test rows. Test rows of a number without training rows are a global test set;
    with ``unseen = "test"`` that number is an unseen client instead. Other ``.npz`` files in the folder are refused,
    but for those in ``rawdata``.

    Args:
      path: the folder.
      move_channels: whether images with channels first, as torch has them, become ``[n, height, width, channels]``.
        Rows are such images if they have three axes, of which the first has length 1 or 3 and the last has not.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      vocabulary: number of different tokens, where rows are tokens.
      standardise: whether models see float features ``[n, d]`` with mean 0 and standard deviation 1.

    A file holds a pickled dictionary of the arrays ``x`` and ``y``. It is read without running code: a pickle that asks
    for more than arrays is refused. PFLlib's images are float32 in [-1, 1], and models see them as they are.

    Source: Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and
    Benchmark", 2025.

    Raises:
      ValueError: if there are no such files, or one is not as PFLlib writes it.
    """
    place = Path(path).expanduser()
    files = {part: _numbered(place / part) for part in ("train", "test")}
    if not files["train"]:
        raise ValueError(f"expected PFLlib's files train/0.npz, train/1.npz, ..., got none in {shown(str(path))}")
    try:
        _check_all_read(place, [file for found in files.values() for file in found.values()])
        pieces = [
            _piece(file, f"{part}/{file.name}", client, part == "test", move_channels)
            for part, found in files.items()
            for client, file in found.items()
        ]
        return assemble(pieces, classes=classes, regression=regression, vocabulary=vocabulary, standardise=standardise)
    except ValueError as error:
        raise ValueError(f"{place.name}: {error}") from None


def is_pfllib(place: Path) -> bool:
    """Whether a folder has the files of PFLlib: their names are numbers, and their only array is ``data``."""
    files = _numbered(place / "train")
    if not files:
        return False
    try:
        with zipfile.ZipFile(next(iter(files.values()))) as file:
            return file.namelist() == ["data.npy"]
    except (zipfile.BadZipFile, OSError):
        return False


def _numbered(folder: Path) -> dict[int, Path]:
    """The files of a folder whose names are whole numbers, by number, in ascending order."""
    found = [each for each in sorted(folder.glob("*")) if each.suffix.lower() == ".npz"]
    found = [each for each in found if each.stem.isascii() and each.stem.isdigit()]
    return {int(each.stem): each for each in sorted(found, key=lambda file: int(file.stem))}


def _check_all_read(place: Path, read: Sequence[Path]) -> None:
    """Raises a ValueError if the folder has files that look like those of clients, but are not read."""
    inside = [each for pattern in ("*", "*/*") for each in place.glob(pattern) if each.suffix.lower() == ".npz"]
    known = set(read)
    others = [each.relative_to(place) for each in sorted(inside) if each not in known]
    others = [each for each in others if not is_hidden(each) and each.parts[0] != _RAW]
    if not others:
        return
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    raise ValueError(
        "expected one file for each number in the folders train and test, called 0.npz, 1.npz and so on, got "
        f"{shown(others[0].as_posix())}{more} beside {read[0].parent.name}/{read[0].name}"
    )


def _piece(file: Path, name: str, client: int, test: bool, move_channels: bool) -> Piece:
    """The rows of one file."""
    content = _content(file, name)
    if not isinstance(content, dict) or not {"x", "y"} <= content.keys():
        raise ValueError(f"expected a dictionary with the arrays 'x' and 'y' in {name}, got {_described(content)}")
    try:
        x, y = array_of(content["x"]), array_of(content["y"])
    except (pickle.UnpicklingError, ValueError) as error:
        raise ValueError(f"expected arrays of numbers as 'x' and 'y' of {name}, got {error}") from None
    for key, array in (("x", x), ("y", y)):
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise ValueError(f"expected an array of numbers as '{key}' of {name}, got {_described(array)}")
    if len(x) != len(y):
        raise ValueError(f"expected as many rows in x as in y of {name}, got {len(x)} and {len(y)}")
    if move_channels and x.ndim == 4 and x.shape[1] in _CHANNELS and x.shape[-1] not in _CHANNELS:
        x = np.moveaxis(x, 1, -1)
    return Piece(x, y, np.full(len(y), client), test, f"rows of {name}")


def _described(value: Any) -> str:
    """A few words on a value. Nested values are not shown, since they may be nested without end."""
    if isinstance(value, np.ndarray):
        return f"an array {list(value.shape)} of {value.dtype}"
    if isinstance(value, ArrayOfObjects):
        return "an array of object"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return f"a dictionary with {shown(list(value))}"
    return shown(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _content(file: Path, name: str) -> Any:
    """What the array ``data`` of a file holds, with records in the place of arrays.

    Raises:
      ValueError: if the file cannot be read, or its pickle holds more than arrays.
    """
    expected = f"expected a pickled dictionary of arrays in {name}"
    try:
        with zipfile.ZipFile(file) as archive, archive.open("data.npy") as stream:
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} of numpy's format")
            one = version == (1, 0)
            read = np.lib.format.read_array_header_1_0 if one else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
            if dtype.kind != "O":
                raise ValueError(f"an array of {dtype}")
            found = array_of(read_pickle(stream.read()))
    except pickle.UnpicklingError as error:
        raise ValueError(f"{expected}, which is read without running code, got {error}") from None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{expected}, got {said or type(error).__name__}") from None
    except Exception as error:  # a damaged file raises errors of many classes
        raise ValueError(f"{expected}, got a damaged one ({type(error).__name__})") from None
    if not isinstance(found, ArrayOfObjects) or found.shape != () or shape != ():
        raise ValueError(f"{expected}, got {_described(found)}")
    return found.items[0]
