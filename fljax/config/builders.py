"""The builders that a config names: found by name, their options checked and made arguments.

A builder makes an algorithm, a scenario, a model, a data set, a partition, a contribution or a callback. Its signature
has its options; parameters that an experiment gives (``OFFERS``) are none. The forms that TOML has for values end here:
tables become NamedTuples.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pydantic
from pydantic import ConfigDict, Field

from fljax.config.errors import ConfigError, option_sentences
from fljax.config.forms import Count
from fljax.config.keys import Config, Contribution, Local, Metrics
from fljax.contributions.estimators.in_rounds import ROUND_FACTS, ROUND_MEASURES, RoundMeasure, is_round_measure
from fljax.contributions.measures import FACTS, MEASURES, Measure
from fljax.core.names import resolve, unknown, with_article
from fljax.core.signatures import (
    annotations_of,
    code_of,
    is_definition,
    parameters_of,
    plain_type,
    record_of,
    takes_anything,
)
from fljax.metrics.scores import Score, scores_of


class Offer(NamedTuple):
    """The arguments that an experiment gives to one kind of builder; they are not options of a config."""

    positional: int = 0  # the number of arguments given by position
    named: frozenset[str] = frozenset()  # further arguments, given to builders that have a parameter of that name


OFFERS: Mapping[str, Offer] = {
    "algorithm": Offer(
        0,
        frozenset({"task", "local", "contribution", "clustering", "reference", "threshold", "clients_per_round"}),
    ),
    "scenario": Offer(
        1, frozenset({"learning_rate", "batch_size", "shuffle", "threshold", "contribution", "reference", "baseline"})
    ),
    "dataset": Offer(0, frozenset({"clients", "unseen", "seed", "folder"})),
    "partition": Offer(1, frozenset({"clients", "unseen", "seed", "owner", "part", "classes", "unseen_owners"})),
    "callback": Offer(0, frozenset({"folder", "label", "cells", "seeds", "rounds"})),
    "contribution": Offer(0, frozenset(FACTS)),
    "model": Offer(2, frozenset({"prepare", "dtype", "vocabulary"})),
    "optimizer": Offer(1),
}

# What a round gives to a measure of contributions.
ROUND_OFFER = Offer(0, frozenset(ROUND_FACTS))


def offer_of(kind: str, builder: Callable[..., Any]) -> Offer:
    """The arguments that an experiment gives to a builder of a kind, or a round to a measure of contributions."""
    in_rounds = kind == "contribution" and is_round_measure(builder)
    return ROUND_OFFER if in_rounds else OFFERS.get(kind, Offer())


# Parameters that fljax normally supplies, but that a number in the config may replace.
OVERRIDABLE: Mapping[str, Any] = {
    "threshold": float,
    "baseline": float,
    "clients_per_round": Count,
    "learning_rate": float,
    "batch_size": Count,
    "shuffle": bool,
}


def find_builder(path: str, name: str, registry: Mapping[str, Any], kind: str, imports: bool) -> Callable[..., Any]:
    """The builder that a config names at ``path``; raises a ConfigError if there is none."""
    try:
        entry = resolve(name, registry, kind, imports=imports)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__
    builder = getattr(entry, "build", entry)
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


def _is_flax_module(builder: Any) -> bool:
    """Whether it is a module of flax, or a class of modules; flax need not be imported for it."""
    classes = builder.__mro__ if isinstance(builder, type) else type(builder).__mro__
    return any(kind.__name__ == "Module" and kind.__module__.startswith("flax.") for kind in classes)


def checked_options(
    path: str,
    builder: Callable[..., Any],
    options: Mapping[str, Any],
    offer: Offer,
    kind: str = "option",
    overridable: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, Any]:
    """The options, checked against the builder's signature; those that are records, against their fields."""
    form_of = _form_of if is_definition(builder) else _form_of.__wrapped__
    form = form_of(builder, offer, tuple(overridable.items()), code_of(builder))
    try:
        checked = form.model.model_validate(dict(options))
    except pydantic.ValidationError as error:
        raise ConfigError(*option_sentences(error, path, kind, form.names)) from None
    typed = checked.model_dump(by_alias=True, exclude_unset=True)
    for name, record in form.records.items():
        if isinstance(typed.get(name), Mapping):
            typed[name] = checked_options(f"{path}.{name}", record, typed[name], Offer(), "key")
    return typed


