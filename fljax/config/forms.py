"""The values that a config may have: limits on all of them, types that check one each, and the base of its tables.

Limits are checked before any array is made, and a comment gives the reason of each.
"""

from __future__ import annotations

import datetime
import math
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from fljax.core.names import shown
from fljax.core.plain import has_control

# JAX indexes arrays with 32-bit integers.
LARGEST_INTEGER = 2**31 - 1
# A random key holds the round in 27 bits, above five bits of purpose, and the client's id in 24
# (fljax.engine.rounds.states).
MOST_ROUNDS = 2**27 - 1
MOST_CLIENTS = 2**24
# Keys are made of 32-bit seeds; larger seeds would repeat the random numbers of smaller seeds.
LARGEST_SEED = 2**32 - 1
# Every seed has its own federation and models on the device.
MOST_SEEDS = 2**16
# Every cell of a sweep is parsed and checked, and its results are kept.
MOST_CELLS = 10_000
# TOML's integers have 64 bits.
INTEGERS = range(-(2**63), 2**63)
# The limit for algorithms in a comparison and for scenarios around an algorithm; scenarios are nested calls.
MOST_ENTRIES = 200
# In bytes; tomllib needs some seconds for a file of this size.
LARGEST_FILE = 2**22
DEEPEST_TABLE = 32
MOST_BASES = 16
LONGEST_LABEL = 100


def label(value: Any) -> Any:
    """Checks a label for tables and pictures and returns it; pydantic checks values other than text."""
    if isinstance(value, str) and (not value.strip() or len(value) > LONGEST_LABEL or has_control(value)):
        raise ValueError(
            f"expected a label of 1 to {LONGEST_LABEL} characters without control characters, got {shown(value)}"
        )
    return value


def printable(value: Any) -> Any:
    """Checks a text for control characters and returns it; pydantic checks values other than text."""
    if isinstance(value, str) and has_control(value):
        raise ValueError(f"expected text without control characters, got {shown(value)}")
    return value


def check_values(raw: Mapping[str, Any]) -> None:
    """Checks every value of nested tables and lists, independent of its key."""
    # A stack instead of recursion, since tables may be deeper than Python's own stack.
    left: list[tuple[tuple[str, ...], Any]] = [((), raw)]
    while left:
        path, value = left.pop()
        if isinstance(value, Mapping | list | tuple):
            if len(path) >= DEEPEST_TABLE:
                top = ".".join(path[:1])
                raise ValueError(f"{top}: expected tables and lists at most {DEEPEST_TABLE} deep, got deeper ones")
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in pairs:
                _check_text(path, key)
                left.append(((*path, str(key)), inner))
        elif isinstance(value, int) and value not in INTEGERS:
            raise ValueError(f"{'.'.join(path)}: expected an integer of at most 64 bits, got {shown(value)}")
        elif isinstance(value, float) and value != value:
            raise ValueError(f"{'.'.join(path)}: expected a number, got nan")
        else:
            _check_text(path, value)


def _check_text(path: tuple[str, ...], value: Any) -> None:
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        where = f"{'.'.join(path)}: " if path else ""
        raise ValueError(f"{where}expected text without NUL and surrogates, got {shown(value)}")


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
        named = [client for client in value if isinstance(client, str | int) and not isinstance(client, bool)]
        if named and len(named) == len(value) and len(set(map(str, named))) == len(named):
            return tuple(map(printable, named))
    if isinstance(value, str):
        raise ValueError(
            f"expected a number, a list of clients such as [{shown(value)}], or 'test', got {shown(value)}"
        )
    raise ValueError(f"expected a number, a list of different clients by name, or 'test', got {shown(value)}")


def _names_or_count(*names: str, count: str) -> BeforeValidator:
    """Checks that a value is one of some names or a positive whole number, whose meaning ``count`` says."""

    def check(value: Any) -> Any:
        if value in names or (type(value) is int and 0 < value <= LARGEST_INTEGER):
            return value
        raise ValueError(f"expected {', '.join(map(repr, names))} or {count}, got {shown(value)}")

    return BeforeValidator(check)


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


