"""The registry of data sources by name, and ``load``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fljax.arguments import is_required, parameters_of, takes_anything
from fljax.data import cifar, emnist, generated, images, sent140, sst, svhn, tiny_imagenet
from fljax.data.checks import check_keywords, choose
from fljax.data.datasets import Dataset

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


def load(
    name: str | Callable[..., Dataset],
    *,
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Loads a data set.

    Args:
      name: a name in SOURCES, or a function that returns a Dataset.
      folder: folder with the upstream files, for sources that read files.
      cache: folder of fljax's own copies, for sources that use the cache; other sources ignore ``cache``.
      **options: keywords of the source itself, e.g. ``alpha`` of ``synthetic``.

    Raises:
      ValueError: if the source or a keyword is unknown, or the data cannot be found or fetched.
    """
    source = name if callable(name) else choose("dataset", name, SOURCES)
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
