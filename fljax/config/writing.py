"""Writes a config as TOML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fljax.config.keys import Config, Named


def dumps(config: Config) -> str:
    """The config as TOML; ``load`` reads an equal config from this text."""
    return toml_text(_plain(config))


def _plain(value: Any) -> Any:
    """Converts tables to dictionaries, puts options beside the table's own keys, and omits None."""
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        options = fields.pop("options") if isinstance(value, Named) else {}
        plain = {key: _plain(each) for key, each in fields.items()}
        # An empty table is the default, except where None is.
        kinds = type(value).model_fields
        own = {key: each for key, each in plain.items() if each != {} or kinds[key].default is None}
        return {key: each for key, each in {**own, **_plain(options)}.items() if each is not None}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def toml_text(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Nested dictionaries as TOML; ``path`` is that of ``table``."""
    lines, tables = [], []
    for key, value in table.items():
        nested = (*path, key)
        header = ".".join(_toml_key(each) for each in nested)
        if isinstance(value, Mapping):
            tables.append(f"\n[{header}]\n{toml_text(value, nested)}")
        elif not path and value and isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
            tables.extend(f"\n[[{header}]]\n{toml_text(each, nested)}" for each in value)
        else:
            lines.append(f"{_toml_key(key)} = {_toml_value(value)}\n")
    return "".join([*lines, *tables])


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # TOML's basic strings are JSON strings, except that TOML also escapes DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    return value.isoformat()  # dates and times are the only remaining types of TOML
