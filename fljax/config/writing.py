"""Writes a config as TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w
from pydantic import BaseModel

from fljax.config.keys import Config, Named


def dumps(config: Config) -> str:
    """The config as TOML; ``load`` reads an equal config from this text."""
    return tomli_w.dumps(_plain(config))


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
