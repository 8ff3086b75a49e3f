"""Data sets in IDX files: MNIST, Fashion-MNIST and EMNIST (tested on files that tests write, not yet on upstream's).

An IDX file, plain or gzip, has two zero bytes, one byte for the type, one for the number of axes, a big-endian uint32
for the length of each axis, and the values in C order. Source: the page of the MNIST database.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from fljax.data.arrays import choose
from fljax.data.datasets import Dataset, dataset, with_moments
from fljax.data.sources.hubs import Source, cache_folder, fetch_files, keep, opened_zip

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PARTS = ("train", "t10k")

Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist", "cases"]

# The labels in the files; those of "letters" start at 1.
_EMNIST_LABELS = {
    "byclass": range(62),
    "bymerge": range(47),
    "balanced": range(47),
    "letters": range(1, 27),
    "digits": range(10),
    "mnist": range(10),
}
# Parts of upstream's splits: the upstream split, and the labels to keep.
_SPLIT_PARTS: dict[str, tuple[Split, range]] = {"cases": ("byclass", range(10, 62))}
_EMNIST_ARCHIVE = "gzip.zip"
_CACHED = "emnist-gzip.zip"
_EMNIST_ADVICE = (
    f"give folder=, the folder that holds {_EMNIST_ARCHIVE} or the IDX files in it, or try again with a network "
    "connection (562 MB)"
)


def fashion_mnist(
    *, rows: int | None = None, folder: str | Path | None = None, cache: str | Path | None = None
) -> Dataset:
    """Fashion-MNIST: 60000 training and 10000 test images, uint8 ``[n, 28, 28, 1]``, 10 classes.

    Read only from ``folder`` if given; otherwise from the cache, from the folder of Debian's package
    dataset-fashion-mnist, or else downloaded.

    Args:
      rows: how many training images, the first ones, whose classes are mixed; None: all.
      folder: a folder with the four IDX files, plain or .gz; data read from it are not cached.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Xiao et al., "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    2017.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged, or there are fewer training images.
    """
    whole = FASHION_MNIST.load(folder, cache)
    return whole if rows is None else with_fewer_rows(whole, rows)


def with_fewer_rows(whole: Dataset, rows: int) -> Dataset:
    """The data set with its first ``rows`` training rows, and all of its test rows."""
    if not 1 <= rows <= whole.train_size:
        raise ValueError(f"expected rows from 1 to {whole.train_size}, the training rows, got {rows}")
    x, y = np.asarray(whole.x), np.asarray(whole.y)
    chosen = np.r_[:rows, whole.train_size : len(y)]
    made = dataset(x[chosen], y[chosen], classes=whole.classes, train_size=rows)
    return with_moments(made._replace(class_names=whole.class_names))


def mnist(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """MNIST: 60000 training and 10000 test images, uint8 ``[n, 28, 28, 1]``, 10 classes.

    Args:
      folder: a folder with the four IDX files, plain or .gz; data are read only from it, and not cached.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged.
    """
    return MNIST.load(folder, cache)


def _parse_mnist(folder: Path) -> Dataset:
    images, labels = [], []
    for part in _PARTS:
        image_file, label_file = (_find(folder, f"{part}-images", "idx3"), _find(folder, f"{part}-labels", "idx1"))
        x, y = read_idx(image_file), read_idx(label_file)
        check_pair(x, y, image_file, label_file, range(10))
        if images and x.shape[1:] != images[0].shape[1:]:
            raise ValueError(f"expected images of shape {images[0].shape[1:]}, got {x.shape[1:]} in {image_file}")
        images.append(x)
        labels.append(y)
    size = len(labels[0])
    return dataset(np.concatenate(images)[..., None], np.concatenate(labels), classes=10, train_size=size)


def _find(folder: Path, stem: str, kind: str) -> Path:
    # Some copies of MNIST have a dot instead of the second hyphen.
    names = [f"{stem}{sign}{kind}-ubyte{end}" for sign in "-." for end in (".gz", "")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"expected the file {names[0]} (or without .gz) in the folder {folder}, got none")


FASHION_MNIST = Source(
    "fashion_mnist",
    _parse_mnist,
    "install Debian's package dataset-fashion-mnist (apt-get install dataset-fashion-mnist), or give "
    "folder=, the folder that holds its four IDX files, or try again with a network connection",
    classes=10,
    folders=("/usr/share/datasets/fashion-mnist",),
    pattern="*-ubyte*",
)
MNIST = Source(
    "mnist",
    _parse_mnist,
    "give folder=, the folder that holds its four IDX files, or try again with a network connection",
    classes=10,
    pattern="*-ubyte*",
)


def emnist(*, split: Split = "byclass", folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """EMNIST: handwritten digits and letters, uint8 ``[n, 28, 28, 1]``, upright; 62 classes in "byclass".

    Read only from ``folder`` if given; otherwise from the cache, or else downloaded. The cache keeps the whole archive,
    since it contains all splits. Reading one split does not unpack the others.

    Args:
      split: "byclass" (697932 + 116323 images; 10 digits, then 26 capital and 26 small letters), "bymerge" (the same
        images, 47 classes: letters that look alike in both cases are merged), "balanced" (112800 + 18800, 47 classes),
        "letters" (124800 + 20800, 26 classes), "digits" (240000 + 40000) or "mnist" (60000 + 10000); or "cases",
        IP-FL's split: only the letters of "byclass", 52 classes, 26 capital and 26 small letters.
      folder: a folder with upstream's ``gzip.zip``, or with the four IDX files of the split, plain or .gz.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Cohen et al., "EMNIST: Extending MNIST to Handwritten Letters", IJCNN 2017.

    Raises:
      ValueError: if ``split`` is unknown, or the files cannot be found or fetched, or are damaged.
    """
    choose("split", split, {**_EMNIST_LABELS, **_SPLIT_PARTS})
    if split in _SPLIT_PARTS:
        whole, labels = _SPLIT_PARTS[split]
        return _only(emnist(split=whole, folder=folder, cache=cache), labels)
    if folder is not None:
        return _from_folder(Path(folder).expanduser(), split)
    cached = cache_folder(cache) / _CACHED
    if cached.is_file():
        return _from_archive(cached, split)
    with fetch_files("emnist", _EMNIST_ADVICE, f"emnist/{split}") as files:
        made = _from_archive(files / _EMNIST_ARCHIVE, split)
        keep(files / _EMNIST_ARCHIVE, cached)
    return made


def _only(whole: Dataset, labels: range) -> Dataset:
    """The rows with the given labels, renumbered from 0."""
    y = np.asarray(whole.y)
    rows = np.flatnonzero((y >= labels.start) & (y < labels.stop))
    train = int(np.sum(rows < whole.train_size))
    return with_moments(
        dataset(np.asarray(whole.x)[rows], y[rows] - labels.start, classes=len(labels), train_size=train)
    )


def emnist_status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns the place of EMNIST's files or how to get them; uses no network."""
    cached = cache_folder(cache) / _CACHED
    return {"emnist": f"cached in {cached}" if cached.is_file() else f"not here: {_EMNIST_ADVICE}"}


