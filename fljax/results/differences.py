"""Differences between two written configs.

``save_models`` changes no result, so configs that differ in it are equal for resuming.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

# Keys that change no result.
WITHOUT_EFFECT = ("save_models",)
# Keys with places of files; what is in the files is compared elsewhere.
_OF_THE_MACHINE = ("data.dataset", "data.folder", "model.initial", "requirement.file")
LONGEST = 60  # number of characters of a value to show


def difference(there: str, here: str) -> str | None:
    """A phrase about the first key in which two configs differ.

    Args:
      there: the config of earlier results, as TOML.
      here: the current config, as TOML. Keys that change no result are not compared.

    Returns:
      For instance "rounds is 6 there and 4 here, and 1 more key differs"; None if all values are equal.
    """
    changed = differences(there, here)
    if not changed:
        return None
    (key, (first, second)), more = next(iter(changed.items())), len(changed) - 1
    phrase = f"{key} is {first} there and {second} here"
    others = f", and {more} more keys differ" if more > 1 else ", and 1 more key differs"
    return phrase + (others if more else "")


def differences(there: str, here: str, without: Sequence[str] = WITHOUT_EFFECT) -> dict[str, tuple[str, str]]:
    """The two values of every key in which two configs differ, as short texts, by the key's path.

    Args:
      there: a config as TOML.
      here: another.
      without: keys that are not compared.
    """
    first, second = _flat(tomllib.loads(there)), _flat(tomllib.loads(here))
    keys = [key for key in {**first, **second} if key not in without and first.get(key) != second.get(key)]
    return {key: (_shown(first.get(key)), _shown(second.get(key))) for key in keys}


def flat(text: str) -> dict[str, str]:
    """Every value of a config as text, by its dotted path; without places of files, which may differ by machine, and
    without keys that change no result."""
    found = _flat(tomllib.loads(text))
    without = (*WITHOUT_EFFECT, *_OF_THE_MACHINE)
    return {key: value for key, value in found.items() if key not in without and not _is_path(value)}


def _is_path(text: str) -> bool:
    return text.startswith(("'", '"')) and ("/" in text or "\\\\" in text)


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Every value as text, by its dotted path; as text, NaN equals NaN and 1 differs from True."""
    if isinstance(value, Mapping) and value:
        pairs = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        # Paths of algorithms and scenarios have a position and a name, since their order matters.
        names = [str(each.get("label", each.get("name", ""))) for each in value]
        pairs = [
            (f"{place}.{name}" if name else str(place), each)
            for place, (name, each) in enumerate(zip(names, value, strict=True))
        ]
    else:
        return {path: repr(value)}
    return {name: text for key, each in pairs for name, text in _flat(each, f"{path}.{key}" if path else key).items()}


def _shown(text: str | None) -> str:
    if text is None:
        return "not set"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
