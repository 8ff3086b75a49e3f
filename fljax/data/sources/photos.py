"""Colour images from upstream's files: CIFAR-10 and CIFAR-100, SVHN (in MATLAB's format), Tiny ImageNet.

An image of CIFAR's binary archive is 3072 bytes: 1024 of red, then green, then blue, each row by row.
All are tested on files that the tests write in these formats, not yet on upstream's files.
"""

from __future__ import annotations

import functools
import tarfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.hubs import Source, upstream_file

_PIXELS = 3 * 32 * 32
_SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
_SVHN_ADVICE = (
    f"give folder=, the folder that holds {' and '.join(_SVHN_FILES)}, or try again with a network connection (235 MB)"
)
_TINY_SIZE = 64
_TINY_FOLDER = "tiny-imagenet-200"
_TINY_ADVICE = (
    f"give folder=, the folder {_TINY_FOLDER} that upstream's {_TINY_FOLDER}.zip unpacks to, or the one that holds it; "
    "it is never fetched"
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
    return CIFAR10.load(folder, cache)


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
    return CIFAR100.load(folder, cache)


def svhn(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """SVHN, cropped digits: 73257 training and 26032 test images, uint8 ``[n, 32, 32, 3]``, 10 classes.

    Label k is the digit k; upstream labels the digit 0 as 10. The 531131 extra images are neither read nor fetched.
    Read only from ``folder`` if given; otherwise from the cache, or else downloaded.

    Args:
      folder: a folder with upstream's ``train_32x32.mat`` and ``test_32x32.mat``; data read from it are not cached.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", 2011.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged.
    """
    return SVHN.load(folder, cache)


def tiny_imagenet(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """Tiny ImageNet: 100000 training and 10000 test images, uint8 ``[n, 64, 64, 3]``, 200 classes.

    The test part is upstream's validation part, since the labels of upstream's test part are not public. Classes are
    numbered in the order of ``wnids.txt``. Grey images are read as three equal channels.

    Read from ``folder`` if given, else from the cache. Data read from a folder are cached (1.4 GB).

    Args:
      folder: upstream's folder ``tiny-imagenet-200``, or its parent folder.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Stanford's course CS231n; images of Deng et al., "ImageNet: A Large-Scale Hierarchical Image Database",
    CVPR 2009.

    Raises:
      ValueError: if the files cannot be found, or are damaged, or Pillow is not installed.
    """
    return TINY_IMAGENET.load(folder, cache)


class _Cifar(NamedTuple):
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


def _parse_cifar(family: _Cifar, folder: Path) -> Dataset:
    for place in (folder / family.folder, folder):
        if (place / family.files[0]).is_file():
            return _joined(family, {name: upstream_file(place / name).read_bytes() for name in family.files}, place)
    archive = folder / family.archive
    if archive.is_file():
        return _joined(family, _unpacked(archive, family.files), archive)
    raise ValueError(f"expected {family.wanted}, in the folder {folder}, got neither it nor its files")


def _unpacked(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """The named files of a tar archive, by the last part of their names; writes no file."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                file = archive.extractfile(member) if member.isfile() and name in names else None
                if file is not None:
                    contents[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"expected a whole tar.gz archive, got a damaged one in {path} ({error})") from error
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"expected the file {missing[0]} in the archive {path}, got none")
    return contents


def _joined(family: _Cifar, files: Mapping[str, bytes], place: Path) -> Dataset:
    parts = [_records(family, content, f"{place}/{name}") for name, content in files.items()]
    images, labels = zip(*parts, strict=True)
    sizes = [len(part) for part in labels]
    # Only this check detects a file that was cut between two records.
    if len(set(sizes[:-1])) > 1:
        raise ValueError(f"expected training batches of one length, got lengths {sizes[:-1]} in {place}")
    for name, part in zip(files, labels, strict=True):
        if part.max() >= family.classes:
            raise ValueError(f"expected labels in 0..{family.classes - 1}, got {part.max()} in {place}/{name}")
    x = np.concatenate(images).reshape(-1, 3, 32, 32)
    # The files are channels-first; fljax stores images channels-last.
    upright = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return dataset(upright, np.concatenate(labels), classes=family.classes, train_size=sum(sizes[:-1]))


def _records(family: _Cifar, content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels from records of one or two label bytes and 3072 image bytes."""
    size = _PIXELS + family.label_bytes
    if len(content) == 0 or len(content) % size:
        raise ValueError(f"expected records of {size} bytes, got {len(content)} bytes in {name}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, family.label_bytes :], records[:, family.label_bytes - 1]


def _source(family: _Cifar) -> Source:
    return Source(family.name, functools.partial(_parse_cifar, family), family.advice, family.classes)


CIFAR10 = _source(
    _Cifar(
        "cifar10",
        "CIFAR-10",
        10,
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        1,
    )
)
CIFAR100 = _source(
    _Cifar(
        "cifar100",
        "CIFAR-100",
        100,
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        ("train.bin", "test.bin"),
        2,  # the coarse label comes first
    )
)


def _parse_svhn(folder: Path) -> Dataset:
    parts = [_read_svhn(folder / name) for name in _SVHN_FILES]
    images, labels = zip(*parts, strict=True)
    return dataset(np.concatenate(images), np.concatenate(labels), classes=10, train_size=len(labels[0]))


def _read_svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[n, 32, 32, 3]`` and digits, from ``X`` uint8 ``[32, 32, 3, n]`` and ``y`` ``[n, 1]`` in 1..10."""
    from scipy.io import loadmat

    upstream_file(path)
    try:
        arrays = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a garbled file can raise anything
        what = str(error).partition("\n")[0]
        raise ValueError(
            f"expected a whole file of MATLAB's version 5, got a damaged one in {path} ({what})"
        ) from error
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None:
        raise ValueError(f"expected the arrays X and y, got others in {path}")
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or y.shape != (x.shape[3], 1):
        got = f"X {x.dtype} {x.shape} and y {y.shape}"
        raise ValueError(f"expected X uint8 (32, 32, 3, n) and y (n, 1), got {got} in {path}")
    if not np.isin(y, range(1, 11)).all():
        raise ValueError(f"expected labels in 1..10, got labels in {y.min()}..{y.max()} in {path}")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y[:, 0].astype(np.int32) % 10


SVHN = Source("svhn", _parse_svhn, _SVHN_ADVICE, classes=10, builder="svhn_cropped", only=_SVHN_FILES)


def _parse_tiny_imagenet(folder: Path) -> Dataset:
    folder = folder / _TINY_FOLDER if (folder / _TINY_FOLDER).is_dir() else folder
    names = [line.strip() for line in _text_lines(folder / "wnids.txt") if line.strip()]
    number = {name: i for i, name in enumerate(names)}
    if not names or len(number) < len(names):
        raise ValueError(f"expected the name of each class once, got others in {folder / 'wnids.txt'}")
    files: list[tuple[Path, int]] = []
    for name in names:
        images = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not images:
            raise ValueError(f"expected images of the class {name}, got none in {folder / 'train' / name / 'images'}")
        files += [(path, number[name]) for path in images]
    size, table = len(files), folder / "val" / "val_annotations.txt"
    for row, line in enumerate(_text_lines(table), 1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0].strip()
        if not line.strip():
            continue
        if name not in number:
            raise ValueError(f"expected a file and its class, got {name!r} for a class in line {row} of {table}")
        files.append((folder / "val" / "images" / file, number[name]))
    if len(files) == size:
        raise ValueError(f"expected images of the validation part, got an empty table {table}")
    # Filled in place, as all images together take more than a gigabyte.
    x = np.empty((len(files), _TINY_SIZE, _TINY_SIZE, 3), np.uint8)
    for row, (path, _) in enumerate(files):
        x[row] = _jpeg(path)
    return dataset(x, np.array([label for _, label in files], np.int32), classes=len(names), train_size=size)


def _text_lines(path: Path) -> list[str]:
    return upstream_file(path, f"; {_TINY_ADVICE}").read_text(encoding="utf-8", errors="replace").split("\n")


def _jpeg(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("expected Pillow, which reads JPEG files, got no such package installed") from error
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"expected a JPEG image, got none or a damaged one in {path} ({error})") from error
    if pixels.shape != (_TINY_SIZE, _TINY_SIZE, 3):
        raise ValueError(
            f"expected images of {_TINY_SIZE} x {_TINY_SIZE}, got {pixels.shape[1]} x {pixels.shape[0]} in {path}"
        )
    return pixels


TINY_IMAGENET = Source("tiny_imagenet", _parse_tiny_imagenet, _TINY_ADVICE, saved=("classes",), fetched=False)
