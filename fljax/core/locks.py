"""The lock of a folder, to which one process at a time writes."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from collections.abc import Iterator

import filelock

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk


@contextlib.contextmanager
def locked(path: pathlib.Path, patience: float = 0.2) -> Iterator[None]:
    """Makes the folder of a lock if there is none, and holds the lock.

    Args:
      path: the file of the lock.
      patience: seconds to wait for the lock; the default is for those who watch a run, and take it for an instant.

    Raises:
      ValueError: if another process holds the lock, or the folder cannot be written or locked.
      OSError: if the disk has no room.
    """
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
    if not path.is_file():
        return False
    try:
        with filelock.FileLock(path).acquire(blocking=False):
            return False
    except filelock.Timeout:
        return True
    except (OSError, NotImplementedError):  # not ours to lock, as in an archive
        return False
