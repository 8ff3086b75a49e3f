"""SVHN: house numbers cropped to single digits, from upstream's MATLAB files.

Tested on files that the tests write in this format, not yet on upstream's files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fljax.data.datasets import Dataset, dataset
from fljax.data.sources.cache import cache_folder, read_cached, write_cached
from fljax.data.sources.download import fetch_files

_FILES = ("train_32x32.mat", "test_32x32.mat")
_ADVICE = f"give folder=, the folder that holds {' and '.join(_FILES)}, or try again with a network connection (235 MB)"


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
    if folder is not None:
        return _parse(Path(folder).expanduser())
    store = cache_folder(cache)
    arrays = read_cached("svhn", store)
    if arrays is not None and {"x", "y", "train_size"} <= arrays.keys():
        return dataset(arrays["x"], arrays["y"], classes=10, train_size=int(arrays["train_size"]))
    with fetch_files("svhn", _ADVICE, "svhn_cropped", only=_FILES) as files:
        made = _parse(files)
    write_cached("svhn", store, {"x": made.x, "y": made.y, "train_size": np.asarray(made.train_size)})
    return made


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns the place of SVHN's files or how to get them; uses no network."""
    stored = cache_folder(cache) / "svhn.npz"
    return {"svhn": f"cached in {stored}" if stored.exists() else f"not here: {_ADVICE}"}


def _parse(folder: Path) -> Dataset:
    parts = [_read(folder / name) for name in _FILES]
    images, labels = zip(*parts, strict=True)
    return dataset(np.concatenate(images), np.concatenate(labels), classes=10, train_size=len(labels[0]))


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[n, 32, 32, 3]`` and digits, from ``X`` uint8 ``[32, 32, 3, n]`` and ``y`` ``[n, 1]`` in 1..10."""
    from scipy.io import loadmat

    if not path.is_file():
        raise ValueError(f"expected the file {path.name} in the folder {path.parent}, got none")
    try:
        found = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a garbled file can raise anything
        what = str(error).partition("\n")[0]
        raise ValueError(
            f"expected a whole file of MATLAB's version 5, got a damaged one in {path} ({what})"
        ) from error
    x, y = found.get("X"), found.get("y")
    if x is None or y is None:
        raise ValueError(f"expected the arrays X and y, got others in {path}")
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or y.shape != (x.shape[3], 1):
        got = f"X {x.dtype} {x.shape} and y {y.shape}"
        raise ValueError(f"expected X uint8 (32, 32, 3, n) and y (n, 1), got {got} in {path}")
    if not np.isin(y, range(1, 11)).all():
        raise ValueError(f"expected labels in 1..10, got labels in {y.min()}..{y.max()} in {path}")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y[:, 0].astype(np.int32) % 10
