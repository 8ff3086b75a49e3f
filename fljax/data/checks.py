"""Checks of arguments that several modules of fljax.data share, and of paths of a user's own files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fljax.core.names import shown, unknown
from fljax.core.values import as_number


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
    return any(name.startswith(".") or name == "__MACOSX" for name in below.parts)


def choose(kind: str, name: str, registry: Mapping[str, Any]) -> Any:
    """Returns ``registry[name]``.

    Raises:
      ValueError: if ``name`` is unknown; the message lists the valid names and the nearest one.
    """
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
    """Returns ``value`` as an int of at least ``least``.

    Raises:
      ValueError: if ``value`` is not a whole number, or too small.
    """
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
