"""MedMNIST's ``.npz`` files: images of medicine with the parts train, val and test that their authors chose."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fljax.data.assembly import Piece, assemble
from fljax.data.datasets import Dataset
from fljax.data.own.files import opened_npz
from fljax.data.paths import existing_file

_PARTS = ("train", "val", "test")
_NAMES = tuple(f"{part}_{kind}" for part in _PARTS for kind in ("images", "labels"))


def medmnist(path: str | Path, *, classes: int | None = None) -> Dataset:
    """A file of MedMNIST, of any size of images, as it is downloaded.

    In a config::

        [data]
        dataset = "pathmnist.npz"  # beside the config
        partition = "dirichlet"
        clients = 20

    The file has the arrays ``train_images``, ``train_labels``, ``val_images``, ``val_labels``, ``test_images`` and
    ``test_labels``. Clients share the training rows. The rows of ``val`` are the server's, ``held["validation"]``,
    and those of ``test`` are the global test set, ``held["test"]`` (``test = "global"`` tests all clients on it).

    Args:
      path: the file.
      classes: number of classes, if some class has no row.

    Images are uint8 ``[n, height, width, channels]``, with one channel if they are grey; images in three dimensions
    become ``[n, depth, height, width, 1]``. Labels ``[n, 1]`` become ``[n]``. ChestMNIST has several labels for each
    row, ``[n, 14]``, which need a model of one's own.

    Source: Yang et al., "MedMNIST v2: A large-scale lightweight benchmark for 2D and 3D biomedical image
    classification", Scientific Data, 2023.

    Raises:
      ValueError: if the file cannot be read, or its arrays do not fit together.
    """
    place = existing_file(path)
    try:
        with opened_npz(place) as file:
            return assemble([_piece(file, part) for part in _PARTS], classes=classes)
    except ValueError as error:
        raise ValueError(f"{place.name}: {error}") from None


def is_medmnist(place: Path) -> bool:
    """Whether a file has the six arrays of MedMNIST."""
    try:
        with zipfile.ZipFile(place) as file:
            return {f"{name}.npy" for name in _NAMES} <= set(file.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _piece(file: Mapping[str, np.ndarray], part: str) -> Piece:
    """The rows of one part."""
    images, labels = _array(file, f"{part}_images"), _array(file, f"{part}_labels")
    if images.ndim not in (3, 4, 5) or images.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 images [n, height, width] or [n, height, width, 3] in {part}_images, got {images.dtype} "
            f"{list(images.shape)}"
        )
    # Only images in colour have channels; MedMNIST's images in three dimensions are grey.
    coloured = images.ndim == 5 or (images.ndim == 4 and images.shape[-1] in (1, 3))
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    return Piece(
        images if coloured else images[..., None],
        labels,
        test=part == "test",
        name=f"rows of {part}",
        valid=part == "val",
    )


def _array(file: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    try:
        return file[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise ValueError(f"expected numbers in the array {name}, got Python objects") from None
