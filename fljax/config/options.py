"""Checks names against the registries, and options against the signatures of builders."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pydantic

from fljax.config.builders import checked_options, find_builder
from fljax.config.errors import ConfigError, raise_all, sentences, tried
from fljax.config.forms import Count
from fljax.config.keys import (
    AlgorithmEntry,
    Callback,
    Clustering,
    Config,
    Contribution,
    Data,
    Local,
    Model,
    OwnLocal,
    Scenario,
)
from fljax.config.offers import OFFERS
from fljax.config.resolving import check_requirement
from fljax.contributions.measures import FACTS
from fljax.core.names import shown, unknown
from fljax.core.signatures import parameters_of, takes_anything


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
        contributions.CONTRIBUTIONS,
        callbacks=callbacks.CALLBACKS,
    )


# Parameters that fljax normally supplies, but that a number in the config may replace.
OVERRIDABLE: Mapping[str, Any] = {
    "threshold": float,
    "baseline": float,
    "clients_per_round": Count,
    "learning_rate": float,
    "batch_size": Count,
    "shuffle": bool,
}


# Options of algorithms that are tables of a form of their own; ``resolving`` makes values of them.
SHAPED = ("contribution", "clustering", "server_optimizer")


def with_checked_options(
    config: Config, imports: bool = True, needs_data: bool = True, broken: Container[str] = ()
) -> Config:
    """Checks names and options against the builders' signatures; returns the config with typed options.

    If ``imports`` is False, only names in registries are accepted. If ``needs_data`` is False, the data set is not
    looked for. What depends on tables named in ``broken`` is not checked.

    Raises:
      ConfigError: with all errors.
    """
    found, errors = registries()._replace(imports=imports), list[ConfigError]()

    def checked(check: Callable[..., Any], *arguments: Any, of: Sequence[str] = (), otherwise: Any = None) -> Any:
        """The result of a check; ``otherwise`` if it finds errors or needs one of the tables that are broken."""
        result = None if any(each in broken for each in of) else tried(errors, check, *arguments)
        return otherwise if result is None else result

    checked(_check_together, config, of=("data", "standalone", "model", "save_models"))
    checked(check_requirement, config, imports, of=("requirement", "data"))
    if config.stop is not None:
        checked(_check_stop, config.stop.metric, config.data, of=("stop", "data"))
    model, local = config.model, config.local
    changes = {
        "data": checked(_checked_data, config.data, found, needs_data, of=("data",)),
        "model": checked(_checked_model, model, found, of=("model",)),
        "local": local.model_copy(update={"options": checked(_optimizer_options, local, of=("local",), otherwise={})}),
        "scenarios": checked(_checked_scenarios, "scenarios", config.scenarios, found),
        "algorithms": tuple(
            checked(_checked_entry, entry, config, found, broken)
            for entry in (() if "algorithms" in broken else config.algorithms)
        ),
        "callbacks": tuple(checked(_checked_callback, each, found) for each in config.callbacks),
    }
    raise_all(errors)
    return config.model_copy(update=changes)


def _check_together(config: Config) -> None:
    """Raises a ConfigError if keys of several tables do not fit."""
    data = config.data
    if config.save_models == "best" and not data.valid_fraction:
        raise ConfigError("save_models: expected data.valid_fraction to be positive for 'best', got 0")
    if config.standalone.initial == "own" and config.model.initial is not None:
        raise ConfigError(
            "standalone.initial: expected 'shared' with model.initial, the start of all models, got 'own'"
        )


def _check_stop(metric: str, data: Data) -> None:
    from fljax.metrics.registry import OF_ONE_EVALUATION  # imports JAX, which a folder's metrics can do without

    check_metric("stop.metric", metric, OF_ONE_EVALUATION, data)


def _checked_data(data: Data, found: Registries, needs_data: bool) -> Data:
    def partition_options() -> dict[str, Any]:
        partitioner = find_builder("data.partition", data.partition, found.partitioners, "partition", found.imports)
        if not isinstance(data.unseen, int) and "unseen_owners" not in parameters_of(partitioner):
            raise ConfigError(
                f"data.unseen: expected a number of clients with the partition {data.partition}, since only natural "
                f"chooses clients by name, got {shown(data.unseen)}"
            )
        return checked_options("data.partition_options", partitioner, data.partition_options, OFFERS["partition"])

    errors: list[ConfigError] = []
    options: Any = data.dataset_options
    if needs_data:
        source = tried(errors, checked_source, data.dataset, options, found)
        options = None if source is None else source[1]
    changes = {"dataset_options": options, "partition_options": tried(errors, partition_options)}
    raise_all(errors)
    return data.model_copy(update=changes)


def _checked_model(model: Model, found: Registries) -> Model:
    builder = find_builder("model.name", model.name, found.models, "model", found.imports)
    return model.model_copy(update={"options": checked_options("model", builder, model.options, OFFERS["model"])})


def checked_source(
    name: str, options: Mapping[str, Any], found: Registries
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The source of a data set and its options, checked against its signature.

    Raises:
      ConfigError: if there is no such data set, or an option is not one of its own.
    """
    from fljax.data.registry import find_source

    try:
        source = find_source(name, found.datasets, imports=found.imports)
    except ValueError as error:
        raise ConfigError(f"data.dataset: {error}") from error.__cause__
    if not callable(source):
        raise ConfigError(f"data.dataset: expected {name!r} to be a function that makes a dataset, got {source!r}")
    return source, checked_options("data.dataset_options", source, options, OFFERS["dataset"])


