"""Builders that a config names, and options of a config that are checked against a builder's signature."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from fljax.config.errors import ConfigError, option_sentences
from fljax.config.offers import Offer
from fljax.core.names import resolve, with_article
from fljax.core.signatures import annotations_of, plain_type, record_of


def find_builder(path: str, name: str, registry: Mapping[str, Any], kind: str, imports: bool) -> Callable[..., Any]:
    """What a config names at ``path``; raises a ConfigError if there is no such builder."""
    try:
        found = resolve(name, registry, kind, imports=imports)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__
    builder = getattr(found, "build", found)
    if not callable(builder):
        raise ConfigError(
            f"{path}: expected {name!r} to be a function that makes {with_article(kind)}, got {builder!r}"
        )
    if kind == "model" and _is_flax_module(builder):
        raise ConfigError(
            f"{path}: expected {name!r} to be a function (input_shape, classes) that returns "
            f"models.task_from_module(MODULE, numpy.zeros((1, *input_shape))), got a flax module itself"
        )
    return builder


def _is_flax_module(found: Any) -> bool:
    """Whether it is a module of flax, or a class of modules; flax need not be imported for it."""
    classes = found.__mro__ if isinstance(found, type) else type(found).__mro__
    return any(each.__name__ == "Module" and each.__module__.startswith("flax.") for each in classes)


def checked_options(
    path: str,
    builder: Callable[..., Any],
    given: Mapping[str, Any],
    offer: Offer,
    kind: str = "option",
    overridable: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, Any]:
    """The given options, checked against the builder's signature; those that are records, against their fields."""
    fields: dict[str, Any] = {}
    records: dict[str, type[tuple]] = {}
    extra: Literal["allow", "forbid"] = "forbid"
    annotations = annotations_of(builder)
    for place, parameter in enumerate(inspect.signature(builder).parameters.values()):
        name, default = parameter.name, parameter.default
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        if place < offer.positional or parameter.kind not in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            continue
        if name in overridable and name in offer.named:
            annotation, default = overridable[name], None
        elif name in offer.named:
            continue
        else:
            annotation, record = plain_type(annotations[name]), record_of(annotations[name])
            if record is not None:
                records[name] = record
        # The alias prevents parameters such as "copy" from shadowing pydantic's own attributes.
        required = default is parameter.empty
        fields[f"option_{name}"] = (annotation, Field(... if required else default, alias=name))
    model = pydantic.create_model("Options", __config__=ConfigDict(extra=extra, strict=True), **fields)
    try:
        options = model.model_validate(dict(given))
    except pydantic.ValidationError as error:
        names = [field[1].alias for field in fields.values()]
        raise ConfigError(*option_sentences(error, path, kind, names)) from None
    found = options.model_dump(by_alias=True, exclude_unset=True)
    for name, record in records.items():
        if isinstance(found.get(name), Mapping):
            found[name] = checked_options(f"{path}.{name}", record, found[name], Offer(), "key")
    return found
