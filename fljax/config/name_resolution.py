"""The names of a config, looked up once: each becomes a builder with its arguments, and wrong ones become errors.

A builder makes an algorithm, a scenario, a model, a data set, a partition, a contribution or a callback. Its signature
has its options; parameters that an experiment gives (``OFFERS``) are none. The forms that TOML has for values end here:
tables become NamedTuples.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Container, ItemsView, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import pydantic
from pydantic import ConfigDict, Field

from fljax.config.forms import Call, Count, Named, Resolved, Table
from fljax.config.keys import (
    AlgorithmEntry,
    Clustering,
    Config,
    ConfigError,
    Contribution,
    Data,
    Metrics,
    OwnLocal,
    RateSchedule,
    Scenario,
    Stop,
    at,
    option_sentences,
    raise_all,
    sentences,
    tried,
)
from fljax.contributions.estimators.in_rounds import ROUND_FACTS, ROUND_MEASURES, RoundMeasure, is_round_measure
from fljax.contributions.measures import FACTS, MEASURES, Measure
from fljax.core.names import resolve, shown, unknown, with_article
from fljax.core.values import (
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
        0, frozenset({"task", "local", "contribution", "clustering", "reference", "threshold", "clients_per_round"})
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
    with at(path):
        entry = resolve(name, registry, kind, imports=imports)
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
        if place < offer.positional or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
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
        with at("requirement.function"):
            function = resolve(table.function, {}, "function", imports=imports) if ":" in table.function else None
            if not callable(function):
                raise ValueError(f"expected an import path 'module:name' of a function, got {table.function!r}")
    return {**table.model_dump(), "function": function}


def checked_scores(metrics: Metrics, imports: bool) -> tuple[Metrics, tuple[Score, ...]]:
    """The table whose scores say their direction, and its scores."""

    chosen: list[Score] = []
    for entry in metrics.scores:
        with at("metrics.scores"):
            (score,) = scores_of([entry.name], imports=imports)
        if entry.lower not in (None, score.lower):
            if not score.is_own:
                got = "lower" if entry.lower else "higher"
                raise ConfigError(
                    f"metrics.scores: expected no other direction of {score.name} than its own, got {got} as better"
                )
            score = score._replace(lower=bool(entry.lower))
        chosen.append(score)
    with at("metrics.scores"):
        scores = scores_of(chosen)
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


_Named = TypeVar("_Named", bound=Named)
_ATable = TypeVar("_ATable", bound=Table)


class Registries(NamedTuple):
    """The registries of names; ``imports`` is whether import paths are allowed."""

    algorithms: Mapping[str, Any]
    scenarios: Mapping[str, Any]
    datasets: Mapping[str, Any]
    partitioners: Mapping[str, Any]
    models: Mapping[str, Any]
    contributions: Mapping[str, Any]
    imports: bool = True
    callbacks: Mapping[str, Any] = types.MappingProxyType({})


def registries() -> Registries:
    """The registries of fljax."""
    # Imported here, since these modules import JAX and reading a config's keys does not need them.
    from fljax import algorithms, contributions, data, models, scenarios
    from fljax.engine import callbacks

    return Registries(
        algorithms.REGISTRY,
        scenarios.REGISTRY,
        data.SOURCES,
        data.PARTITIONERS,
        models.MODELS,
        contributions.MEASURES,
        callbacks=callbacks.CALLBACKS,
    )


# Options of algorithms that are tables of a form of their own; ``algorithm_arguments`` makes values of them.
SHAPED = ("contribution", "clustering", "server_optimizer")


def with_resolved_names(
    config: Config, imports: bool = True, needs_data: bool = True, broken: Container[str] = ()
) -> Config:
    """The config with typed options and its ``resolved`` names, checked against the builders' signatures."""
    # Keys that depend on tables with errors are not checked, and names are then not resolved.
    names, errors = registries()._replace(imports=imports), list[ConfigError]()

    def checked(check: Callable[..., Any], *arguments: Any, of: Sequence[str] = (), otherwise: Any = None) -> Any:
        """The result of a check; ``otherwise`` if it finds errors or needs one of the tables that are broken."""
        result = None if any(table in broken for table in of) else tried(errors, check, *arguments)
        return otherwise if result is None else result

    nothing = (None, None)
    checked(_check_together, config, of=("data", "standalone", "model", "save_models"))
    requirement = checked(requirement_arguments, config, imports, of=("requirement", "data"))
    if config.metrics.extra or config.stop is not None:
        checked(_check_metrics, config.metrics.extra, config.stop, config.data, of=("metrics", "stop", "data"))
    data, dataset, partition = checked(_data, config.data, names, needs_data, of=("data",), otherwise=(None,) * 3)
    model, task = checked(
        _called_by, "model", config.model, names.models, "model", imports, of=("model",), otherwise=nothing
    )
    chosen = "local.optimizer", "local.options", config.local.optimizer, config.local.options
    optimizer = checked(checked_optimizer, *chosen, of=("local",), otherwise={})
    checked(_check_schedule, "local.schedule", config.local.schedule, of=("local",))
    scenarios, wrappers = checked(_scenarios, "scenarios", config.scenarios, names, otherwise=nothing)
    entries = [
        checked(_entry, entry, config, names, broken, otherwise=(None,) * 3)
        for entry in (() if "algorithms" in broken else config.algorithms)
    ]
    callbacks = [
        checked(_called_by, f"callbacks.{entry.name}", entry, names.callbacks, "callback", imports, otherwise=nothing)
        for entry in config.callbacks
    ]
    metrics, scores = checked(checked_scores, config.metrics, imports, of=("metrics",), otherwise=(config.metrics, ()))
    raise_all(errors)
    changes = {
        "metrics": metrics,
        "data": data,
        "model": model,
        "local": config.local.model_copy(update={"options": optimizer}),
        "scenarios": scenarios,
        "algorithms": tuple(entry for entry, _, _ in entries),
        "callbacks": tuple(callback for callback, _ in callbacks),
    }
    if broken:
        return config
    resolved = Resolved(
        dataset=dataset,
        partition=partition,
        model=task,
        algorithms=tuple(build for _, build, _ in entries),
        scenarios=tuple((*inner, *wrappers) for _, _, inner in entries),
        callbacks=tuple(call for _, call in callbacks),
        requirement=requirement,
        scores=scores,
    )
    return config.with_resolved(resolved, changes)


