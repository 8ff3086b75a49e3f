"""Errors of a config, one sentence each: the key, the expected value, the value found."""

from __future__ import annotations

import contextlib
import re
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pydantic
from pydantic import BaseModel

from fljax.config.keys import Config
from fljax.core.names import nearest, shown, unknown

_Checked = TypeVar("_Checked")


class ConfigError(ValueError):
    """The errors of a config; the message has a line for each, which is one sentence."""

    def __init__(self, *errors: str) -> None:
        super().__init__(*errors)

    @property
    def errors(self) -> tuple[str, ...]:
        """The sentences."""
        return self.args

    def __str__(self) -> str:
        return "\n".join(self.args)


def tried(errors: list[ConfigError], check: Callable[..., _Checked], *arguments: Any) -> _Checked | None:
    """The result of ``check(*arguments)``; None if it raises a ConfigError, which is added to ``errors``."""
    try:
        return check(*arguments)
    except ConfigError as error:
        errors.append(error)
        return None


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raises all errors as one ConfigError, if there are any; a single one with its cause."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError(*dict.fromkeys(sentence for error in errors for sentence in error.errors))


@contextlib.contextmanager
def at(path: str) -> Iterator[None]:
    """Turns a ValueError inside into the ConfigError of a key, with the same cause."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__


# Keys whose default is made of another key beside them, so that an error there leaves them without one.
_DEFAULT_OF = {"evaluate_every": "rounds", "participation": "data", "label": "name"}


def sentences(error: pydantic.ValidationError, raw: Mapping[str, Any], known: Container[str] = ()) -> list[str]:
    """One sentence about each error, without errors that follow from another one; unknown keys come first."""
    errors = sorted(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    places = [entry["loc"] for entry in errors]
    strange = [entry["loc"] for entry in errors if entry["type"] == "extra_forbidden"]

    def follows(entry: Any) -> bool:
        *table, key = entry["loc"] or ("",)
        if key in _DEFAULT_OF and not _is_given(entry["loc"], raw):
            beside = (*table, _DEFAULT_OF[str(key)])
            if beside[0] in known or any(place[: len(beside)] == beside for place in places):
                return True
        misspelt = (str(place[-1]) for place in strange if list(place[:-1]) == table)
        return entry["type"] == "missing" and any(nearest(name, [str(key)]) for name in misspelt)

    told = [entry for entry in errors if not entry["loc"] or str(entry["loc"][0]) not in known]
    first = [entry for entry in told if not follows(entry)]
    # Without errors that were found before, something must be told.
    return list(dict.fromkeys(_sentence(entry, raw) for entry in (first if known else first or told)))


def _is_given(location: Sequence[int | str], raw: Any) -> bool:
    try:
        for key in location:
            raw = raw[key]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _sentence(error: Any, raw: Mapping[str, Any]) -> str:
    location = list(error["loc"])
    path = _path(location, raw)
    if error["type"] == "extra_forbidden":
        table: Any = Config
        for key in location[:-1]:
            if isinstance(key, str):
                table = _table(table.model_fields[key].annotation)
        return f"{path}: {unknown('key', str(location[-1]), table.model_fields)}"
    prefix = f"{path}: " if path else ""
    return f"{prefix}{_mistake(error)}"


def _table(annotation: Any) -> Any:
    """The table class in a key's annotation, also inside a list or an optional type; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in typing.get_args(annotation) if (inner := _table(part)) is not None), None)


def option_sentences(error: pydantic.ValidationError, path: str, kind: str, names: Sequence[str]) -> list[str]:
    """One sentence about each option that has an error; unknown ones come first."""
    by_name: dict[str, list[Any]] = {}
    for each in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden"):
        by_name.setdefault(str(each["loc"][0]), []).append(each)
    strange = [name for name, (first, *_) in by_name.items() if first["type"] == "extra_forbidden"]
    said: list[str] = []
    for name, (first, *others) in by_name.items():
        if first["type"] == "extra_forbidden":
            said.append(f"{path}: {unknown(kind, name, names)}")
        elif first["type"] == "missing" and any(nearest(each, [name]) for each in strange):
            continue  # it is there under another name
        elif not others:
            said.append(f"{path}.{name}: {_mistake(first)}")
        else:  # pydantic reports one error for each member of a union; the members are alternatives
            expected = " or ".join(dict.fromkeys(map(_expected, (first, *others))))
            said.append(f"{path}.{name}: expected {expected}, got {shown(first['input'])}")
    return said


def _path(location: Sequence[int | str], raw: Mapping[str, Any]) -> str:
    """The key's path in the form of overrides, with the names of algorithms and scenarios instead of positions."""
    words, here = [], raw
    for key in location:
        try:
            here = here[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            here = {}
        label = here.get("label", here.get("name")) if isinstance(here, Mapping) else None
        words.append(str(label) if isinstance(key, int) and label is not None else str(key))
    return ".".join(words)


def _mistake(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return "expected a value (there is no default), got none"
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        valid = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return unknown("value", error["input"], valid)
    return f"expected {_expected(error)}, got {shown(error['input'])}"


_EXPECTED = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "finite_number": "a finite number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "literal_error": "{expected}",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "sequence_str": "a list",
    "is_instance_of": "a list",  # among the types of options, only sequences give this error
    "none_required": "nothing",
    "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them",
}


def _expected(error: Any) -> str:
    template = _EXPECTED.get(error["type"])
    # Limits of floats are floats: print 1 instead of 1.0.
    limits = {key: int(limit) if limit == 1 or limit == 0 else limit for key, limit in error.get("ctx", {}).items()}
    return template.format(**limits) if template is not None else error["msg"]


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
    """The config without faulty tables and entries (None: it cannot be checked), and the names of replaced tables."""
    remaining, wrong = dict(raw), set(broken)
    entries: dict[str, set[int]] = {}
    for key, *rest in (part["loc"] for part in error.errors() if part["loc"]):
        if rest and isinstance(rest[0], int):
            entries.setdefault(str(key), set()).add(rest[0])
        else:
            wrong.add(str(key))
    for key, places in entries.items():
        if key not in wrong:
            remaining[key] = [part for place, part in enumerate(raw[key]) if place not in places]
            wrong |= set() if remaining[key] else {key}
    for key in wrong:
        remaining.pop(key, None)
    remaining |= {key: value for key, value in _STAND_INS.items() if key in wrong}
    try:
        return Config.model_validate(remaining), frozenset(wrong)
    except pydantic.ValidationError:
        return None, frozenset(wrong)
