"""Images in folders, one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.data.assembly import PARTS, Piece, assemble
from fljax.data.datasets import Dataset
from fljax.naming import shown

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def image_folder(
    path: str | Path, *, size: Sequence[int] | None = None, client: bool = False, classes: int | None = None
) -> Dataset:
    """Images in ``folder/class/*.png`` (or .jpg and others): uint8 ``[n, height, width, channels]``.

    The names of the folders are the labels, numbered in alphabetical order. Folders called ``train``, ``val`` (also
    ``valid`` or ``validation``) and ``test`` may stand above those of the classes. In a config::

        [data]
        dataset = "scans/"  # beside the config; the slash says that it is a folder
        size = [32, 32]
        partition = "dirichlet"
        clients = 10

    Args:
      path: the folder.
      size: height and width to which images are resized; without it all images must have one size.
      client: whether images are in ``folder/client/class/*.png``; every client's folder is then a client. Its parts
        may have folders: ``folder/client/train/class/*.png`` or ``folder/train/client/class/*.png``.
      classes: number of classes, if some class has no image.

    Validation and test images are those of their clients. Without clients they are the server's: ``held["validation"]``
    and the global test set ``held["test"]``.

    Images have one channel if all of them are grey, and three otherwise. They are read through Pillow, which matplotlib
    brings along.

    Raises:
      ValueError: if there are no images, one cannot be read, or they differ in size.
    """
    place = Path(path).expanduser()
    if not place.is_dir():
        raise ValueError(f"expected a folder of images, got none at {shown(str(path))}")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"expected size as [height, width], got {list(size)}")
    labels = [(owner, part, each) for owner, part, above in _above_classes(place, client) for each in _folders(above)]
    found = [_Image(image, label.name, owner, part) for owner, part, label in labels for image in _images(label)]
    having = {each.path.parent for each in found}
    empty = [label for *_, label in labels if label not in having] if found else [place]
    other = next((image for folder in empty for image in _images(folder, deep=True)), None)
    if not found or other is not None:
        wanted = "folder/client/class/image" if client else "folder/class/image"
        got = f"none in {shown(str(place))}" if other is None else shown(other.relative_to(place).as_posix())
        advice = "" if other is None or client else "; client = true reads folder/client/class/image"
        raise ValueError(f"expected images in {wanted} ({', '.join(ENDINGS)}), got {got}{advice}")
    images = read_images([each.path for each in found], size)
    pieces = []
    for part, name in enumerate(("images", "validation images", "test images")):
        rows = [number for number, each in enumerate(found) if each.part == part]
        if rows:
            owners = np.array([found[row].owner for row in rows]) if client else None
            labels = [found[row].label for row in rows]
            pieces.append(Piece(images[rows], labels, owners, part == 2, name, part == 1))
    return assemble(pieces, classes=classes)


class _Image(NamedTuple):
    """An image file: its class, its client, and the part of the data set (a value of PARTS)."""

    path: Path
    label: str
    owner: str | None
    part: int


def _above_classes(place: Path, client: bool) -> list[tuple[str | None, int, Path]]:
    """The client, the part and the path of each folder that has the folders of classes.

    Raises:
      ValueError: if some clients have folders of parts and others have not.
    """
    tops = _parts(place) or [(0, place)]
    if not client:
        return [(None, part, top) for part, top in tops]
    owners = [(part, each) for part, top in tops for each in _folders(top)]
    below = {each: _parts(each) for _, each in owners}
    if not any(below.values()):
        return [(each.name, part, each) for part, each in owners]
    for each, parts in below.items():
        if not parts or each.parent != place:
            got = f"none in {shown(each.name)}" if not parts else shown(parts[0][1].relative_to(place).as_posix())
            raise ValueError(
                f"expected folders of the parts, such as train and test, in all clients or none, got {got}"
            )
    return [(each.name, part, inside) for each, parts in below.items() for part, inside in parts]


def _parts(place: Path) -> list[tuple[int, Path]]:
    """The parts of a data set that the folders in a folder are, if all of them have names of parts."""
    inside = _folders(place)
    known = all(each.name.lower() in PARTS for each in inside)
    return [(PARTS[each.name.lower()], each) for each in inside] if known else []


def _images(place: Path, *, deep: bool = False) -> list[Path]:
    """The images in a folder; ``deep``: and in the folders inside it."""
    inside = place.rglob("*") if deep else place.iterdir()
    return sorted(each for each in inside if each.suffix.lower() in ENDINGS)


def _folders(place: Path) -> list[Path]:
    return sorted(each for each in place.iterdir() if each.is_dir() and not each.name.startswith("."))


def read_images(paths: Sequence[Path], size: Sequence[int] | None) -> np.ndarray:
    """The images of some files: uint8 ``[n, height, width, channels]``, with one channel if all are grey.

    Raises:
      ValueError: if one cannot be read, or they differ in size and ``size`` is not given.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("expected Pillow to read images, got none; install it (pip install pillow)") from None
    found: list[np.ndarray] = []
    for path in paths:
        try:
            with Image.open(path) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"more than 8 bits, mode {image.mode}")
                image = image.convert("L" if image.mode in ("1", "L") else "RGB")
                if size is not None:
                    image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
                pixels = np.asarray(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            said = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise ValueError(f"expected an image, got {shown(str(path))} ({said})") from None
        if found and pixels.shape[:2] != found[0].shape[:2]:
            one, other = ("x".join(map(str, each.shape[:2])) for each in (found[0], pixels))
            raise ValueError(
                f"expected images of one size or the option size=[height, width], got {one} and {other} in "
                f"{shown(str(path))}"
            )
        found.append(pixels)
    if all(each.ndim == 2 for each in found):
        return np.stack(found)[..., None]
    return np.stack([each if each.ndim == 3 else np.repeat(each[..., None], 3, axis=2) for each in found])
