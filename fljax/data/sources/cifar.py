"""CIFAR-10 and CIFAR-100, from upstream's binary archive or upstream's archive of Python 2 pickles.

In both formats an image is 3072 bytes: 1024 of red, then green, then blue, each row by row. Source of the formats:
upstream's page of the data sets. Tested on files that the tests write in these formats, not yet on upstream's files.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.cache import cache_folder, read_cached, write_cached
from fljax.data.sources.download import fetch_files

_PIXELS = 3 * 32 * 32


class _Kind(NamedTuple):
    """One of the two formats of an archive: its file, the folder inside it, and the suffix of a batch's name."""

    archive: str
    folder: str
    end: str


class _Family(NamedTuple):
    """The properties of one of the two data sets. The last label byte of a record is the label."""

    name: str
    title: str
    classes: int
    kinds: tuple[_Kind, ...]  # the plain format first
    files: tuple[str, ...]  # the training files, then the test file
    label_bytes: int
    labels: bytes

    @property
    def advice(self) -> str:
        archives = " or ".join(kind.archive for kind in self.kinds)
        return (
            f"give folder=, the folder that holds {archives}, unpacked or not, or try again with a network connection"
        )


_CIFAR10 = _Family(
    "cifar10",
    "CIFAR-10",
    10,
    (
        _Kind("cifar-10-binary.tar.gz", "cifar-10-batches-bin", ".bin"),
        _Kind("cifar-10-python.tar.gz", "cifar-10-batches-py", ""),
    ),
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    1,
    b"labels",
)
_CIFAR100 = _Family(
    "cifar100",
    "CIFAR-100",
    100,
    (
        _Kind("cifar-100-binary.tar.gz", "cifar-100-binary", ".bin"),
        _Kind("cifar-100-python.tar.gz", "cifar-100-python", ""),
    ),
    ("train", "test"),
    2,  # the coarse label comes first
    b"fine_labels",
)


