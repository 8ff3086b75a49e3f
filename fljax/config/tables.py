"""What all tables of a config have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from fljax.config.forms import Printable


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Named(Table):
    """A name and the options of its builder, in one TOML table."""

    name: Printable
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        own = {key: value for key, value in raw.items() if key in cls.model_fields and key != "options"}
        extra = {key: value for key, value in raw.items() if key not in cls.model_fields}
        options = raw.get("options", {})
        return {**own, "options": {**options, **extra} if isinstance(options, Mapping) else options}