def name_of_file(path: str | os.PathLike[str]) -> str:
    """The default name of a config in a file, of its letters, digits, '.', '_' and '-': ``my-run`` of "my run.toml"."""
    plain = re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFC", pathlib.Path(path).stem))
    short = plain.encode("utf-8", "replace")[:LONGEST_LABEL].decode("utf-8", "ignore")
    return short.lstrip(".-") or "experiment"


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def number_or_numbers(value: Any) -> Any:
    """A finite number, or a list of them as a tuple."""
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"expected a finite number or a list of them, got {shown(value)}")
    return tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)


def _late_clients(value: Any) -> Any:
    ids = as_tuple(value)
    if isinstance(ids, tuple) and len({client for client in ids if type(client) is int and client >= 0}) == len(ids):
        return ids
    if type(value) in (int, float) and 0 <= value < 1:
        return float(value)
    raise ValueError(f"expected a share from 0 to below 1, or a list of different ids of clients, got {shown(value)}")


def different_values(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) > MOST_CELLS:
        raise ValueError(f"expected at most {MOST_CELLS} values, got {len(value)}")
    if isinstance(value, list | tuple) and value:
        for entry in value:
            printable(entry)
            if isinstance(entry, datetime.date | datetime.time):
                raise ValueError(f"expected values other than dates and times, got {shown(entry)}")
        different = [entry for place, entry in enumerate(value) if entry not in value[:place]]
        if len(different) == len(value):
            return tuple(value)
    raise ValueError(f"expected a list of different values, got {shown(value)}")


# A description is the form in words, for the reference, where a validator takes more than the type says.
Seeds = Annotated[
    tuple[int, ...], BeforeValidator(_seeds), Field(description="integer above 0 or list of different integers from 0")
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
Strategy = Annotated[
    Literal["auto", "vmap", "scan"] | Count, _names_or_count("auto", "vmap", "scan", count="a positive chunk size")
]
ClientStrategy = Annotated[
    Literal["auto", "trial", "vmap", "scan", "debug"] | Count,
    _names_or_count("auto", "trial", "debug", "vmap", "scan", count="a positive chunk size"),
]
Devices = Annotated[Literal["all"] | Count, _names_or_count("all", count="a positive number of devices")]
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
        fields = {key: value for key, value in raw.items() if key in cls.model_fields and key != "options"}
        extra = {key: value for key, value in raw.items() if key not in cls.model_fields}
        options = raw.get("options", {})
        return {**fields, "options": {**options, **extra} if isinstance(options, Mapping) else options}


class Call(NamedTuple):
    """A builder that a config names, and its arguments; ``fljax.experiments.inputs.setup`` calls it."""

    build: Callable[..., Any]
    arguments: Mapping[str, Any]


class Resolved(NamedTuple):
    """The builders and arguments (``Call``) of all names of a config; ``fljax.experiments.inputs.setup`` calls them."""

    dataset: Call | None  # None for the config of a finished run, whose data need not be there
    partition: Call
    model: Call
    algorithms: tuple[Call, ...]  # one for each entry
    scenarios: tuple[tuple[Call, ...], ...]  # around each algorithm, the innermost first; its own, then all's
    callbacks: tuple[Call, ...]  # one for each entry
    requirement: Mapping[str, Any] | None  # arguments of ``fljax.Requirement``
    scores: tuple[Any, ...] = ()  # Any: a config's keys are read without NumPy


AResolvable = TypeVar("AResolvable", bound="Resolvable")  # typing.Self cannot be checked at run time


class Resolvable(Table):
    """A table that remembers what its names mean; this counts in no comparison, and a copy with changes has none."""

    _resolved: Resolved | None = PrivateAttr(None)

    @property
    def resolved(self) -> Resolved | None:
        """The ``Resolved`` names; None until ``fljax.config.name_resolution`` looks them up."""
        return self._resolved

    def remember(self, resolved: Resolved) -> None:
        """Stores the ``Resolved`` names in the config, whose values stay as they are; ``resolved_of`` calls it."""
        self._resolved = resolved

    def with_resolved(self: AResolvable, resolved: Resolved, changes: Mapping[str, Any]) -> AResolvable:
        """A copy with some keys changed that remembers ``resolved``."""
        copy = self.model_copy(update=changes)
        copy._resolved = resolved
        return copy

    def model_copy(self: AResolvable, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> AResolvable:
        copy = super().model_copy(update=update, deep=deep)
        if update:
            copy._resolved = None
        return copy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resolvable) and type(other) is type(self) and dict(other) == dict(self)