def cifar10(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """CIFAR-10: 50000 training and 10000 test images, uint8 ``[n, 32, 32, 3]``, 10 classes.

    Read only from ``folder`` if given; otherwise from the cache, or else downloaded.

    Args:
      folder: a folder with one of upstream's archives, or with its unpacked files; data read from it are not cached.
        Pickles are read without executing their functions.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged.
    """
    return _load(_CIFAR10, folder, cache)


def cifar100(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """CIFAR-100: 50000 training and 10000 test images, uint8 ``[n, 32, 32, 3]``, 100 classes (the fine labels).

    Read only from ``folder`` if given; otherwise from the cache, or else downloaded.

    Args:
      folder: as for ``cifar10``.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged.
    """
    return _load(_CIFAR100, folder, cache)


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns, for CIFAR-10 and CIFAR-100, the place of the data or how to get them; uses no network."""
    found = {}
    for family in (_CIFAR10, _CIFAR100):
        stored = cache_folder(cache) / f"{family.name}.npz"
        found[family.name] = f"cached in {stored}" if stored.exists() else f"not here: {family.advice}"
    return found


def _load(family: _Family, folder: str | Path | None, cache: str | Path | None) -> Dataset:
    if folder is not None:
        return _parse(family, Path(folder).expanduser())
    store = cache_folder(cache)
    arrays = read_cached(family.name, store)
    if arrays is not None and {"x", "y", "train_size"} <= arrays.keys():
        return dataset(arrays["x"], arrays["y"], classes=family.classes, train_size=int(arrays["train_size"]))
    with fetch_files(family.name, family.advice) as files:
        made = _parse(family, files)
    write_cached(family.name, store, {"x": made.x, "y": made.y, "train_size": np.asarray(made.train_size)})
    return made


def _parse(family: _Family, folder: Path) -> Dataset:
    for archive, inside, end in family.kinds:
        names = [f"{each}{end}" for each in family.files]
        for place in (folder / inside, folder):
            if (place / names[0]).is_file():
                return _join(family, {each: _bytes(place / each) for each in names}, place, end)
        if (folder / archive).is_file():
            return _join(family, _unpacked(folder / archive, names), folder / archive, end)
    raise ValueError(
        f"expected one of {family.title}'s archives, or what is in it, in the folder {folder}, got neither"
    )


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"expected the file {path.name} in the folder {path.parent}, got none")
    return path.read_bytes()


def _unpacked(path: Path, names: list[str]) -> dict[str, bytes]:
    """The named files of a tar archive, by the last part of their names; writes no file."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                file = archive.extractfile(member) if member.isfile() and name in names else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"expected a whole tar.gz archive, got a damaged one in {path} ({error})") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"expected the file {missing[0]} in the archive {path}, got none")
    return found


def _join(family: _Family, files: Mapping[str, bytes], place: Path, end: str) -> Dataset:
    read = _binary if end == ".bin" else _pickled
    parts = [read(family, content, f"{place}/{name}") for name, content in files.items()]
    images, labels = zip(*parts, strict=True)
    sizes = [len(each) for each in labels]
    # Only this check detects a file that was cut between two records.
    if len(set(sizes[:-1])) > 1:
        raise ValueError(f"expected training batches of one length, got lengths {sizes[:-1]} in {place}")
    for name, each in zip(files, labels, strict=True):
        if each.max() >= family.classes:
            raise ValueError(f"expected labels in 0..{family.classes - 1}, got {each.max()} in {place}/{name}")
    x = np.concatenate(images).reshape(-1, 3, 32, 32)
    # The files are channels-first; fljax stores images channels-last.
    upright = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return dataset(upright, np.concatenate(labels), classes=family.classes, train_size=sum(sizes[:-1]))


def _binary(family: _Family, content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels from records of one or two label bytes and 3072 image bytes."""
    size = _PIXELS + family.label_bytes
    if len(content) == 0 or len(content) % size:
        raise ValueError(f"expected records of {size} bytes, got {len(content)} bytes in {name}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, family.label_bytes :], records[:, family.label_bytes - 1]


def _pickled(family: _Family, content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels from a pickled dictionary: ``data``, uint8 ``[n, 3072]``, and a list of n whole numbers."""
    try:
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a garbled pickle can raise anything
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected a pickle of numbers alone, got {what} in {name}") from error
    if not isinstance(found, dict) or not {b"data", family.labels} <= found.keys():
        raise ValueError(f"expected a pickle with data and {family.labels.decode()}, got something else in {name}")
    data, labels = found[b"data"], found[family.labels]
    if not isinstance(labels, list) or not all(type(each) is int and 0 <= each < 256 for each in labels):
        valid = f"0..{family.classes - 1}"
        raise ValueError(f"expected labels to be a list of whole numbers in {valid}, got something else in {name}")
    if not isinstance(data, _Array) or data.shape != (len(labels), _PIXELS) or not labels:
        shape = getattr(data, "shape", type(data).__name__)
        raise ValueError(f"expected uint8 data ({len(labels)}, {_PIXELS}), got {shape} in {name}")
    return np.frombuffer(data.content, np.uint8).reshape(data.shape), np.array(labels, np.uint8)


class _Type:
    """Replaces NumPy's dtype in a pickle."""

    def __init__(self, name: Any, *rest: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Replaces a NumPy array in a pickle; accepts only the bytes of a complete uint8 array in C order."""

    shape: Any = None
    content: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        if isinstance(kind, _Type) and kind.name in (b"u1", "u1") and not by_columns and isinstance(content, bytes):
            size = 1
            for length in shape:
                size *= length
            if size == len(content):
                self.shape, self.content = shape, content


class _Reader(pickle.Unpickler):
    """An unpickler that accepts only NumPy arrays, and replaces them; a pickle could otherwise call any function."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *arguments: _Array()
        if (module, name) == ("numpy", "ndarray"):
            return _Array
        if (module, name) == ("numpy", "dtype"):
            return _Type
        if (module, name) == ("_codecs", "encode"):  # Python 3 writes bytes for Python 2 in this way
            return lambda text, code: text.encode("latin-1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
