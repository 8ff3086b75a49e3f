"""Which shipped configs use a name."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from fljax.config.reading import read
from fljax.config.shipped import configs


def names_in(path: pathlib.Path) -> dict[str, set[str]]:
    """The names that a config uses, with those of its bases, by the kind of what they name.

    Raises:
      ConfigError: if the file cannot be read.
    """
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
