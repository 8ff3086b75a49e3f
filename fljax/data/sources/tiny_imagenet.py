"""Tiny ImageNet: 200 classes of 64 x 64 images, from the unpacked folder of upstream's archive.

Tested on files that the tests write in this layout, not yet on upstream's files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.cache import cache_folder, read_cached, write_cached

_SIZE = 64
_INSIDE = "tiny-imagenet-200"
_ADVICE = (
    f"give folder=, the folder {_INSIDE} that upstream's {_INSIDE}.zip unpacks to, or the one that holds it; it is "
    "never fetched"
)


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
    store = cache_folder(cache)
    if folder is None:
        arrays = read_cached("tiny_imagenet", store)
        if arrays is None or not {"x", "y", "train_size", "classes"} <= arrays.keys():
            raise ValueError(f"expected tiny_imagenet on this machine, got nothing; {_ADVICE}")
    else:
        place = Path(folder).expanduser()
        arrays = _parse(place / _INSIDE if (place / _INSIDE).is_dir() else place)
        write_cached("tiny_imagenet", store, arrays)
    return dataset(arrays["x"], arrays["y"], classes=int(arrays["classes"]), train_size=int(arrays["train_size"]))


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns the place of Tiny ImageNet's files or how to get them; uses no network."""
    stored = cache_folder(cache) / "tiny_imagenet.npz"
    return {"tiny_imagenet": f"cached in {stored}" if stored.exists() else f"not here: {_ADVICE}"}


def _parse(folder: Path) -> dict[str, np.ndarray]:
    names = [line.strip() for line in _lines(folder / "wnids.txt") if line.strip()]
    number = {name: i for i, name in enumerate(names)}
    if not names or len(number) < len(names):
        raise ValueError(f"expected the name of each class once, got others in {folder / 'wnids.txt'}")
    files: list[tuple[Path, int]] = []
    for name in names:
        found = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not found:
            raise ValueError(f"expected images of the class {name}, got none in {folder / 'train' / name / 'images'}")
        files += [(path, number[name]) for path in found]
    size, table = len(files), folder / "val" / "val_annotations.txt"
    for row, line in enumerate(_lines(table), 1):
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
    x = np.empty((len(files), _SIZE, _SIZE, 3), np.uint8)
    for row, (path, _) in enumerate(files):
        x[row] = _image(path)
    return {
        "x": x,
        "y": np.array([label for _, label in files], np.int32),
        "train_size": np.asarray(size),
        "classes": np.asarray(len(names)),
    }


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"expected the file {path.name} in the folder {path.parent}, got none; {_ADVICE}")
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def _image(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("expected Pillow, which reads JPEG files, got no such package installed") from error
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"expected a JPEG image, got none or a damaged one in {path} ({error})") from error
    if pixels.shape != (_SIZE, _SIZE, 3):
        raise ValueError(f"expected images of {_SIZE} x {_SIZE}, got {pixels.shape[1]} x {pixels.shape[0]} in {path}")
    return pixels
