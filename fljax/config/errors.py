"""Errors of a config as one sentence: the key, the expected value, the value found."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic
from pydantic import BaseModel

from fljax.config.keys import Config
from fljax.naming import shown, unknown


class ConfigError(ValueError):
    """An error in a config; the message is one sentence."""


def sentence(error: pydantic.ValidationError, raw: Mapping[str, Any]) -> str:
    """One sentence about the first error; unknown keys come first, since they often explain missing keys."""
    errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    first = errors[0]
    location = list(first["loc"])
    path = _path(location, raw)
    if first["type"] == "extra_forbidden":
        table: Any = Config
        for key in location[:-1]:
            if isinstance(key, str):
                table = _table(table.model_fields[key].annotation)
        return f"{path}: {unknown('key', str(location[-1]), table.model_fields)}"
    prefix = f"{path}: " if path else ""
    return f"{prefix}{_mistake(first)}"


def _table(annotation: Any) -> Any:
    """The table class in a key's annotation, also inside a list or an optional type; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _table(each)) is not None), None)


def option_sentence(error: pydantic.ValidationError, path: str, kind: str, names: Sequence[str]) -> str:
    errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    name = str(errors[0]["loc"][0])
    if errors[0]["type"] == "extra_forbidden":
        return f"{path}: {unknown(kind, name, names)}"
    # pydantic reports one error for each member of a union; the members are alternatives.
    same = [each for each in errors if str(each["loc"][0]) == name]
    if len(same) == 1:
        return f"{path}.{name}: {_mistake(same[0])}"
    expected = " or ".join(dict.fromkeys(_expected(each) for each in same))
    return f"{path}.{name}: expected {expected}, got {shown(same[0]['input'])}"


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
    limits = {key: int(each) if each == 1 or each == 0 else each for key, each in error.get("ctx", {}).items()}
    return template.format(**limits) if template is not None else error["msg"]
