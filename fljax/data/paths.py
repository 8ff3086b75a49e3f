"""Paths of a user's own files."""

from __future__ import annotations

from pathlib import Path

from fljax.core.names import shown


def existing_file(path: str | Path) -> Path:
    """The path with ``~`` replaced.

    Raises:
      ValueError: if there is no such file.
    """
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
    return any(each.startswith(".") or each == "__MACOSX" for each in below.parts)