def _checked_callback(entry: Callback, found: Registries) -> Callback:
    where = f"callbacks.{entry.name}"
    builder = find_builder(where, entry.name, found.callbacks, "callback", found.imports)
    return entry.model_copy(update={"options": checked_options(where, builder, entry.options, OFFERS["callback"])})


def check_metric(path: str, metric: str, valid: Iterable[str], data: Data) -> None:
    """Raises a ConfigError if a metric is none of ``valid``, or these data cannot give it."""
    names = tuple(valid)
    if metric not in names:
        raise ConfigError(f"{path}: {unknown('metric', metric, names)}")
    if metric.startswith("unseen_") and not data.unseen:
        raise ConfigError(f"{path}: expected data.unseen to be positive for {metric}, got 0")
    if metric.startswith("average_valid_") and not data.valid_fraction:
        raise ConfigError(f"{path}: expected data.valid_fraction to be positive for {metric}, got 0")


def _checked_entry(
    entry: AlgorithmEntry, config: Config, found: Registries, broken: Container[str] = ()
) -> AlgorithmEntry:
    path, errors = f"algorithms.{entry.label}", list[ConfigError]()
    options = tried(errors, _hyper_parameters, path, entry, config, found, broken)
    own: Any = entry.local if "local" in broken else tried(errors, _own_local, f"{path}.local", entry.local, config)
    scenarios = tried(errors, _checked_scenarios, f"{path}.scenarios", entry.scenarios, found)
    raise_all(errors)
    return entry.model_copy(update={"options": options, "local": own, "scenarios": scenarios})


def _hyper_parameters(
    path: str, entry: AlgorithmEntry, config: Config, found: Registries, broken: Container[str]
) -> dict[str, Any]:
    builder = find_builder(path, entry.name, found.algorithms, "algorithm", found.imports)
    population_known = "data" not in broken and "participation" not in broken
    rows = entry.options.get("clients_per_round", config.participation.clients_per_round)
    known = found.algorithms.get(entry.name)
    asks_all = known is not None and hasattr(known, "asks_all") and known.asks_all(entry.options)
    if population_known and asks_all and isinstance(rows, int) and rows < config.data.clients:
        raise ConfigError(
            f"{path}.clients_per_round: expected all {config.data.clients} clients, which {entry.name} asks, got {rows}"
        )
    offer, overridable = OFFERS["algorithm"], {**OVERRIDABLE, **dict.fromkeys(SHAPED, Any)}
    offer = offer._replace(named=offer.named | set(SHAPED))
    options = checked_options(path, builder, entry.options, offer, "hyper-parameter", overridable)
    if "contribution" in options and "data" not in broken:
        _check_contribution(f"{path}.contribution", options["contribution"], config.data.clients, found)
    if "clustering" in options:
        options |= {"clustering": _clustering(f"{path}.clustering", options["clustering"])}
    if "server_optimizer" in options:
        _check_server_optimizer(f"{path}.server_optimizer", options["server_optimizer"])
    return options


