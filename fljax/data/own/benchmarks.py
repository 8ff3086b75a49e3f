"""Data in the files of other federated benchmarks, whose users own examples: LEAF's JSON, PFLlib's folders."""

from __future__ import annotations

import json
import math
import pickle
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fljax.core.files import npy_header
from fljax.core.keywords import shows
from fljax.core.names import shown
from fljax.data.arrays import existing_file, is_hidden, members_of_zip
from fljax.data.datasets import Dataset, LabelKeywords, Piece, TokenKeywords, assemble
from fljax.data.own.image_folders import ENDINGS, read_images
from fljax.data.own.pickled_arrays import ArrayOfObjects, array_of, read_pickle
from fljax.data.own.table_files import naming


@shows(assemble)
def leaf(
    path: str | Path,
    *,
    shape: Sequence[int] | None = None,
    images: str | Path | None = None,
    size: Sequence[int] | None = None,
    **options: Unpack[LabelKeywords],
) -> Dataset:
    """Data in LEAF's JSON format: a file, a folder of files, or a folder with the folders ``train`` and ``test``.

    A file is ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``. Every user is a
    client (partition "natural"). Test rows of a user with training rows are the client's own; test rows of other users
    are a global test set. LEAF's ``preprocess.sh -t user`` puts whole users into ``test``: with ``unseen = "test"``
    they are unseen clients instead. In a config::

        [data]
        dataset = "leaf/femnist/data/"  # the folders train and test are in it
        shape = [28, 28, 1]

    Args:
      path: the file or folder.
      shape: the shape of one example, where files have it as a list.
      images: the folder of the images, where rows are names of image files; LEAF's own, ``raw/img_align_celeba``, is
        found beside the files.
      size: height and width to which images are resized; without it all must have one size. LEAF's models take 84, 84.

    Rows of text (Shakespeare) become tokens, one for each character, with 0 as padding at the end. Rows that are names
    of image files (CelebA) become images.

    Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
    """
    place = Path(path).expanduser()
    pieces = [piece for file, test in _files(place) for piece in _user_pieces(file, test)]
    texts = any(isinstance(row, str) for piece in pieces for row in piece.x[:1])
    if texts and not all(isinstance(row, str) for piece in pieces for row in piece.x):
        raise ValueError("expected rows of text or rows of numbers, got both")
    if texts and all(_names_image(row) for piece in pieces for row in piece.x):
        folder = _images_of(place, images, pieces[0].x[0])
        pixels = read_images([folder / row for piece in pieces for row in piece.x], size)
        ends = np.cumsum([len(piece.x) for piece in pieces])
        parts = [piece._replace(x=x) for piece, x in zip(pieces, np.split(pixels, ends[:-1]), strict=True)]
        return assemble(parts, **options)
    alphabet = sorted({letter for piece in pieces for row in piece.x for letter in row}) if texts else []
    length = max((len(row) for piece in pieces for row in piece.x), default=0) if texts else 0
    number = {letter: token for token, letter in enumerate(alphabet, 1)}
    arranged = [
        piece._replace(x=_tokens(piece.x, number, length) if texts else _numbers(piece, shape)) for piece in pieces
    ]
    return assemble(arranged, vocabulary=len(alphabet) + 1 if texts else None, **options)


def _names_image(row: str) -> bool:
    """Whether a row is the name of an image file, in no folder."""
    return row.lower().endswith(ENDINGS) and not re.search(r"[\s/\\]", row)


def is_leaf(place: Path) -> bool:
    """Whether a folder has LEAF's JSON files. Beside folders of images a JSON file must begin as LEAF's do."""
    if not any(file.suffix.lower() in ENDINGS for file in place.glob("*/*")) and any(
        _of_folder(folder) for folder in (place, place / "train")
    ):
        return True
    return names_users(place) is not None


def names_users(place: Path) -> Path | None:
    """The first JSON file of a folder that begins as LEAF's do; None if there is none."""
    return next((file for folder in (place, place / "train", place / "test") for file in _of_leaf(folder)), None)


def _of_leaf(folder: Path) -> list[Path]:
    """The JSON files in a folder that begin as LEAF's do."""
    return [file for file in _of_folder(folder) if b'"user' in _beginning(file)]


