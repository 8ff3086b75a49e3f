"""The configs that come with fljax, by name: ``quickstart``, ``incfl/table1_fmnist`` and so on.

A wheel has them in the package; a checkout, and so an editable install, has them in the folder ``configs`` beside it.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from fljax.core.names import nearest

_PACKAGE = pathlib.Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def configs() -> dict[str, pathlib.Path]:
    """The files of all shipped configs by name, sorted."""
    folder = next((each for each in _FOLDERS if (each / "quickstart.toml").is_file()), None)
    if folder is None:
        return {}
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def find(config: str | pathlib.Path) -> pathlib.Path:
    """The file of a config: the given path if there is such a file, else the shipped config of this name.

    Args:
      config: a path, or a name with or without ``.toml``.

    Returns:
      The path; the given one if neither exists, so that reading it says what is missing.
    """
    path = pathlib.Path(config)
    try:
        if path.exists() and not path.is_dir():
            return path
    except (OSError, ValueError):  # a path that no file can have
        return path
    return configs().get(path.as_posix().removesuffix(".toml"), path)


def suggestion(config: str | pathlib.Path) -> str:
    """A question that names the shipped config with the most similar name; "" if none is similar."""
    close = nearest(pathlib.Path(config).as_posix().removesuffix(".toml"), configs())
    return "" if close is None else f" (did you mean the shipped config {close!r}?)"


def about(path: pathlib.Path) -> str:
    """What a config says of itself: the comment at its top, in one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("#").strip() for line in lines[:top])


def names_in(path: pathlib.Path) -> dict[str, set[str]]:
    """The names that a config uses, with those of its bases, by the kind of what they name.

    Raises:
      ConfigError: if the file cannot be read.
    """
    from fljax.config.reading import read  # which finds configs by the functions above

    raw = read(path)
    entries = _tables(raw.get("algorithms"))
    scenarios = [
        *_tables(raw.get("scenarios")),
        *(each for entry in entries for each in _tables(entry.get("scenarios"))),
    ]
    data = raw.get("data", {})
    return {
        "algorithms": _named(entries),
        "scenarios": _named(scenarios),
        "datasets": {str(data.get("dataset"))},
        "partitions": {str(data.get("partition"))},
        "models": _named([raw.get("model", {})]),
        "callbacks": _named(_tables(raw.get("callbacks"))),
        "contributions": _named([_table(entry["contribution"]) for entry in entries if "contribution" in entry]),
        "metrics": {str(raw[key]["metric"]) for key in ("stop", "sweep") if "metric" in raw.get(key, {})},
        "tables": set(raw.get("published", {}).get("tables", ())),
    }


@functools.cache  # the files are those of the package
def uses() -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
    """The configs that use a name, by kind and name; each with its published tables."""
    found: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for config, path in configs().items():
        used = names_in(path)
        for kind, names in used.items():
            for name in names:
                found.setdefault(kind, {}).setdefault(name, {})[config] = tuple(sorted(used["tables"]))
    return found


def _tables(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _table(value: Any) -> Mapping[str, Any]:
    """A value that may be a name or a table with one."""
    return value if isinstance(value, Mapping) else {"name": value}


def _named(tables: list[Mapping[str, Any]]) -> set[str]:
    return {str(each["name"]) for each in tables if isinstance(each.get("name"), str)}
