"""Checks that several modules of fljax.data share: of arguments, of paths of a user's own files, of mapped files.

A mapped file that has become shorter ends the process that reads behind its end, and one that was written to has other
numbers: each block of rows is read after a comparison. A change between the comparison and the read remains unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fljax.core.names import shown, unknown
from fljax.core.values import as_number
from fljax.protocol.data import mapped_file


def existing_file(path: str | Path) -> Path:
    """The path with ``~`` replaced."""
    place = with_home(path)
    if not is_file(place):
        got = "a folder" if is_folder(place) else "nothing there"
        raise ValueError(f"expected the path of a file, got {shown(str(path))} ({got})")
    return place


def with_home(path: str | Path) -> Path:
    """The path with ``~`` replaced, if it means somebody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_folder(place: Path) -> bool:
    """Whether there is such a folder; False for names that no system has, too."""
    try:
        return place.is_dir()
    except (OSError, ValueError):
        return False


def is_file(place: Path) -> bool:
    """Whether there is such a file; False for names that no system has, too."""
    try:
        return place.is_file()
    except (OSError, ValueError):
        return False


def is_hidden(below: Path) -> bool:
    """Whether a path below a user's folder is hidden, or of the folder that macOS adds to archives."""
    return any(name.startswith(".") or name == "__MACOSX" for name in below.parts)


def choose(kind: str, name: str, registry: Mapping[str, Any]) -> Any:
    """Returns ``registry[name]``."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    raise ValueError(unknown(kind, str(name), registry))


def check_keywords(kind: str, name: str, options: Iterable[str], valid: Iterable[str]) -> None:
    """Raises a ValueError for the first of ``options`` that is not ``valid`` for this ``kind``."""
    valid = sorted(valid)
    for option in options:
        if option not in valid:
            advice = advice_on_clients(option, name) if kind == "dataset" else ""
            raise ValueError(f"{unknown('parameter', option, valid)} for the {kind} {name}{advice}")


def advice_on_clients(option: str, name: str) -> str:
    """The end of the sentence for ``client``, an option of single files, where the data set is a folder."""
    if option != "client" or not is_folder(Path(name)):
        return ""
    return "; the files of this folder say themselves whose rows they have, so leave client out"


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Returns ``value`` as an int of at least ``least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ValueError(f"expected {name} to be a whole number of at least {least}, got {value!r}")
    return value.__index__()


def check_positive(name: str, value: Any) -> float:
    """Returns ``value`` as a finite float above 0, or raises a ValueError."""
    number = as_number(value)
    if number is None or not 0 < number < float("inf"):
        raise ValueError(f"expected {name} to be a finite number above 0, got {value!r}")
    return number


def check_fraction(name: str, value: Any, *, zero: bool = True) -> float:
    """Returns ``value`` as a float in [0, 1), or in the open interval if ``zero`` is False, or raises a ValueError."""
    low = "[0, 1)" if zero else "(0, 1)"
    number = as_number(value)
    if number is None or not 0 <= number < 1 or (number == 0 and not zero):
        raise ValueError(f"expected {name} to be a fraction in {low}, got {value!r}")
    return number


# Bytes that are read after one comparison.
_PART = 2**26
# The attribute of the mapped array that NumPy opened, which all its views refer to.
_STAMP = "fljax_stamp"


class Stamp(NamedTuple):
    """Size, time of change and inode of a file: they tell a changed file from an unchanged one without reading it."""

    size: int
    changed: int  # in nanoseconds
    inode: int  # a file that takes the place of another one has another inode

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """The stamp of a file now."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def check_unchanged(*arrays: Any) -> None:
    """Compares the files of mapped arrays, also of views, with what they were when this was first called."""
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


def checked_parts(array: Any) -> Iterator[Any]:
    """The rows of an array in order, all at once unless it is a mapped file, which is compared before each part."""
    if mapped_file(array) is None or not array.size:
        yield array
        return
    rows = max(1, _PART * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        check_unchanged(array)
        yield array[first : first + rows]