def _from_folder(folder: Path, split: str) -> Dataset:
    def read(stem: str) -> tuple[bytes, str]:
        for place in (folder, folder / "gzip"):
            for end in (".gz", ""):
                if (place / f"{stem}{end}").is_file():
                    return (place / f"{stem}{end}").read_bytes(), str(place / f"{stem}{end}")
        raise ValueError(f"expected {_EMNIST_ARCHIVE} or the file {stem}.gz in the folder {folder}, got neither")

    places = (folder, folder / "gzip")
    unpacked = any(place.is_dir() and any(place.glob(f"emnist-{split}-*-ubyte*")) for place in places)
    if (folder / _EMNIST_ARCHIVE).is_file() and not unpacked:
        return _from_archive(folder / _EMNIST_ARCHIVE, split)
    return _parse_emnist(read, split)


def _from_archive(path: Path, split: str) -> Dataset:
    with opened_zip(path) as opened:

        def read(stem: str) -> tuple[bytes, str]:
            with opened(f"{stem}.gz") as file:
                return file.read(), f"{path}/{stem}.gz"

        return _parse_emnist(read, split)


def _parse_emnist(read: Callable[[str], tuple[bytes, str]], split: str) -> Dataset:
    """Joins the training and the test part; ``read`` returns a file's bytes and its name for errors."""
    labels, parts = _EMNIST_LABELS[split], []
    for part in ("train", "test"):
        content, image_file = read(f"emnist-{split}-{part}-images-idx3-ubyte")
        x = parse_idx(content, image_file)
        content, label_file = read(f"emnist-{split}-{part}-labels-idx1-ubyte")
        y = parse_idx(content, label_file)
        check_pair(x, y, image_file, label_file, labels)
        if x.shape[1] != x.shape[2] or (parts and x.shape[1:] != parts[0][0].shape[1:]):
            raise ValueError(f"expected square images of one size, got {x.shape[1:]} in {image_file}")
        parts.append((x, y))
    sizes = [len(y) for _, y in parts]
    joined = np.empty((sum(sizes), *parts[0][0].shape[1:], 1), np.uint8)
    for (x, _), place in zip(parts, (joined[: sizes[0]], joined[sizes[0] :]), strict=True):
        # Images are transposed in the files.
        place[..., 0] = x.transpose(0, 2, 1)
    y = np.concatenate([y for _, y in parts]).astype(np.int32) - labels.start
    return with_moments(dataset(joined, y, classes=len(labels), train_size=sizes[0]))


def read_idx(path: str | Path) -> np.ndarray:
    """Returns the array in one IDX file; gzip is recognised by its first bytes, not by the file's name."""
    return parse_idx(Path(path).read_bytes(), path)


def parse_idx(content: bytes, path: str | Path) -> np.ndarray:
    """The array, perhaps read-only, in the bytes of an IDX file, plain or gzip; ``path`` is its name in errors."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"expected a whole gzip file, got a truncated or damaged one in {path}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or content[3] == 0:
        raise ValueError(f"expected an IDX file, got another header in {path}")
    kind, start = np.dtype(_TYPES[content[2]]), 4 + 4 * content[3]
    if len(content) < start:
        raise ValueError(f"expected an IDX header of {start} bytes, got {len(content)} bytes in {path}")
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    expected = kind.itemsize * math.prod(shape)
    if len(content) - start != expected:
        raise ValueError(f"expected {expected} bytes for shape {shape}, got {len(content) - start} bytes in {path}")
    values = np.frombuffer(content, kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="), copy=False)


def check_pair(x: np.ndarray, y: np.ndarray, image_file: str | Path, label_file: str | Path, labels: range) -> None:
    """Raises a ValueError unless ``x`` has uint8 images and ``y`` has one uint8 label in ``labels`` for each image."""
    if x.ndim != 3 or x.dtype != np.uint8 or x.size == 0:
        raise ValueError(f"expected uint8 images [n, height, width], got {x.dtype} {x.shape} in {image_file}")
    if y.shape != (len(x),) or y.dtype != np.uint8:
        raise ValueError(f"expected {len(x)} uint8 labels, got {y.dtype} {y.shape} in {label_file}")
    for label in (int(y.min()), int(y.max())):
        if label not in labels:
            raise ValueError(f"expected labels in {labels.start}..{labels.stop - 1}, got {label} in {label_file}")
