"""Files that are written as wholes, and arrays by name in NumPy's format.

Other libraries give bytes, which are written here. ``results.nc``, for example, is made in memory, because HDF5 crashes
on a full disk. It is also read from memory, so HDF5's own locks are never used.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np


def write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically: under a temporary name, flushed to the disk, then renamed.

    Raises:
      OSError: one sentence, if the file cannot be written. An existing file is unchanged.
    """
    fresh = path.with_name(f".{path.name}")
    try:
        with open(fresh, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise OSError(
            f"expected to write {path.name} ({len(content):,} bytes) in {str(path.parent)!r}, got: {error.strerror}; "
            "what was saved before is kept, --resume goes on after it"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _flush_folder(path: pathlib.Path) -> None:
    """Flushes a folder, so that a renamed file survives a power failure; ignored if the system cannot."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> None:
    """Writes arrays by name, atomically; they are not pickled.

    Raises:
      OSError: as ``write``.
    """
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def read_npz(path: pathlib.Path, what: str, prefixes: tuple[str, ...] = ("",)) -> dict[str, np.ndarray]:
    """The arrays of a file by name; nothing is unpickled.

    Args:
      path: the file.
      what: is in the file, for the sentences of errors: "models".
      prefixes: arrays whose names begin otherwise are not read.

    Raises:
      ValueError: if the file cannot be read, or is damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files if name.startswith(prefixes)}
    except OSError as error:
        raise ValueError(f"expected {what} in {str(path)!r}, got none: {error.strerror or error}") from None
    # Their words are NumPy's own advice, or those of a zip file that looks encrypted or of another kind.
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        raise ValueError(f"expected whole {what} in {str(path)!r}, got a damaged file") from None
