"""What of a config can be checked although parts of it are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from fljax.config.keys import Config

# Valid values in place of required keys that are wrong; nothing is said of what depends on them.
_STAND_INS: Mapping[str, Any] = {
    "rounds": 1,
    "data": {"dataset": "-", "partition": "-", "clients": 1},
    "model": {"name": "-"},
    "local": {"learning_rate": 1.0, "batch_size": 1, "steps": 1},
    "algorithms": [{"name": "-"}],
}


def without_errors(
    raw: Mapping[str, Any], error: pydantic.ValidationError, broken: frozenset[str]
) -> tuple[Config | None, frozenset[str]]:
    """The rest of a config with errors, and its tables that are not those of the user.

    An algorithm, scenario or callback with an error is left out, and the others stay.

    Args:
      raw: the config.
      error: what pydantic says of it.
      broken: tables of which errors are known already.

    Returns:
      The config, or None if the rest cannot be checked alone; and the names of the replaced tables.
    """
    kept, wrong = dict(raw), set(broken)
    entries: dict[str, set[int]] = {}
    for key, *rest in (each["loc"] for each in error.errors() if each["loc"]):
        if rest and isinstance(rest[0], int):
            entries.setdefault(str(key), set()).add(rest[0])
        else:
            wrong.add(str(key))
    for key, places in entries.items():
        if key not in wrong:
            kept[key] = [each for place, each in enumerate(raw[key]) if place not in places]
            wrong |= set() if kept[key] else {key}
    for key in wrong:
        kept.pop(key, None)
    kept |= {key: value for key, value in _STAND_INS.items() if key in wrong}
    try:
        return Config.model_validate(kept), frozenset(wrong)
    except pydantic.ValidationError:
        return None, frozenset(wrong)
