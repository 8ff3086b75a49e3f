"""The registry of data sources by name, sources of one's own data by path or prefix, and ``load``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.core import users
from fljax.core.names import has_separator, resolve, shown
from fljax.core.values import is_required, parameters_of, takes_anything
from fljax.data.arrays import check_keywords, choose, existing_file, is_file, is_folder, one_line, with_home
from fljax.data.datasets import Dataset
from fljax.data.own.benchmarks import is_leaf, is_pfllib, leaf, names_users, pfllib
from fljax.data.own.files import (
    ARRAYS,
    array_folder,
    arrays,
    files_in,
    is_medmnist,
    mapped,
    medmnist,
    part_folders,
    table,
    table_folder,
)
from fljax.data.own.image_folders import ENDINGS as IMAGES
from fljax.data.own.image_folders import image_folder
from fljax.data.own.table_files import ENDINGS as TABLES
from fljax.data.sources import mnist, offline, photos, reviews
from fljax.data.sources.hubs import hugging_face_dataset, tfds_dataset

# Folders between the folder and an image: train, client, class.
_DEPTH = 3
_READERS = (("tables", TABLES, table_folder), ("arrays", ARRAYS, array_folder))


class _Kind(NamedTuple):
    """Files of one kind in a folder: what error messages call them, and one of them."""

    name: str
    example: Path
    reader: Callable[..., Dataset]


def folder_source(place: Path) -> Callable[..., Dataset]:
    """The function that makes a data set of a folder: PFLlib's or LEAF's files, tables, arrays or images."""
    try:
        if is_pfllib(place):
            return pfllib
        kinds = [*_kinds_of_files([place, *part_folders(place)])]
    except OSError as error:
        raise ValueError(f"expected a folder that can be read, got {one_line(error)}") from None
    images = _of_images(place)
    if not kinds:
        if is_leaf(place):
            return leaf
        # Tables and arrays in other folders are refused by their reader, which says where they should be.
        inside = sorted(path for path in place.iterdir() if is_folder(path) and not path.name.startswith("."))
        deep = (kind.reader for folder in inside for kind in _kinds_of_files([folder]))
        return image_folder if images else next(deep, image_folder)
    kinds += images
    users = names_users(place)
    if users is not None:
        kinds.append(_Kind("LEAF's JSON", users, leaf))
    if len(kinds) > 1:
        got = " and ".join(f"{kind.name} ({kind.example.relative_to(place).as_posix()})" for kind in kinds)
        raise ValueError(
            f"expected files of one kind in the folder {shown(place.name)}, got {got}; keep one kind in it, or name a "
            "single file by its path"
        )
    return kinds[0].reader


def _kinds_of_files(folders: Sequence[Path]) -> Iterator[_Kind]:
    """Tables and arrays in some folders, which may be files of clients."""
    for name, endings, reader in _READERS:
        files = [file for folder in folders for file in files_in(folder, endings)]
        if files:
            yield _Kind(name, files[0], reader)


def _of_images(place: Path) -> list[_Kind]:
    for folder, inside, files in os.walk(place):
        if len(Path(folder).relative_to(place).parts) >= _DEPTH:
            inside.clear()
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        images = sorted(name for name in files if name.lower().endswith(IMAGES) and not name.startswith("."))
        if images:
            return [_Kind("images", Path(folder, images[0]), image_folder)]
    return []


SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": offline.digits,
    "fashion_mnist": mnist.fashion_mnist,
    "mnist": mnist.mnist,
    "mnist_5k": offline.mnist_5k,
    "emnist": mnist.emnist,
    "cifar10": photos.cifar10,
    "cifar100": photos.cifar100,
    "svhn": photos.svhn,
    "tiny_imagenet": photos.tiny_imagenet,
    "sent140": reviews.sent140,
    "sst5": reviews.sst5,
    "synthetic": offline.synthetic,
    "blobs": offline.blobs,
    "two_means": offline.two_means,
}


def find_source(
    name: str, registry: Mapping[str, Callable[..., Dataset]] = SOURCES, *, imports: bool = True
) -> Callable[..., Dataset]:
    """The function that makes the data set of this name in a config; ``imports`` as for ``names.resolve``."""
    source = own_source(name)
    if source is not None:
        return source
    try:
        return resolve(name, registry, "dataset", imports=imports)
    except ValueError as error:
        if ":" in name:
            raise
        raise ValueError(f"{error}, a file by its path ('mine.csv'), a folder with a slash ('mine/')") from None


# Readers of files of one's own, by the end of their names.
FILES: dict[str, Callable[..., Dataset]] = {
    ".csv": table,
    ".csv.gz": table,
    ".parquet": table,
    ".npz": arrays,
    ".npy": mapped,
    ".json": leaf,
}
# Sources of other packages, by the prefix of their names in a config.
PREFIXES: dict[str, Callable[..., Dataset]] = {"tfds": tfds_dataset, "hf": hugging_face_dataset}


def own_forms() -> dict[str, Callable[..., Dataset]]:
    """How a config names data that are not in SOURCES: ``"FILE.csv"``, ``"FOLDER/"``, ``"tfds:NAME"`` and so on."""
    files = {f"FILE{ending}": reader for ending, reader in FILES.items()}
    folders = {"FOLDER/": image_folder, "FOLDER/ of .csv": table_folder, "FOLDER/ of .npz": array_folder}
    others = {"FILE.npz of MedMNIST": medmnist, "FOLDER/ of PFLlib": pfllib}
    forms = {**files, **folders, **others, **{f"{prefix}:NAME": source for prefix, source in PREFIXES.items()}}
    return {form: _of(source, form, form) for form, source in forms.items()}


def own_source(name: str) -> Callable[..., Dataset] | None:
    """The source for a path, or for a name with a prefix of PREFIXES; None if the name is neither."""
    prefix, colon, rest = name.partition(":")
    if colon and rest and prefix in PREFIXES:
        return _of(PREFIXES[prefix], rest, name)
    if not is_path(name):
        return None
    place = with_home(name)
    if is_folder(place):
        return _of(folder_source(place), name, name)
    reader = next((read for ending, read in FILES.items() if name.lower().endswith(ending)), None)
    if reader is None:
        endings = ", ".join(FILES)
        raise ValueError(f"expected a folder, or a file that ends in one of {endings}, got {shown(name)}")
    file = existing_file(name)
    return _of(medmnist if reader is arrays and is_medmnist(file) else reader, str(file), name)


def is_path(name: str, folder: str | Path = "") -> bool:
    """Whether the name of a data set is the path of a file or folder: it has a slash or a full stop."""
    # With a colon, it is one if it has a slash, is in ``folder``, or is no import path (``"10:30.csv"``).
    prefix, colon, rest = name.partition(":")
    if colon and rest and prefix in PREFIXES:
        return False
    if has_separator(name):
        return True
    importable = bool(colon) and all(part.isidentifier() for part in rest.split(".") if rest)
    place = with_home(name if os.path.isabs(name) else os.path.join(folder, name))
    return ("." in name and not importable) or (bool(colon) and (is_file(place) or is_folder(place)))


def absolute(name: str, folder: str | Path) -> str:
    """A data set's name in a config of this folder; a path becomes absolute, other names stay."""
    return os.path.normpath(Path(folder).absolute() / with_home(name)) if is_path(name, folder) else name


