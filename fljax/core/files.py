"""Files that are written as wholes.

Other libraries give bytes, which are written here. ``results.nc``, for example, is made in memory, because HDF5 crashes
on a full disk. It is also read from memory, so HDF5's own locks are never used.
"""

from __future__ import annotations

import contextlib
import os
import pathlib


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