class _Form(NamedTuple):
    """What the options of a builder are checked by."""

    model: type[pydantic.BaseModel]  # of the options
    names: Sequence[str]  # of the options
    records: Mapping[str, type[tuple]]  # the classes of those options that are records


@functools.lru_cache(
    maxsize=512
)  # pydantic takes milliseconds to make a model, and the cells of a sweep share builders
def _form_of(builder: Callable[..., Any], offer: Offer, overridable: tuple[tuple[str, Any], ...], code: Any) -> _Form:
    """The options in a builder's signature. Parameters that an experiment gives are none, unless ``overridable``."""
    replaceable, annotations = dict(overridable), annotations_of(builder)
    fields: dict[str, Any] = {}
    records: dict[str, type[tuple]] = {}
    extra: Literal["allow", "forbid"] = "forbid"
    for place, parameter in enumerate(inspect.signature(builder).parameters.values()):
        name, default = parameter.name, parameter.default
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        if place < offer.positional or parameter.kind not in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            continue
        if name in replaceable and name in offer.named:
            annotation, default = replaceable[name], None
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
    return _Form(model, [field[1].alias for field in fields.values()], records)


def builder_arguments(builder: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were checked, as arguments of the builder: tables of records become NamedTuples."""
    annotations = annotations_of(builder)

    def argument(name: str, value: Any) -> Any:
        record = record_of(annotations.get(name))
        if record is None or not isinstance(value, Mapping):
            return value
        return record(**builder_arguments(record, value))

    return {name: argument(name, value) for name, value in options.items()}


def algorithm_arguments(builder: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """As ``builder_arguments``, for an algorithm: its server's optimizer and its contribution are no tables either.

    The option ``clustering`` is no argument but a request, and is left out.
    """
    plain = {name: value for name, value in options.items() if name != "clustering"}
    shaped = {name: form(plain.pop(name)) for name, form in _FORMS.items() if name in plain}
    return builder_arguments(builder, plain) | shaped


def _optimizer(chosen: Any) -> Any:
    """A name, or a name with options as an OptimizerSettings."""
    from fljax.training import OptimizerSettings  # imported here, since reading a config's keys does not need JAX

    if not isinstance(chosen, Mapping):
        return chosen
    options = sorted((name, value) for name, value in chosen.items() if name != "name")
    return OptimizerSettings(chosen["name"], tuple(options))


def _contribution(chosen: Any) -> Any:
    """A list of numbers, or what a name or a table chooses: a Measure, also of a file, or a RoundMeasure."""
    if not isinstance(chosen, str | Mapping):
        return chosen
    table = Contribution.model_validate({"name": chosen} if isinstance(chosen, str) else chosen)
    if table.file is not None:
        return Measure(**dict(table))
    function = resolve(table.name, MEASURES, "contribution")
    if is_round_measure(function):
        settings, options = _round_settings(table.options)
        named = table.name if table.name in ROUND_MEASURES else function
        return RoundMeasure(named, **settings, options=builder_arguments(function, options))
    return Measure(**{**dict(table), "options": builder_arguments(function, table.options)})


def _round_settings(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of a measure of rounds: those of ``RoundMeasure``, and the options of its estimator or function."""
    settings = {name: value for name, value in options.items() if name in _ROUND_KEYS}
    return settings, {name: value for name, value in options.items() if name not in settings}


_ROUND_KEYS = tuple(field for field in RoundMeasure._fields if field not in ("measure", "options"))


def check_round_measure(path: str, table: Contribution, measure: Callable[..., Any]) -> None:
    """Raises a ConfigError unless a table has the keys of a measure that is computed in rounds."""
    for name in sorted(table.model_fields_set - {"name", "options"}):
        raise ConfigError(
            f"{path}.{name}: expected none for {table.name!r}, which is computed in rounds, since it is about "
            "contributions that are known before training"
        )
    settings, options = _round_settings(table.options)
    keys = [*_ROUND_KEYS, *(name for name in parameters_of(measure) if name not in ROUND_OFFER.named)]
    for name in () if takes_anything(measure) else options:
        if name not in keys:
            raise ConfigError(f"{path}: {unknown('key', name, keys)}")
    checked_options(path, RoundMeasure, settings, Offer(0, frozenset({"measure", "options"})), "key")
    checked_options(path, measure, options, ROUND_OFFER, "key")


# Options of algorithms that are tables of a form of their own, with the functions that make values of them.
_FORMS: Mapping[str, Callable[[Any], Any]] = {"server_optimizer": _optimizer, "contribution": _contribution}


def requirement_arguments(config: Config, imports: bool = True) -> dict[str, Any] | None:
    """The table ``requirement`` as arguments of ``fljax.Requirement``; None if there is none.

    Raises:
      ConfigError: if it has another number of clients, or its function cannot be imported.
    """
    table = config.requirement
    if table is None:
        return None
    if isinstance(table.value, tuple) and len(table.value) != config.data.clients:
        raise ConfigError(
            f"requirement.value: expected a number for each of {config.data.clients} clients, got {len(table.value)}"
        )
    function = None
    if table.function is not None:
        path = f"requirement.function: expected an import path 'module:name' of a function, got {table.function!r}"
        if ":" not in table.function:
            raise ConfigError(path)
        try:
            function = resolve(table.function, {}, "function", imports=imports)
        except ValueError as error:
            raise ConfigError(f"requirement.function: {error}") from error.__cause__
        if not callable(function):
            raise ConfigError(path)
    return {**table.model_dump(), "function": function}


def checked_scores(metrics: Metrics, imports: bool) -> tuple[Metrics, tuple[Score, ...]]:
    """The table whose scores say their direction, and its scores."""

    chosen: list[Score] = []
    for entry in metrics.scores:
        try:
            (score,) = scores_of([entry.name], imports=imports)
        except ValueError as error:
            raise ConfigError(f"metrics.scores: {error}") from error.__cause__
        if entry.lower not in (None, score.lower):
            if not score.is_own:
                got = "lower" if entry.lower else "higher"
                raise ConfigError(
                    f"metrics.scores: expected no other direction of {score.name} than its own, got {got} as better"
                )
            score = score._replace(lower=bool(entry.lower))
        chosen.append(score)
    try:
        scores = scores_of(chosen)
    except ValueError as error:
        raise ConfigError(f"metrics.scores: {error}") from None
    if metrics.score_every is not None and not scores:
        raise ConfigError("metrics.score_every: expected metrics.scores, which it is about, got none")
    entries = (
        entry.model_copy(update={"lower": score.lower or None})
        for entry, score in zip(metrics.scores, scores, strict=True)
    )
    return metrics.model_copy(update={"scores": tuple(entries)}), scores


def check_server_optimizer(path: str, chosen: Any) -> None:
    """Raises a ConfigError unless ``chosen`` is the name of an optax optimizer, or a table with a name and options."""
    options = dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{path}: expected the name of an optimizer, or a table with one, got {chosen!r}")
    checked_optimizer(path, path, name, options)


def optimizer_options(local: Local) -> dict[str, Any]:
    return checked_optimizer("local.optimizer", "local.options", local.optimizer, local.options)


def checked_optimizer(path: str, options_path: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an optax optimizer with a learning rate, checked against the signature of its function."""
    builders = _optimizers()
    if name not in builders:
        raise ConfigError(f"{path}: {unknown('optimizer', name, builders)}")
    return checked_options(options_path, builders[name], options, OFFERS["optimizer"])


@functools.cache  # optax has hundreds of functions
def _optimizers() -> Mapping[str, Callable[..., Any]]:
    """Those functions of optax that take a learning rate, by name."""
    import optax

    public = {name: getattr(optax, name) for name in dir(optax) if not name.startswith("_")}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    return {name: call for name, call in functions.items() if "learning_rate" in inspect.signature(call).parameters}
