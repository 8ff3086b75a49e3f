"""EMNIST: handwritten digits and letters, from upstream's zip of gzipped IDX files.

Tested on files that the tests write in this format, not yet on upstream's files.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from fljax.data.checks import choose
from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.cache import cache_folder, keep
from fljax.data.sources.download import fetch_files
from fljax.data.sources.idx import check_pair, parse_idx

Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist", "cases"]

# The labels in the files; those of "letters" start at 1.
_LABELS = {
    "byclass": range(62),
    "bymerge": range(47),
    "balanced": range(47),
    "letters": range(1, 27),
    "digits": range(10),
    "mnist": range(10),
}
# Parts of upstream's splits: the upstream split, and the labels to keep.
_PARTS: dict[str, tuple[Split, range]] = {"cases": ("byclass", range(10, 62))}
_ARCHIVE = "gzip.zip"
_KEPT = "emnist-gzip.zip"
_ADVICE = (
    f"give folder=, the folder that holds {_ARCHIVE} or the IDX files in it, or try again with a network "
    "connection (562 MB)"
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
    choose("split", split, {**_LABELS, **_PARTS})
    if split in _PARTS:
        whole, labels = _PARTS[split]
        return _only(emnist(split=whole, folder=folder, cache=cache), labels)
    if folder is not None:
        return _from_folder(Path(folder).expanduser(), split)
    kept = cache_folder(cache) / _KEPT
    if kept.is_file():
        return _from_archive(kept, split)
    with fetch_files("emnist", _ADVICE, f"emnist/{split}") as files:
        made = _from_archive(files / _ARCHIVE, split)
        keep(files / _ARCHIVE, kept)
    return made


def _only(whole: Dataset, labels: range) -> Dataset:
    """The rows with the given labels, renumbered from 0."""
    y = np.asarray(whole.y)
    rows = np.flatnonzero((y >= labels.start) & (y < labels.stop))
    train = int(np.sum(rows < whole.train_size))
    return dataset(np.asarray(whole.x)[rows], y[rows] - labels.start, classes=len(labels), train_size=train)


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns the place of EMNIST's files or how to get them; uses no network."""
    kept = cache_folder(cache) / _KEPT
    return {"emnist": f"cached in {kept}" if kept.is_file() else f"not here: {_ADVICE}"}


def _from_folder(folder: Path, split: str) -> Dataset:
    def read(stem: str) -> tuple[bytes, str]:
        for place in (folder, folder / "gzip"):
            for end in (".gz", ""):
                if (place / f"{stem}{end}").is_file():
                    return (place / f"{stem}{end}").read_bytes(), str(place / f"{stem}{end}")
        raise ValueError(f"expected {_ARCHIVE} or the file {stem}.gz in the folder {folder}, got neither")

    places = (folder, folder / "gzip")
    unpacked = any(each.is_dir() and any(each.glob(f"emnist-{split}-*-ubyte*")) for each in places)
    if (folder / _ARCHIVE).is_file() and not unpacked:
        return _from_archive(folder / _ARCHIVE, split)
    return _parse(read, split)


def _from_archive(path: Path, split: str) -> Dataset:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.rsplit("/", 1)[-1]: name for name in archive.namelist()}

            def read(stem: str) -> tuple[bytes, str]:
                if f"{stem}.gz" not in members:
                    raise ValueError(f"expected the file {stem}.gz in the archive {path}, got none")
                return archive.read(members[f"{stem}.gz"]), f"{path}/{stem}.gz"

            return _parse(read, split)
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError) as error:
        raise ValueError(f"expected a whole zip archive, got a damaged one in {path} ({error})") from error


def _parse(read: Callable[[str], tuple[bytes, str]], split: str) -> Dataset:
    """Joins the training and the test part; ``read`` returns a file's bytes and its name for errors."""
    labels, parts = _LABELS[split], []
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
    return dataset(joined, y, classes=len(labels), train_size=sizes[0])