def _checked_scenarios(path: str, scenarios: Sequence[Scenario], found: Registries) -> tuple[Scenario, ...]:
    def checked(scenario: Scenario) -> Scenario:
        where = f"{path}.{scenario.name}"
        wrapper = find_builder(where, scenario.name, found.scenarios, "scenario", found.imports)
        options = checked_options(where, wrapper, scenario.options, OFFERS["scenario"], overridable=OVERRIDABLE)
        return scenario.model_copy(update={"options": options})

    errors: list[ConfigError] = []
    found_all: Any = tuple(tried(errors, checked, each) for each in scenarios)
    raise_all(errors)
    return found_all


def _check_contribution(path: str, chosen: Any, clients: int, found: Registries) -> None:
    """Raises a ConfigError unless ``chosen`` is a measure's name, a table with one, or a number for each client."""
    if isinstance(chosen, list | tuple):
        if any(isinstance(each, list | tuple) for each in chosen):
            raise ConfigError(
                f"{path}: expected a number for each of {clients} clients, got a list of lists; contributions that "
                "differ by round or seed stand in a file with the columns seed, round, client and contribution, as in "
                '{file = "contributions.csv"}'
            )
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in chosen)
        if not numbers or not all(0 <= each < float("inf") for each in chosen):
            raise ConfigError(f"{path}: expected a list of finite numbers of at least 0, got {chosen!r}")
        if len(chosen) != clients:
            raise ConfigError(f"{path}: expected a number for each of {clients} clients, got {len(chosen)}")
        return
    if not isinstance(chosen, str | Mapping):
        raise ConfigError(f"{path}: expected a name, a table with one, or a list of numbers, got {chosen!r}")
    raw = {"name": chosen} if isinstance(chosen, str) else chosen
    try:
        table = Contribution.model_validate(raw)
    except pydantic.ValidationError as error:
        raise ConfigError(*_under(path, sentences(error, raw))) from None
    keys = [key for key in Contribution.model_fields if key != "options"]
    measure = None
    if table.file is None:
        measure = find_builder(path, table.name, found.contributions, "contribution", found.imports)
        keys += [each for each in parameters_of(measure) if each not in FACTS]
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
    raw = {"name": chosen} if isinstance(chosen, str) else chosen
    for key in raw if isinstance(raw, Mapping) else ():
        if key not in Clustering.model_fields:
            raise ConfigError(f"{path}: {unknown('key', key, Clustering.model_fields)}")
    try:
        return Clustering.model_validate(raw)
    except pydantic.ValidationError as error:
        raise ConfigError(*_under(path, sentences(error, raw if isinstance(raw, Mapping) else {}))) from None


def _under(path: str, said: Iterable[str]) -> list[str]:
    """Sentences about a table of its own, with the path of the table."""
    return [f"{path}: {each}" if each.startswith("expected ") else f"{path}.{each}" for each in said]


def _check_server_optimizer(path: str, chosen: Any) -> None:
    """Raises a ConfigError unless ``chosen`` is the name of an optax optimizer, or a table with a name and options."""
    options = dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{path}: expected the name of an optimizer, or a table with one, got {chosen!r}")
    _checked_optimizer(path, path, name, options)


def _own_local(path: str, own: OwnLocal, config: Config) -> OwnLocal:
    """An algorithm's own local settings, with options checked against its own optimizer or that of all algorithms."""
    if own.optimizer is None and own.options is None:
        return own
    name = config.local.optimizer if own.optimizer is None else own.optimizer
    checked = _checked_optimizer(f"{path}.optimizer", f"{path}.options", name, own.options or {})
    return own if own.options is None else own.model_copy(update={"options": checked})


def _optimizer_options(local: Local) -> dict[str, Any]:
    return _checked_optimizer("local.optimizer", "local.options", local.optimizer, local.options)


def _checked_optimizer(path: str, options_path: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an optax optimizer with a learning rate, checked against the signature of its function."""
    import optax

    def takes_learning_rate(name: str) -> bool:
        found = None if name.startswith("_") else getattr(optax, name)
        return inspect.isfunction(found) and "learning_rate" in inspect.signature(found).parameters

    names = {name: getattr(optax, name) for name in dir(optax) if takes_learning_rate(name)}
    if name not in names:
        raise ConfigError(f"{path}: {unknown('optimizer', name, names)}")
    return checked_options(options_path, names[name], options, OFFERS["optimizer"])
