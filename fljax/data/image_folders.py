"""Images in folders, one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fljax.data.assembly import Piece, assemble
from fljax.data.datasets import Dataset
from fljax.naming import shown

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def image_folder(
    path: str | Path, *, size: Sequence[int] | None = None, client: bool = False, classes: int | None = None
) -> Dataset:
    """Images in ``folder/class/*.png`` (or .jpg and others): uint8 ``[n, height, width, channels]``.

    The names of the folders are the labels, numbered in alphabetical order. Two folders called ``train`` and ``test``
    may stand above those of the classes. In a config::

        [data]
        dataset = "scans/"  # beside the config; the slash says that it is a folder
        size = [32, 32]
        partition = "dirichlet"
        clients = 10

    Args:
      path: the folder.
      size: height and width to which images are resized; without it all images must have one size.
      client: whether images are in ``folder/client/class/*.png``; every client's folder is then a client.
      classes: number of classes, if some class has no image.

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
    inside = {each.name for each in _folders(place)}
    tops = [(place / "train", False), (place / "test", True)] if inside == {"train", "test"} else [(place, False)]
    found = [
        (image, label.name, owner, test)
        for top, test in tops
        for owner, above in ([(each.name, each) for each in _folders(top)] if client else [(None, top)])
        for label in _folders(above)
        for image in sorted(label.iterdir())
        if image.suffix.lower() in ENDINGS
    ]
    if not found:
        wanted = "folder/client/class/image" if client else "folder/class/image"
        raise ValueError(f"expected images in {wanted} ({', '.join(ENDINGS)}), got none in {shown(str(place))}")
    images = read_images([image for image, *_ in found], size)
    pieces = []
    for test in (False, True):
        rows = [number for number, each in enumerate(found) if each[3] == test]
        if rows:
            owners = np.array([found[row][2] for row in rows]) if client else None
            labels = [found[row][1] for row in rows]
            pieces.append(Piece(images[rows], labels, owners, test, "test images" if test else "images"))
    return assemble(pieces, classes=classes)


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
