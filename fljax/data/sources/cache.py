"""A cache of parsed data sets: a folder of .npz files, each with a file that holds its SHA-256.

If one archive serves several data sets or options, the archive itself is cached instead.

Cache errors do not stop a run: a file that cannot be read or written gives a warning, and the caller continues without
the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

# Typed loosely, since NumPy's stub treats every keyword as an option of savez.
_save: Callable[..., None] = np.savez


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
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _digest_file(path).read_text(encoding="ascii").strip():
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
