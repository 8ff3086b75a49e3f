"""Upstream's files of a data set: downloads, with the addresses and checksums of TensorFlow Datasets, and a cache.

The builders of TFDS need TensorFlow to read most of these files; its download manager does not. If one archive serves
several data sets or options, it is cached itself. Errors of the cache give a warning, and a run goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fljax.data.datasets import Dataset, dataset, with_moments

# Typed loosely, since NumPy's stub treats every keyword as an option of savez.
_save: Callable[..., None] = np.savez


class Source(NamedTuple):
    """A data set whose upstream files are parsed once: the cache has its arrays in one file, ``<name>.npz``."""

    name: str
    parse: Callable[[Path], Dataset]  # of a folder with upstream's files
    advice: str  # how to get these files; the end of an error message
    classes: int | None = None  # None: a number of the cached file
    saved: tuple[str, ...] = ()  # numbers of the Dataset in the cached file beside ``train_size``
    builder: str | None = None  # name of the data set in TFDS, if different
    only: tuple[str, ...] | None = None  # upstream's names of the needed files; None: all
    fetched: bool = True  # whether they may be downloaded; then data of a user's folder are not cached
    folders: tuple[str, ...] = ()  # in which a package of the system may have the files
    pattern: str = "*"  # of the name of one of these files

    def load(self, folder: str | Path | None, cache: str | Path | None) -> Dataset:
        """The data set, read from ``folder`` if given; otherwise from the cache, a package's folder, or a download."""
        return with_moments(self._load(folder, cache_folder(cache)))

    def _load(self, folder: str | Path | None, store: Path) -> Dataset:
        if folder is not None:
            made = self.parse(Path(folder).expanduser())
            if not self.fetched:
                self._write(made, store)
            return made
        arrays = read_cached(self.name, store)
        if arrays is not None and {"x", "y", "train_size", *self.saved} <= arrays.keys():
            numbers: dict[str, Any] = {name: int(arrays[name]) for name in ("train_size", *self.saved)}
            return dataset(arrays["x"], arrays["y"], **{"classes": self.classes, **numbers})
        if not self.fetched:
            raise ValueError(f"expected {self.name} on this machine, got nothing; {self.advice}")
        installed = self._installed()
        if installed is not None:
            made = self.parse(installed)
        else:
            with fetch_files(self.name, self.advice, self.builder, self.only) as files:
                made = self.parse(files)
        self._write(made, store)
        return made

    def status(self, cache: str | Path | None = None) -> str:
        """The place of the data, or how to get them; uses no network."""
        stored, installed = cache_folder(cache) / f"{self.name}.npz", self._installed()
        if stored.exists():
            return f"cached in {stored}"
        return f"not here: {self.advice}" if installed is None else f"in {installed}"

    def _installed(self) -> Path | None:
        """The folder of a package of the system that has the files."""
        paths = [Path(folder) for folder in self.folders]
        return next((path for path in paths if path.is_dir() and any(path.glob(self.pattern))), None)

    def _write(self, made: Dataset, store: Path) -> None:
        numbers = {name: np.asarray(getattr(made, name)) for name in ("train_size", *self.saved)}
        write_cached(self.name, store, {"x": made.x, "y": made.y, **numbers})


@contextmanager
def fetch_files(
    name: str, advice: str, builder: str | None = None, only: Collection[str] | None = None
) -> Iterator[Path]:
    """Downloads and checks files of a data set; yields a temporary folder with them by upstream's names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow_datasets as tfds

            infos: Any = tfds.builder(builder or name).url_infos
    except ImportError as error:
        raise ValueError(f"expected {name} on this machine, got nothing; {advice}") from error
    urls = {url.rsplit("/", 1)[-1]: url for url in infos}
    urls = {file: url for file, url in urls.items() if only is None or file in only}
    # Without this check an offline machine would spend minutes in retries.
    if not reachable(next(iter(urls.values()))):
        raise ValueError(f"expected {name} on this machine or a network to fetch it, got neither; {advice}")
    with tempfile.TemporaryDirectory() as folder:
        manager = tfds.download.DownloadManager(
            download_dir=folder, url_infos=infos, dataset_name=name, force_checksums_validation=True
        )
        try:
            files: Any = manager.download(urls)
        except Exception as error:  # errors of requests and TFDS, all handled alike
            raise ValueError(f"expected to fetch {name}, got {error!r}; {advice}") from error
        # Downloaded files have a hash of the address in their names: restore upstream's names.
        renamed = Path(folder) / "upstream"
        renamed.mkdir()
        for file, path in files.items():
            Path(path).rename(renamed / file)
        yield renamed


def reachable(url: str, seconds: float = 4.0) -> bool:
    """Whether a HEAD request for one file gets any answer, even a refusal."""
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answered.set()
        except urllib.error.HTTPError as refusal:
            refusal.close()
            answered.set()
        except (OSError, ValueError):
            return

    # Use a thread, since a DNS lookup has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def cache_folder(folder: str | Path | None = None) -> Path:
    """Returns ``folder`` if given, else ``$FLJAX_CACHE``, else ``fljax/data`` in the user's cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    if os.environ.get("FLJAX_CACHE"):
        return Path(os.environ["FLJAX_CACHE"]).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fljax" / "data"


def read_cached(name: str, folder: Path) -> dict[str, np.ndarray] | None:
    """Returns the arrays stored as ``name``; None if there are none, or, with a warning, if the file is damaged."""
    path = folder / f"{name}.npz"
    try:
        if not path.exists():
            return None
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != _digest_file(path).read_text(encoding="ascii").strip():
            raise ValueError("its SHA-256 differs from the one stored beside it")
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        warnings.warn(f"the cached file {path} is not used and will be rebuilt: {error}", stacklevel=2)
        return None


def write_cached(name: str, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Stores ``arrays`` as ``name``; warns if the folder cannot be written."""
    path = folder / f"{name}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        digest = _replace(path, lambda file: _save(file, **arrays))
        _replace(_digest_file(path), lambda file: file.write(digest.encode("ascii")))
    except OSError as error:
        warnings.warn(f"the data set {name} is not cached in {folder}: {error}", stacklevel=2)


def keep(source: Path, path: Path) -> None:
    """Copies a file to ``path`` atomically; warns if ``path`` cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as whole:
            _replace(path, lambda file: shutil.copyfileobj(whole, file))
    except OSError as error:
        warnings.warn(f"the file {source.name} is not cached in {path.parent}: {error}", stacklevel=2)


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".npz.sha256")


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> str:
    """Writes a temporary file in the same folder and renames it, so that no reader sees an incomplete file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w+b") as file:
            write(file)
            file.flush()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return digest