def resolved_of(config: Config, needs_data: bool = False) -> Resolved:
    """The ``Resolved`` names of a config; names of a changed or hand-made copy are looked up at first use."""
    resolved = config.resolved
    if resolved is None or (needs_data and resolved.dataset is None):
        resolved = with_resolved_names(config, needs_data=needs_data).resolved
        assert resolved is not None
        config.remember(resolved)
    return resolved


def _check_together(config: Config) -> None:
    """Raises a ConfigError if keys of several tables do not fit."""
    data = config.data
    if config.save_models == "best" and not data.valid_fraction:
        raise ConfigError("save_models: expected data.valid_fraction to be positive for 'best', got 0")
    if config.standalone.initial == "own" and config.model.initial is not None:
        raise ConfigError(
            "standalone.initial: expected 'shared' with model.initial, the start of all models, got 'own'"
        )


def _check_metrics(extra: Sequence[str], stop: Stop | None, data: Data) -> None:
    from fljax.metrics.registry import OF_ONE_EVALUATION, ON_REQUEST  # imports JAX; a folder's metrics do without

    for name in extra:
        check_metric("metrics.extra", name, ON_REQUEST, data)
    if stop is not None:
        check_metric("stop.metric", stop.metric, OF_ONE_EVALUATION, data)


def _data(data: Data, names: Registries, needs_data: bool) -> tuple[Data, Call | None, Call]:
    """The table with typed options, the source of the data (None if it is not needed) and the partition."""

    def partition() -> Call:
        partitioner = find_builder("data.partition", data.partition, names.partitioners, "partition", names.imports)
        if not isinstance(data.unseen, int) and "unseen_owners" not in parameters_of(partitioner):
            raise ConfigError(
                f"data.unseen: expected a number of clients with the partition {data.partition}, since only natural "
                f"chooses clients by name, got {shown(data.unseen)}"
            )
        options = data.partition_options
        return Call(partitioner, checked_options("data.partition_options", partitioner, options, OFFERS["partition"]))

    errors: list[ConfigError] = []
    source: Any = None
    if needs_data:
        source = tried(errors, checked_source, data.dataset, data.dataset_options, names)
    divide: Any = tried(errors, partition)
    raise_all(errors)
    options = data.dataset_options if source is None else source.arguments
    typed = data.model_copy(update={"dataset_options": options, "partition_options": divide.arguments})
    return typed, None if source is None else _called(source), _called(divide)


def _called(checked: Call) -> Call:
    """A builder with its checked options, as its arguments."""
    return Call(checked.build, builder_arguments(*checked))


