"""CIFAR-10 and CIFAR-100, from upstream's binary archive.

An image is 3072 bytes: 1024 of red, then green, then blue, each row by row. Source of the format: upstream's page of
the data sets. Tested on files that the tests write in this format, not yet on upstream's.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.cache import cache_folder, read_cached, write_cached
from fljax.data.sources.download import fetch_files

_PIXELS = 3 * 32 * 32


class _Family(NamedTuple):
    """The properties of one of the two data sets. The last label byte of a record is the label."""

    name: str
    title: str
    classes: int
    archive: str
    folder: str  # inside the archive
    files: tuple[str, ...]  # the training files, then the test file
    label_bytes: int

    @property
    def wanted(self) -> str:
        return f"{self.archive} (upstream's page calls it '{self.title} binary version'), unpacked or not"

    @property
    def advice(self) -> str:
        return f"give folder=, the folder that holds {self.wanted}, or try again with a network connection"


_CIFAR10 = _Family(
    "cifar10",
    "CIFAR-10",
    10,
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    1,
)
_CIFAR100 = _Family(
    "cifar100",
    "CIFAR-100",
    100,
    "cifar-100-binary.tar.gz",
    "cifar-100-binary",
    ("train.bin", "test.bin"),
    2,  # the coarse label comes first
)


def cifar10(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """CIFAR-10: 50000 training and 10000 test images, uint8 ``[n, 32, 32, 3]``, 10 classes.

    Read only from ``folder`` if given; otherwise from the cache, or else downloaded.

    Args:
      folder: a folder with ``cifar-10-binary.tar.gz``, or with its unpacked files; data read from it are not cached.
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
      folder: a folder with ``cifar-100-binary.tar.gz``, or with its unpacked files; data read from it are not cached.
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
    for place in (folder / family.folder, folder):
        if (place / family.files[0]).is_file():
            return _join(family, {name: _bytes(place / name) for name in family.files}, place)
    archive = folder / family.archive
    if archive.is_file():
        return _join(family, _unpacked(archive, family.files), archive)
    raise ValueError(f"expected {family.wanted}, in the folder {folder}, got neither it nor its files")


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"expected the file {path.name} in the folder {path.parent}, got none")
    return path.read_bytes()


def _unpacked(path: Path, names: Collection[str]) -> dict[str, bytes]:
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


def _join(family: _Family, files: Mapping[str, bytes], place: Path) -> Dataset:
    parts = [_binary(family, content, f"{place}/{name}") for name, content in files.items()]
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
