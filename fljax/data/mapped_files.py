"""Files that are mapped to memory: whether they have changed since they were mapped.

The rows of such a file are read while a run goes on. If the file has become shorter, the operating system ends the
process that reads behind its end; if it was written to, the run would go on with other numbers. So its size, inode and
time of change are compared before each block of rows. A change between a comparison and the read remains unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from fljax.protocol.data import mapped_file

# Bytes that are read after one comparison.
_PART = 2**26
# The attribute of the mapped array that NumPy opened, which all its views refer to.
_STAMP = "fljax_stamp"


class Stamp(NamedTuple):
    """What tells one content of a file from another without reading it.

    Attributes:
      size: in bytes.
      changed: the time of the last change, in nanoseconds.
      inode: which file it is; a file that takes the place of another one has another inode.
    """

    size: int
    changed: int
    inode: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """The stamp of a file now.

        Raises:
          OSError: if it cannot be looked at.
        """
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def check_unchanged(*arrays: Any) -> None:
    """Compares the files of mapped arrays with what they were when this was first called for them.

    ``np.load(..., mmap_mode="r")`` and ``np.memmap`` map files; views of such arrays belong to the same file. Other
    arrays, and mapped files without a name, are not looked at.

    Args:
      arrays: arrays of any kind.

    Raises:
      ValueError: if a file has changed, or is gone.
    """
    for array in arrays:
        file = mapped_file(array)
        if file is None or file.filename is None:
            continue
        before: Stamp | None = getattr(file, _STAMP, None)
        if before is None:
            file.flush()  # what the caller wrote to the array does not count as a change
        try:
            now = Stamp.of(file.filename)
        except OSError as error:
            raise ValueError(_words(file.filename, f"none ({error.strerror})")) from None
        if before is None:
            setattr(file, _STAMP, now)
        elif now.size != before.size:
            raise ValueError(_words(file.filename, f"one of {now.size} bytes in place of {before.size}"))
        elif now.inode != before.inode:
            raise ValueError(_words(file.filename, "another file in its place"))
        elif now != before:
            raise ValueError(_words(file.filename, "one that was written to"))


def _words(path: str | os.PathLike[str], got: str) -> str:
    return (
        f"expected the mapped file {os.fspath(path)!r} as it was when it was loaded, got {got}; restore it and load "
        "the data again (a run with checkpoints goes on where the newest one is)"
    )


def parts(array: Any) -> Iterator[Any]:
    """The rows of an array in order, all at once unless it is a mapped file, which is compared before each part.

    Raises:
      ValueError: if the file has changed.
    """
    if mapped_file(array) is None or not array.size:
        yield array
        return
    rows = max(1, _PART * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        check_unchanged(array)
        yield array[first : first + rows]
