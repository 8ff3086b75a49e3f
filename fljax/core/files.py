"""Files that are written as wholes, arrays by name in NumPy's format, and locks of folders."""
# Other libraries give bytes. HDF5 crashes on a full disk, so ``results.nc`` is made in memory; it is also read from
# there, so HDF5's own locks are never used.

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import math
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np


def write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically, under a temporary name, flushed, renamed; an OSError of one sentence if that fails."""
    try:
        replace(path, content)
    except OSError as error:
        raise OSError(
            f"expected to write {path.name} ({len(content):,} bytes) in {str(path.parent)!r}, got: {error.strerror}; "
            "what was saved before is kept, --resume goes on after it"
        ) from error


def replace(path: pathlib.Path, content: bytes, mark: str = "") -> None:
    """Writes a file as ``write``, but with the system's own errors; a link in its place is replaced, not followed."""
    # ``mark`` ends the temporary name, where two processes may write the file.
    if path.exists() and not path.is_file():  # a device, which a file must not replace
        raise OSError(errno.EINVAL, "no regular file")
    fresh = path.with_name(f".{path.name}{mark}")
    try:
        fresh.unlink(missing_ok=True)  # what a process left that died, or a link to elsewhere
        with open(fresh, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    _flush_folder(path.parent)


def check_links(folder: pathlib.Path, names: Sequence[str]) -> None:
    """Raises a ValueError if something of these names in a folder, or inside, is a link, or any file a device."""
    # A link would be read, or written through, in place of a file; a pipe may never end. The folder may be a link.
    for top in folder.glob("*"):
        own = top.name in names
        inside = (os.path.join(where, each) for where, *found in os.walk(top) for each in (*found[0], *found[1]))
        for path in map(pathlib.Path, itertools.chain([top], inside if own else ())):
            if own and path.is_symlink():
                raise ValueError(f"expected the folder of a run to have no links, got the link {str(path)!r}")
            if path.is_fifo() or path.is_socket() or path.is_char_device() or path.is_block_device():
                raise ValueError(
                    f"expected files in the folder of a run, got a pipe, a socket or a device: {str(path)!r}"
                )


def open_appending(path: pathlib.Path) -> IO[bytes]:
    """A file that grows by lines; a link in its place is an OSError."""
    return open(path, "ab+", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666))


def _flush_folder(path: pathlib.Path) -> None:
    """Flushes a folder, so that a renamed file survives a power failure; ignored if the system cannot."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> None:
    """Writes arrays by name, atomically (``write``); they are not pickled."""
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and the dtype of an array of ``numpy.save``, whose numbers come next in the file."""
    named = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if (version := np.lib.format.read_magic(file)) not in named:
        raise ValueError(f"version {version} of numpy's format")
    shape, _, dtype = named[version](file)
    return shape, dtype


def check_unpacked(path: pathlib.Path) -> None:
    """Raises a ValueError if arrays of an ``.npz`` say more bytes than it has, or all need more than the memory."""
    total = 0
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            total += entry.file_size
            with file.open(entry) as opened, contextlib.suppress(ValueError):  # of another kind: NumPy will tell
                shape, dtype = npy_header(opened)
                needed = math.prod(shape) * dtype.itemsize
                if dtype.kind != "O" and needed > entry.file_size:
                    raise OSError(f"expected {needed:,} bytes of {entry.filename}, got {entry.file_size:,}")
    check_memory(total)


def check_memory(size: int) -> None:
    """Raises an OSError if so many bytes are more than this machine's memory."""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if size > memory:
            raise OSError(f"expected content that fits into the memory ({memory:,} bytes), got {size:,} bytes unpacked")


def read_npz(path: pathlib.Path, what: str, prefixes: tuple[str, ...] = ("",)) -> dict[str, np.ndarray]:
    """The arrays of a file whose names begin with one of ``prefixes``; nothing is unpickled. Errors say ``what``."""
    try:
        check_unpacked(path)
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files if name.startswith(prefixes)}
    except OSError as error:
        raise ValueError(f"expected {what} in {str(path)!r}, got none: {error.strerror or error}") from None
    # Their words are NumPy's own advice, or those of a zip file that looks encrypted or of another kind.
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        raise ValueError(f"expected whole {what} in {str(path)!r}, got a damaged file") from None


def part_of(arrays: Mapping[str, np.ndarray], start: str) -> dict[str, Any]:
    """The arrays whose names begin with ``start``, by the rest of their names."""
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk


@contextlib.contextmanager
def locked(path: pathlib.Path, patience: float = 0.2) -> Iterator[None]:
    """Makes the folder of a lock if there is none, and holds the lock; a ValueError if another process does."""
    # ``patience`` in seconds is for those who watch a run, and take the lock for an instant.
    import filelock  # imported here, since simulate needs few packages

    lock, folder = filelock.FileLock(path), str(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience, poll_interval=0.02)
    except filelock.Timeout:
        raise ValueError(
            f"expected a folder that no other process writes to, got {folder!r}, in which another run goes on"
        ) from None
    except NotImplementedError:
        raise ValueError(f"expected a file system that can lock files, got that of {folder!r}") from None
    except OSError as error:
        kind = OSError if error.errno in FULL else ValueError
        raise kind(f"expected a folder to write in, got {folder!r} ({error.strerror})") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(path: pathlib.Path) -> bool:
    """Whether a process holds a lock. The lock is taken for an instant, for which ``locked`` waits."""
    import filelock  # imported here, since simulate needs few packages

    if not path.is_file():
        return False
    try:
        with filelock.FileLock(path).acquire(blocking=False):
            return False
    except filelock.Timeout:
        return True
    except (OSError, NotImplementedError):  # not ours to lock, as in an archive
        return False