def _of_folder(folder: Path) -> list[Path]:
    """The JSON files in a folder, without hidden ones."""
    files = [file for file in folder.glob("*") if file.suffix.lower() == ".json" and not file.name.startswith(".")]
    return sorted(file for file in files if file.is_file())


def _beginning(file: Path) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    try:
        with file.open("rb") as opened:
            return opened.read(4096)
    except OSError:
        return b""


def _images_of(place: Path, images: str | Path | None, example: str) -> Path:
    """The folder of the images whose names are rows."""
    if images is not None:
        folders = [place.parent / Path(images).expanduser(), place / Path(images).expanduser()]
    else:
        folders = [above / "raw" / "img_align_celeba" for above in (place, *place.resolve().parents[:2])]
    for folder in folders:
        if folder.is_dir():
            return folder
    got = "no such folder" if images is None else f"no folder {shown(str(images))}"
    raise ValueError(
        f"expected images=, the folder of the images, for rows that are names of files such as {shown(example)}, got "
        f"{got}"
    )


def _files(place: Path) -> list[tuple[Path, bool]]:
    """The JSON files, and whether each has test rows."""
    if place.is_file():
        return [(place, False)]
    parts = [(place / "train", False), (place / "test", True)]
    tests = _of_folder(place / "test")
    if not (place / "train").is_dir():
        if tests:
            got = f"none in {shown(str(place))}, where there is {shown(f'test/{tests[0].name}')}"
            raise ValueError(f"expected the folder train with LEAF's JSON files beside the folder test, got {got}")
        parts = [(place, False)]
    elif beside := _of_leaf(place):
        got = f"{shown(beside[0].name)} beside the folder train"
        raise ValueError(
            f"expected LEAF's JSON files in the folders train and test, or in {shown(str(place))}, got {got}"
        )
    files = [(file, test) for folder, test in parts for file in _of_folder(folder)]
    if not files:
        inside = [file for file in (*place.glob("*"), *place.glob("*/*")) if file.is_file()]
        others = [file for file in sorted(inside) if file.suffix.lower() != ".json"]
        named = f", where there is {shown(str(others[0].relative_to(place)))}" if others else ""
        raise ValueError(f"expected a JSON file, or a folder of them, got none at {shown(str(place))}{named}")
    return files


def _user_pieces(file: Path, test: bool) -> list[Piece]:
    """The rows of each user in a file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in {file}, got {shown(str(error))}") from None
    data = content.get("user_data") if isinstance(content, Mapping) else None
    if not isinstance(data, Mapping) or not data:
        raise ValueError(f'expected LEAF\'s keys "users", "num_samples" and "user_data" in {file}, got others')
    users = content.get("users", list(data))
    counts = content.get("num_samples", [None] * len(users) if isinstance(users, list) else None)
    if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
        raise ValueError(f"expected users and num_samples of one length in {file}, got others")
    times = Counter(user for user in users if isinstance(user, str))
    if twice := [user for user, count in times.items() if count > 1]:
        raise ValueError(f"expected different users in {file}, got {shown(twice[0])} {times[twice[0]]} times")
    pieces = []
    for user, count in zip(users, counts, strict=True):
        rows = data.get(user) if isinstance(user, str) else None
        if not isinstance(rows, Mapping) or not all(isinstance(rows.get(key), list) for key in ("x", "y")):
            raise ValueError(f'expected lists "x" and "y" of the user {shown(user)} in {file}, got others')
        x, y = rows["x"], rows["y"]
        if len(x) != len(y) or count not in (None, len(y)):
            wanted = "as many labels" if count in (None, len(x)) else f"{count} rows"
            raise ValueError(
                f"expected {wanted} of the user {shown(user)} in {file}, got {len(x)} rows and {len(y)} labels"
            )
        if len(y):
            pieces.append(Piece(x, y, np.full(len(y), user), test, f"rows of {shown(user)}"))  # type: ignore[arg-type]
    if lacking := [user for user in data if user not in times]:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ValueError(f"expected all users of user_data in users in {file}, got none of {shown(lacking[0])}{more}")
    return pieces


def _numbers(piece: Piece, shape: Sequence[int] | None) -> np.ndarray:
    try:
        x = np.asarray(piece.x)
    except ValueError:
        raise ValueError(f"expected {piece.name} of one length, got several") from None
    if x.dtype.kind not in "biuf":
        raise ValueError(f"expected numbers or texts as {piece.name}, got {shown(piece.x[0])}")
    if shape is not None:
        if math.prod(shape) != math.prod(x.shape[1:]):
            raise ValueError(f"expected {piece.name} of shape {list(shape)}, got {list(x.shape[1:])}")
        x = x.reshape(len(x), *shape)
    return x.astype(np.float32)


def _tokens(rows: Any, number: Mapping[str, int], length: int) -> np.ndarray:
    if not all(isinstance(row, str) for row in rows):
        raise ValueError("expected texts as all rows, got numbers in some")
    tokens = np.zeros((len(rows), length), np.int32)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = [number[letter] for letter in row]
    return tokens


_CHANNELS = (1, 3)
# The folder in which PFLlib keeps what it downloaded.
_RAW = "rawdata"


@shows(assemble)
def pfllib(path: str | Path, *, move_channels: bool = True, **options: Unpack[TokenKeywords]) -> Dataset:
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
        Rows are such images if they have three axes, and the first has length 1 or 3 but the last has not.

    A file holds a pickled dictionary of the arrays ``x`` and ``y``. It is read without running code: a pickle that asks
    for more than arrays is refused. PFLlib's images are float32 in [-1, 1], and models see them as they are.

    Source: Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and
    Benchmark", 2025.
    """
    place = Path(path).expanduser()
    files = {part: _numbered_files(place / part) for part in ("train", "test")}
    if not files["train"]:
        raise ValueError(f"expected PFLlib's files train/0.npz, train/1.npz, ..., got none in {shown(str(path))}")
    with naming(place.name):
        _check_all_read(place, [file for numbered in files.values() for file in numbered.values()])
        pieces = [
            _client_piece(file, f"{part}/{file.name}", client, part == "test", move_channels)
            for part, numbered in files.items()
            for client, file in numbered.items()
        ]
        return assemble(pieces, **options)