def _of(reader: Callable[..., Dataset], place: str, name: str) -> Callable[..., Dataset]:
    source: Any = functools.partial(reader, place)
    source.__name__ = name  # for error messages
    return source


def load(
    name: str | Path | Callable[..., Dataset],
    *,
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Loads a data set.

    Args:
      name: a name in SOURCES, the path of a file or folder of one's own, ``"tfds:NAME"``, ``"hf:NAME"``, or a function
        that returns a Dataset.
      folder: folder with the upstream files, for sources that read files.
      cache: folder of fljax's own copies, for sources that use the cache; other sources ignore ``cache``.
      **options: keywords of the source itself, e.g. ``alpha`` of ``synthetic``.

    Raises:
      ValueError: if the source or a keyword is unknown, or the data cannot be found or fetched.
    """
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    source = name if callable(name) else own_source(name) or choose("dataset", name, SOURCES)
    label = name if isinstance(name, str) else getattr(name, "__name__", "given")
    valid, anything = parameters_of(source), takes_anything(source)
    if folder is not None or is_required(source, "folder"):
        options["folder"] = folder
    if cache is not None and (anything or "cache" in valid):
        options["cache"] = cache
    if not anything:
        check_keywords("dataset", label, options, valid)
    made = users.call("the dataset", f"({', '.join(options)})", source, **options)
    if not isinstance(made, Dataset):
        raise ValueError(f"expected the dataset {label} to be a fljax.data.Dataset, got a {type(made).__name__}")
    return made


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns, for each name in SOURCES, the place of the data or how to get them; uses no network.

    Args:
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.
    """
    places = dict.fromkeys(SOURCES, "generated, nothing to fetch")
    cached = (mnist.FASHION_MNIST, mnist.MNIST, photos.CIFAR10, photos.CIFAR100, photos.SVHN, photos.TINY_IMAGENET)
    places |= {source.name: source.status(cache) for source in (*cached, reviews.SST5)}
    return places | offline.package_status() | mnist.emnist_status(cache) | reviews.sent140_status(cache)