def _called_by(
    path: str, table: _Named, registry: Mapping[str, Any], kind: str, imports: bool, overridable: Mapping[str, Any] = {}
) -> tuple[_Named, Call]:
    """A table with options of the builder that it names, which are typed then; and the builder with its arguments."""
    builder = find_builder("model.name" if kind == "model" else path, table.name, registry, kind, imports)
    options = checked_options(path, builder, table.options, OFFERS[kind], overridable=overridable)
    return table.model_copy(update={"options": options}), Call(builder, builder_arguments(builder, options))


def checked_source(name: str, options: Mapping[str, Any], names: Registries) -> Call:
    """The source of a data set with its options, checked against its signature, in the form of the config."""
    from fljax.data.registry import find_source

    with at("data.dataset"):
        source = find_source(name, names.datasets, imports=names.imports)
    if not callable(source):
        raise ConfigError(f"data.dataset: expected {name!r} to be a function that makes a dataset, got {source!r}")
    return Call(source, checked_options("data.dataset_options", source, options, OFFERS["dataset"]))


def check_metric(path: str, metric: str, valid: Iterable[str], data: Data) -> None:
    """Raises a ConfigError if a metric is none of ``valid``, or these data cannot give it."""
    names = tuple(valid)
    if metric not in names:
        raise ConfigError(f"{path}: {unknown('metric', metric, names)}")
    if metric.startswith("unseen_") and not data.unseen:
        raise ConfigError(f"{path}: expected data.unseen to be positive for {metric}, got 0")
    if metric.startswith(("average_valid_", "valid_")) and not data.valid_fraction:
        raise ConfigError(f"{path}: expected data.valid_fraction to be positive for {metric}, got 0")


def _entry(
    entry: AlgorithmEntry, config: Config, names: Registries, broken: Container[str]
) -> tuple[AlgorithmEntry, Call, tuple[Call, ...]]:
    """The entry with typed options, its algorithm, and its own scenarios."""
    path, errors = f"algorithms.{entry.label}", list[ConfigError]()
    algorithm: Any = tried(errors, _algorithm, path, entry, config, names, broken)
    local: Any = entry.local if "local" in broken else tried(errors, _own_local, f"{path}.local", entry.local, config)
    scenarios: Any = tried(errors, _scenarios, f"{path}.scenarios", entry.scenarios, names)
    raise_all(errors)
    changes = {"options": algorithm.arguments, "local": local, "scenarios": scenarios[0]}
    # What depends on broken tables was not checked, so that it may be no argument.
    arguments = {} if broken else algorithm_arguments(*algorithm)
    return entry.model_copy(update=changes), Call(algorithm.build, arguments), scenarios[1]


def _algorithm(path: str, entry: AlgorithmEntry, config: Config, names: Registries, broken: Container[str]) -> Call:
    """The algorithm of an entry with its checked hyper-parameters, in the form of the config."""
    builder = find_builder(path, entry.name, names.algorithms, "algorithm", names.imports)
    population_known = "data" not in broken and "participation" not in broken
    rows = entry.options.get("clients_per_round", config.participation.clients_per_round)
    known = names.algorithms.get(entry.name)
    asks_all = known is not None and hasattr(known, "asks_all") and known.asks_all(entry.options)
    if population_known and asks_all and isinstance(rows, int) and rows < config.data.clients:
        raise ConfigError(
            f"{path}.clients_per_round: expected all {config.data.clients} clients, which {entry.name} asks, got {rows}"
        )
    offer, overridable = OFFERS["algorithm"], {**OVERRIDABLE, **dict.fromkeys(SHAPED, Any)}
    offer = offer._replace(named=offer.named | set(SHAPED))
    options = checked_options(path, builder, entry.options, offer, "hyper-parameter", overridable)
    if "contribution" in options and "data" not in broken:
        _check_contribution(f"{path}.contribution", options["contribution"], config.data.clients, names)
    if "clustering" in options:
        options |= {"clustering": _clustering(f"{path}.clustering", options["clustering"])}
    if "server_optimizer" in options:
        check_server_optimizer(f"{path}.server_optimizer", options["server_optimizer"])
    return Call(builder, options)


def _scenarios(
    path: str, scenarios: Sequence[Scenario], names: Registries
) -> tuple[tuple[Scenario, ...], tuple[Call, ...]]:
    """The scenarios with typed options, and their wrappers."""
    imports = names.imports

    def scenario(entry: Scenario) -> tuple[Scenario, Call]:
        return _called_by(f"{path}.{entry.name}", entry, names.scenarios, "scenario", imports, OVERRIDABLE)

    errors: list[ConfigError] = []
    pairs: Any = [tried(errors, scenario, of_scenario) for of_scenario in scenarios]
    raise_all(errors)
    return tuple(entry for entry, _ in pairs), tuple(wrapper for _, wrapper in pairs)