def is_pfllib(place: Path) -> bool:
    """Whether a folder has the files of PFLlib: their names are numbers, and their only array is ``data``."""
    first = next(iter(_numbered_files(place / "train").values()), None)
    return first is not None and members_of_zip(first) == ["data.npy"]


def _numbered_files(folder: Path) -> dict[int, Path]:
    """The files of a folder whose names are whole numbers, by number, in ascending order."""
    arrays = [file for file in sorted(folder.glob("*")) if file.suffix.lower() == ".npz"]
    arrays = [file for file in arrays if file.stem.isascii() and file.stem.isdigit()]
    return {int(file.stem): file for file in sorted(arrays, key=lambda file: int(file.stem))}


def _check_all_read(place: Path, read: Sequence[Path]) -> None:
    """Raises a ValueError if the folder has files that look like those of clients, but are not read."""
    inside = [file for pattern in ("*", "*/*") for file in place.glob(pattern) if file.suffix.lower() == ".npz"]
    known = set(read)
    others = [file.relative_to(place) for file in sorted(inside) if file not in known]
    others = [file for file in others if not is_hidden(file) and file.parts[0] != _RAW]
    if not others:
        return
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    raise ValueError(
        "expected one file for each number in the folders train and test, called 0.npz, 1.npz and so on, got "
        f"{shown(others[0].as_posix())}{more} beside {read[0].parent.name}/{read[0].name}"
    )


def _client_piece(file: Path, name: str, client: int, test: bool, move_channels: bool) -> Piece:
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
    """What the array ``data`` of a file holds, with records in the place of arrays."""
    expected = f"expected a pickled dictionary of arrays in {name}"
    try:
        with zipfile.ZipFile(existing_file(file)) as archive, archive.open("data.npy") as stream:
            shape, dtype = npy_header(stream)
            if dtype.kind != "O":
                raise ValueError(f"an array of {dtype}")
            content = array_of(read_pickle(stream.read()))
    except pickle.UnpicklingError as error:
        raise ValueError(f"{expected}, which is read without running code, got {error}") from None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{expected}, got {said or type(error).__name__}") from None
    except Exception as error:  # a damaged file raises errors of many classes
        raise ValueError(f"{expected}, got a damaged one ({type(error).__name__})") from None
    if not isinstance(content, ArrayOfObjects) or content.shape != () or shape != ():
        raise ValueError(f"{expected}, got {_described(content)}")
    return content.items[0]
