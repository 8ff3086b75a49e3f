"""Images in folders, one folder for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.core.names import shown
from fljax.core.values import is_whole
from fljax.data.arrays import is_file, is_hidden
from fljax.data.datasets import PARTS, Dataset, Piece, assemble

ENDINGS = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
# Pillow would ask all its decoders, among them other programs; a file need not be of the format of its name.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# Parts of the path client/class/image.
_WITH_CLIENT = 3


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

    Validation and test images are those of their clients. Without clients, and of a client without training images,
    they are the server's: ``held["validation"]`` and the global test set ``held["test"]``. Hidden files and
    ``__MACOSX`` are skipped. Images elsewhere are refused, and so are folders of classes with files of other kinds
    alone.

    Images have one channel if all of them are grey, and three otherwise. They are read through Pillow, which matplotlib
    brings along.
    """
    place = Path(path).expanduser()
    if not place.is_dir():
        raise ValueError(f"expected a folder of images, got none at {shown(str(path))}")
    check_size(size)
    labels = [
        (owner, part, folder) for owner, part, above in _above_classes(place, client) for folder in _folders(above)
    ]
    files = [_Image(image, label.name, owner, part) for owner, part, label in labels for image in _images(label)]
    _check_all_read(place, [label for *_, label in labels], {file.path for file in files}, client)
    images = read_images([file.path for file in files], size)
    pieces = []
    for part, name in enumerate(("images", "validation images", "test images")):
        rows = [number for number, file in enumerate(files) if file.part == part]
        if rows:
            owners = np.array([files[row].owner for row in rows]) if client else None
            labels = [files[row].label for row in rows]
            pieces.append(Piece(images[rows], labels, owners, part == 2, name, part == 1))
    return assemble(pieces, classes=classes)


class _Image(NamedTuple):
    """An image file: its class, its client, and the part of the data set (a value of PARTS)."""

    path: Path
    label: str
    owner: str | None
    part: int


def _above_classes(place: Path, client: bool) -> list[tuple[str | None, int, Path]]:
    """The client, the part and the path of each folder that has the folders of classes."""
    tops = _parts(place) or [(0, place)]
    if not client:
        return [(None, part, top) for part, top in tops]
    owners = [(part, owner) for part, top in tops for owner in _folders(top)]
    below = {owner: _parts(owner) for _, owner in owners}
    if not any(below.values()):
        return [(owner.name, part, owner) for part, owner in owners]
    for owner, parts in below.items():
        if not parts or owner.parent != place:
            got = f"none in {shown(owner.name)}" if not parts else shown(parts[0][1].relative_to(place).as_posix())
            raise ValueError(
                f"expected folders of the parts, such as train and test, in all clients or none, got {got}"
            )
    return [(owner.name, part, inside) for owner, parts in below.items() for part, inside in parts]


def _parts(place: Path) -> list[tuple[int, Path]]:
    """The parts of a data set that the folders in a folder are, if all of them have names of parts."""
    inside = _folders(place)
    known = all(folder.name.lower() in PARTS for folder in inside)
    return [(PARTS[folder.name.lower()], folder) for folder in inside] if known else []


def _images(place: Path) -> list[Path]:
    """The images in a folder."""
    inside = [file for file in place.iterdir() if file.suffix.lower() in ENDINGS]
    return sorted(file for file in inside if not is_hidden(Path(file.name)))


def _folders(place: Path) -> list[Path]:
    return sorted(folder for folder in place.iterdir() if folder.is_dir() and not is_hidden(Path(folder.name)))


def _check_all_read(place: Path, classes: Sequence[Path], read: set[Path], client: bool) -> None:
    """Raises a ValueError if no image is read, or one is in a place or of a kind that is not read."""
    wanted = (
        f"expected images in {'folder/client/class/image' if client else 'folder/class/image'} ({', '.join(ENDINGS)})"
    )
    files = _files_below(place)
    others = [file for file in files if file.suffix.lower() in ENDINGS and file not in read]
    if others:
        name = others[0].relative_to(place)
        more = f" and {len(others) - 1} more in other places" if len(others) > 1 else ""
        advice = "" if client or len(name.parts) != _WITH_CLIENT else "; client = true reads folder/client/class/image"
        raise ValueError(f"{wanted}, got {shown(name.as_posix())}{more}{advice}")
    lost = next((file for file in files if file.is_symlink() and not file.exists()), None)
    if lost is not None:
        got = shown(lost.relative_to(place).as_posix())
        raise ValueError(f"expected files and folders, got a link to nothing, {got}")
    empty = set(classes) - {file.parent for file in read}
    unread = [file for file in files if file.parent in empty]
    if unread:
        folder, name = shown(unread[0].parent.relative_to(place).as_posix()), unread[0].name
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        raise ValueError(f"{wanted}, got files of other kinds alone in {folder}: {name}{more}")
    if not read:
        raise ValueError(f"{wanted}, got none in {shown(str(place))}")


def _files_below(place: Path) -> list[Path]:
    """All files that are not hidden, and links to nothing."""
    files_below, seen = [], set[str]()
    for folder, inside, files in os.walk(place, followlinks=True):
        inside[:] = sorted(name for name in inside if not is_hidden(Path(name)))
        if (real := os.path.realpath(folder)) in seen:  # a link to a folder above
            inside.clear()
            continue
        seen.add(real)
        files_below += [Path(folder, name) for name in sorted(files) if not is_hidden(Path(name))]
    return files_below


def check_size(size: Any) -> None:
    """Raises a ValueError if a size of images is not None or two whole numbers from 1."""
    if size is None:
        return
    lengths = list(size) if isinstance(size, Sequence | np.ndarray) and not isinstance(size, str) else size
    if (
        not isinstance(lengths, list)
        or len(lengths) != 2
        or not all(is_whole(length) and length >= 1 for length in lengths)
    ):
        raise ValueError(f"expected size as [height, width], two whole numbers from 1, got {shown(lengths)}")


def read_images(paths: Sequence[Path], size: Sequence[int] | None) -> np.ndarray:
    """The images of some files: uint8 ``[n, height, width, channels]``, with one channel if all are grey."""
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("expected Pillow to read images, got none; install it (pip install pillow)") from None
    check_size(size)
    images: list[np.ndarray] = []
    for path in paths:
        try:
            if not is_file(path):
                raise ValueError("which is no regular file" if path.exists() else "No such file or directory")
            with Image.open(path, formats=FORMATS) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"more than 8 bits, mode {image.mode}")
                image = image.convert("L" if image.mode in ("1", "L") else "RGB")
                if size is not None:
                    image = image.resize((int(size[1]), int(size[0])), Image.Resampling.BILINEAR)
                pixels = np.asarray(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            said = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise ValueError(f"expected an image, got {shown(str(path))} ({said})") from None
        if images and pixels.shape[:2] != images[0].shape[:2]:
            one, other = ("x".join(map(str, array.shape[:2])) for array in (images[0], pixels))
            raise ValueError(
                f"expected images of one size or the option size=[height, width], got {one} and {other} in "
                f"{shown(str(path))}"
            )
        images.append(pixels)
    if all(array.ndim == 2 for array in images):
        return np.stack(images)[..., None]
    return np.stack([array if array.ndim == 3 else np.repeat(array[..., None], 3, axis=2) for array in images])
