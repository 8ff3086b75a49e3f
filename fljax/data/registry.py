"""The registry of data sources by name, sources of one's own data by path or prefix, and ``load``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fljax.core.names import resolve, shown
from fljax.core.signatures import is_required, parameters_of, takes_anything
from fljax.data.checks import check_keywords, choose
from fljax.data.datasets import Dataset
from fljax.data.own.client_files import array_folder, table_folder
from fljax.data.own.files import arrays, mapped, table
from fljax.data.own.folders import folder_source
from fljax.data.own.image_folders import image_folder
from fljax.data.own.leaf import leaf
from fljax.data.own.pfllib import pfllib
from fljax.data.paths import existing_file, is_folder, with_home
from fljax.data.sources import cifar, emnist, generated, images, sent140, sst, svhn, tiny_imagenet
from fljax.data.sources.hugging_face import hugging_face_dataset
from fljax.data.sources.medmnist import is_medmnist, medmnist
from fljax.data.sources.tfds import tfds_dataset

SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": images.digits,
    "fashion_mnist": images.fashion_mnist,
    "mnist": images.mnist,
    "mnist_5k": images.mnist_5k,
    "emnist": emnist.emnist,
    "cifar10": cifar.cifar10,
    "cifar100": cifar.cifar100,
    "svhn": svhn.svhn,
    "tiny_imagenet": tiny_imagenet.tiny_imagenet,
    "sent140": sent140.sent140,
    "sst5": sst.sst5,
    "synthetic": generated.synthetic,
    "blobs": generated.blobs,
    "two_means": generated.two_means,
}


def find_source(
    name: str, registry: Mapping[str, Callable[..., Dataset]] = SOURCES, *, imports: bool = True
) -> Callable[..., Dataset]:
    """The function that makes the data set of this name in a config; its keywords are the data set's options.

    Args:
      name: a name in SOURCES, the path of a file or folder of one's own, ``"tfds:NAME"``, ``"hf:NAME"``, or an import
        path ``"module:name"``.
      registry: the sources by name.
      imports: as for ``fljax.core.names.resolve``.

    Raises:
      ValueError: if there is no such name, file or function.
    """
    own = own_source(name)
    if own is not None:
        return own
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
    """The source for a path, or for a name with a prefix of PREFIXES; None if the name is neither.

    Raises:
      ValueError: if there is no such file or folder, or fljax cannot read files of its kind.
    """
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


def is_path(name: str) -> bool:
    """Whether the name of a data set in a config is the path of a file or folder: it has a slash or a full stop.

    Import paths, which have a colon, and names with a prefix of PREFIXES are no paths.
    """
    return ":" not in name and ("/" in name or os.sep in name or "." in name)


def absolute(name: str, folder: str | Path) -> str:
    """A data set's name in a config of this folder; a path becomes absolute, other names stay."""
    return os.path.normpath(Path(folder).absolute() / with_home(name)) if is_path(name) else name


def _of(reader: Callable[..., Dataset], place: str, name: str) -> Callable[..., Dataset]:
    source: Any = functools.partial(reader, place)
    source.__name__ = name  # for error messages
    return source


def load(
    name: str | Callable[..., Dataset],
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
    source = name if callable(name) else own_source(name) or choose("dataset", name, SOURCES)
    label = name if isinstance(name, str) else getattr(name, "__name__", "given")
    valid, anything = parameters_of(source), takes_anything(source)
    if folder is not None or is_required(source, "folder"):
        options["folder"] = folder
    if cache is not None and (anything or "cache" in valid):
        options["cache"] = cache
    if not anything:
        check_keywords("dataset", label, options, valid)
    made = source(**options)
    if not isinstance(made, Dataset):
        raise ValueError(f"expected the dataset {label} to be a fljax.data.Dataset, got a {type(made).__name__}")
    return made


def status(cache: str | Path | None = None) -> dict[str, str]:
    """Returns, for each name in SOURCES, the place of the data or how to get them; uses no network.

    Args:
      cache: folder of fljax's own copies; ``$FLJAX_CACHE`` or the user's cache folder if not given.
    """
    found = dict.fromkeys(SOURCES, "generated, nothing to fetch")
    for module in (images, emnist, cifar, svhn, tiny_imagenet, sent140, sst):
        found |= module.status(cache)
    return found