def _check_contribution(path: str, chosen: Any, clients: int, names: Registries) -> None:
    """Raises a ConfigError unless ``chosen`` is a measure's name, a table with one, or a number for each client."""
    if isinstance(chosen, list | tuple):
        if any(isinstance(part, list | tuple) for part in chosen):
            raise ConfigError(
                f"{path}: expected a number for each of {clients} clients, got a list of lists; contributions that "
                "differ by round or seed stand in a file with the columns seed, round, client and contribution, as in "
                '{file = "contributions.csv"}'
            )
        numbers = all(isinstance(part, int | float) and not isinstance(part, bool) for part in chosen)
        if not numbers or not all(0 <= part < float("inf") for part in chosen):
            raise ConfigError(f"{path}: expected a list of finite numbers of at least 0, got {chosen!r}")
        if len(chosen) != clients:
            raise ConfigError(f"{path}: expected a number for each of {clients} clients, got {len(chosen)}")
        return
    if not isinstance(chosen, str | Mapping):
        raise ConfigError(f"{path}: expected a name, a table with one, or a list of numbers, got {chosen!r}")
    table = _table_of(path, Contribution, chosen)
    keys = [key for key in Contribution.model_fields if key != "options"]
    measure = None
    if table.file is None:
        measure = find_builder(path, table.name, names.contributions, "contribution", names.imports)
        if is_round_measure(measure):
            return check_round_measure(path, table, measure)
        keys += [part for part in parameters_of(measure) if part not in FACTS]
    for name in table.options if measure is None or not takes_anything(measure) else ():
        if name not in keys:
            raise ConfigError(f"{path}: {unknown('key', name, keys)}")
    if measure is not None:
        checked_options(path, measure, table.options, OFFERS["contribution"])
    if max(table.free_riders, default=0) >= clients:
        got = max(table.free_riders)
        raise ConfigError(f"{path}.free_riders: expected ids of clients from 0 to {clients - 1}, got {got}")
    only_riders = clients - len(table.free_riders) < 1
    if table.induced_rate is not None and table.ceiling == "max" and only_riders:
        raise ConfigError(f"{path}.free_riders: expected a client that is none, got all {clients}")


def _clustering(path: str, chosen: Any) -> Clustering:
    """Parses the initial clustering, given as a name or a table with a name."""
    if not isinstance(chosen, str | Mapping | Clustering):
        raise ConfigError(f"{path}: expected a name or a table with one, got {chosen!r}")
    for key in chosen if isinstance(chosen, Mapping) else ():
        if key not in Clustering.model_fields:
            raise ConfigError(f"{path}: {unknown('key', key, Clustering.model_fields)}")
    return _table_of(path, Clustering, chosen)


def _table_of(path: str, kind: type[_ATable], chosen: Any) -> _ATable:
    """A table of its own, given by its name alone or as what it has; its errors have its path."""
    raw = {"name": chosen} if isinstance(chosen, str) else chosen
    try:
        return kind.model_validate(raw)
    except pydantic.ValidationError as error:
        told = sentences(error, raw if isinstance(raw, Mapping) else {})
        raise ConfigError(*(f"{path}{': ' if each.startswith('expected ') else '.'}{each}" for each in told)) from None


def schedule_of(table: Named) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The fields of ``fljax.training.RateSchedule``: tables and lists become pairs, sorted by name."""

    def fixed(value: Any) -> Any:
        entries = value.items() if isinstance(value, Mapping) else value
        return tuple(map(fixed, entries)) if isinstance(entries, list | tuple | ItemsView) else value

    return table.name, tuple((name, fixed(value)) for name, value in sorted(table.options.items()))


def _check_schedule(path: str, table: RateSchedule | None) -> None:
    from fljax.training import RateSchedule as Built  # imports JAX
    from fljax.training import named_schedule

    if table is not None:
        try:
            named_schedule(Built(*schedule_of(table)))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None


def _own_local(path: str, table: OwnLocal, config: Config) -> OwnLocal:
    """An algorithm's own local settings, with options checked against its own optimizer or that of all algorithms."""
    _check_schedule(f"{path}.schedule", table.schedule)
    if table.optimizer is None and table.options is None:
        return table
    name = config.local.optimizer if table.optimizer is None else table.optimizer
    checked = checked_optimizer(f"{path}.optimizer", f"{path}.options", name, table.options or {})
    return table if table.options is None else table.model_copy(update={"options": checked})
