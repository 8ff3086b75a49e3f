"""Which reader a folder of one's own data has, by the files in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fljax.core.names import shown
from fljax.data.datasets import Dataset
from fljax.data.own.client_files import ARRAYS, array_folder, files_in, part_folders, table_folder
from fljax.data.own.csv_tables import one_line
from fljax.data.own.image_folders import ENDINGS as IMAGES
from fljax.data.own.image_folders import image_folder
from fljax.data.own.leaf import is_leaf, leaf, names_users
from fljax.data.own.pfllib import is_pfllib, pfllib
from fljax.data.own.table_files import ENDINGS as TABLES
from fljax.data.paths import is_folder

# Folders between the folder and an image: train, client, class.
_DEPTH = 3
_READERS = (("tables", TABLES, table_folder), ("arrays", ARRAYS, array_folder))


class Kind(NamedTuple):
    """Files of one kind in a folder.

    Attributes:
      name: what error messages call them.
      example: one of them.
      reader: makes a data set of the folder.
    """

    name: str
    example: Path
    reader: Callable[..., Dataset]


def folder_source(place: Path) -> Callable[..., Dataset]:
    """The function that makes a data set of a folder: PFLlib's or LEAF's files, tables, arrays or images.

    Raises:
      ValueError: if files are of several kinds, or the folder cannot be read.
    """
    try:
        if is_pfllib(place):
            return pfllib
        kinds = [*_kinds(place)]
    except OSError as error:
        raise ValueError(f"expected a folder that can be read, got {one_line(error)}") from None
    images = _of_images(place)
    if not kinds:
        if is_leaf(place):
            return leaf
        # Tables and arrays in other folders are refused by their reader, which says where they should be.
        deep = [] if images else [*_deep(place)]
        return deep[0].reader if deep else image_folder
    kinds += images
    users = names_users(place)
    if users is not None:
        kinds.append(Kind("LEAF's JSON", users, leaf))
    if len(kinds) > 1:
        got = " and ".join(f"{each.name} ({each.example.relative_to(place).as_posix()})" for each in kinds)
        raise ValueError(
            f"expected files of one kind in the folder {shown(place.name)}, got {got}; keep one kind in it, or name a "
            "single file by its path"
        )
    return kinds[0].reader


def _kinds(place: Path) -> Iterator[Kind]:
    """Tables and arrays, which may be files of clients."""
    for name, endings, reader in _READERS:
        found = [each for folder in (place, *part_folders(place)) for each in files_in(folder, endings)]
        if found:
            yield Kind(name, found[0], reader)


def _deep(place: Path) -> Iterator[Kind]:
    """Tables and arrays that are in other folders than those of clients' files."""
    for folder in sorted(each for each in place.iterdir() if is_folder(each) and not each.name.startswith(".")):
        for name, endings, reader in _READERS:
            found = files_in(folder, endings)
            if found:
                yield Kind(name, found[0], reader)


def _of_images(place: Path) -> list[Kind]:
    for folder, inside, files in os.walk(place):
        if len(Path(folder).relative_to(place).parts) >= _DEPTH:
            inside.clear()
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        images = sorted(name for name in files if name.lower().endswith(IMAGES) and not name.startswith("."))
        if images:
            return [Kind("images", Path(folder, images[0]), image_folder)]
    return []
