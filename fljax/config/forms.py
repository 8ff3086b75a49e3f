"""The forms of values in a config: checks, and types that carry them, for the tables of ``keys``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fljax.config.limits import (
    LARGEST_INTEGER,
    LARGEST_SEED,
    LONGEST_LABEL,
    MOST_CELLS,
    MOST_CLIENTS,
    MOST_SEEDS,
    is_date,
    label,
    printable,
)
from fljax.core.names import shown


def _seeds(value: Any) -> Any:
    many = f"expected at most {MOST_SEEDS} seeds, got"
    if type(value) is int and value > MOST_SEEDS:
        raise ValueError(f"{many} {value}")
    if type(value) is int and value > 0:
        return tuple(range(value))
    if isinstance(value, list | tuple) and len(value) > 0:
        if len(value) > MOST_SEEDS:
            raise ValueError(f"{many} {len(value)}")
        whole = all(type(seed) is int and seed >= 0 for seed in value)
        if whole and max(value) > LARGEST_SEED:
            raise ValueError(f"expected seeds of at most {LARGEST_SEED} (32 bits), got {max(value)}")
        if whole and len(set(value)) == len(value):
            return tuple(value)
    raise ValueError(f"expected a positive number of seeds or a list of different integers >= 0, got {shown(value)}")


def unseen_clients(value: Any) -> Any:
    if type(value) is int:
        if 0 <= value <= MOST_CLIENTS:
            return value
        limit = "at least 0" if value < 0 else f"at most {MOST_CLIENTS}"
        raise ValueError(f"expected a number of {limit}, got {value}")
    if value == "test":
        return value
    if isinstance(value, list | tuple):
        named = [each for each in value if isinstance(each, str | int) and not isinstance(each, bool)]
        if named and len(named) == len(value) and len(set(map(str, named))) == len(named):
            return tuple(map(printable, named))
    if isinstance(value, str):
        raise ValueError(
            f"expected a number, a list of clients such as [{shown(value)}], or 'test', got {shown(value)}"
        )
    raise ValueError(f"expected a number, a list of different clients by name, or 'test', got {shown(value)}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= LARGEST_INTEGER


def _strategy(value: Any) -> Any:
    if value in ("auto", "vmap", "scan") or _is_count(value):
        return value
    raise ValueError(f"expected 'auto', 'vmap', 'scan' or a positive chunk size, got {shown(value)}")


def _client_strategy(value: Any) -> Any:
    if value in ("trial", "debug"):
        return value
    try:
        return _strategy(value)
    except ValueError as error:
        raise ValueError(str(error).replace("'auto', ", "'auto', 'trial', 'debug', ")) from None


def _devices(value: Any) -> Any:
    if value == "all" or _is_count(value):
        return value
    raise ValueError(f"expected 'all' or a positive number of devices, got {shown(value)}")


def ceiling_of(value: Any) -> Any:
    if value == "max" or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf):
        return value
    raise ValueError(f"expected 'max' or a positive number, got {shown(value)}")


def _name(value: Any) -> Any:
    # Folders have this name, and file systems limit its length in bytes.
    if isinstance(value, str) and re.fullmatch(r"\w[\w.-]*", value) and len(value.encode()) <= LONGEST_LABEL:
        return value
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) > LONGEST_LABEL:
        raise ValueError(f"expected a name of at most {LONGEST_LABEL} bytes, got {shown(value)}")
    raise ValueError(f"expected a name of letters, digits, '.', '_' and '-', got {shown(value)}")


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def number_or_numbers(value: Any) -> Any:
    """A finite number, or a list of them as a tuple."""
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each):
            raise ValueError(f"expected a finite number or a list of them, got {shown(value)}")
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)


def _late_clients(value: Any) -> Any:
    ids = as_tuple(value)
    if isinstance(ids, tuple) and len({each for each in ids if type(each) is int and each >= 0}) == len(ids):
        return ids
    if type(value) in (int, float) and 0 <= value < 1:
        return float(value)
    raise ValueError(f"expected a share from 0 to below 1, or a list of different ids of clients, got {shown(value)}")


def different_values(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) > MOST_CELLS:
        raise ValueError(f"expected at most {MOST_CELLS} values, got {len(value)}")
    if isinstance(value, list | tuple) and value:
        for each in value:
            printable(each)
            if is_date(each):
                raise ValueError(f"expected values other than dates and times, got {shown(each)}")
        different = [each for place, each in enumerate(value) if each not in value[:place]]
        if len(different) == len(value):
            return tuple(value)
    raise ValueError(f"expected a list of different values, got {shown(value)}")


# A description is the form in words, for the reference, where a validator takes more than the type says.
Seeds = Annotated[
    tuple[int, ...],
    BeforeValidator(_seeds),
    Field(description="integer above 0 or list of different integers from 0"),
]
UnseenClients = Annotated[int | tuple[str | int, ...] | Literal["test"], BeforeValidator(unseen_clients)]
LateClients = Annotated[
    float | tuple[int, ...],
    BeforeValidator(_late_clients),
    Field(description="number from 0 to below 1 or list of different integers from 0"),
]
Name = Annotated[str, BeforeValidator(_name)]
Label = Annotated[str, BeforeValidator(label)]
Printable = Annotated[str, BeforeValidator(printable)]
Count = Annotated[int, Field(gt=0, le=LARGEST_INTEGER)]
Strategy = Annotated[Literal["auto", "vmap", "scan"] | Count, BeforeValidator(_strategy)]
ClientStrategy = Annotated[Literal["auto", "trial", "vmap", "scan", "debug"] | Count, BeforeValidator(_client_strategy)]
Devices = Annotated[Literal["all"] | Count, BeforeValidator(_devices)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NumberOrNumbers = Annotated[float | tuple[float, ...], BeforeValidator(number_or_numbers)]


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
