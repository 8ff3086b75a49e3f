"""Options of a config as arguments of builders: the forms that TOML has for values end here.

Tables become NamedTuples (``builder_arguments``), the server's optimizer ``fljax.training.OptimizerSettings``, a
contribution ``fljax.contributions.Measure``. ``fljax.experiments.inputs.setup`` calls this, and itself makes a ``ByF1``
of the initial clustering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fljax.config.errors import ConfigError
from fljax.config.keys import Config, Contribution
from fljax.core.names import resolve
from fljax.core.signatures import annotations_of, record_of


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
    found = {name: value for name, value in options.items() if name != "clustering"}
    shaped = {name: form(found.pop(name)) for name, form in _FORMS.items() if name in found}
    return builder_arguments(builder, found) | shaped


def check_requirement(config: Config, imports: bool) -> None:
    """Raises a ConfigError if ``requirement`` has another number of clients, or its function cannot be imported."""
    table = config.requirement
    if table is None:
        return
    if isinstance(table.value, tuple) and len(table.value) != config.data.clients:
        raise ConfigError(
            f"requirement.value: expected a number for each of {config.data.clients} clients, got {len(table.value)}"
        )
    if table.function is not None:
        path = f"requirement.function: expected an import path 'module:name' of a function, got {table.function!r}"
        if ":" not in table.function:
            raise ConfigError(path)
        try:
            found = resolve(table.function, {}, "function", imports=imports)
        except ValueError as error:
            raise ConfigError(f"requirement.function: {error}") from error.__cause__
        if not callable(found):
            raise ConfigError(path)


def requirement_arguments(config: Config) -> dict[str, Any] | None:
    """The table ``requirement``, which was checked, as arguments of ``fljax.Requirement``; None if there is none."""
    table = config.requirement
    if table is None:
        return None
    function = None if table.function is None else resolve(table.function, {}, "function")
    return {**table.model_dump(), "function": function}


def _optimizer(chosen: Any) -> Any:
    """A name, or a name with options as an OptimizerSettings."""
    from fljax.training import OptimizerSettings  # imported here, since reading a config's keys does not need JAX

    if not isinstance(chosen, Mapping):
        return chosen
    options = sorted((name, value) for name, value in chosen.items() if name != "name")
    return OptimizerSettings(chosen["name"], tuple(options))


def _contribution(chosen: Any) -> Any:
    """A list of numbers, or the Measure that a name or a table chooses: a function, or a file of contributions."""
    from fljax.contributions import CONTRIBUTIONS, Measure

    if not isinstance(chosen, str | Mapping):
        return chosen
    table = Contribution.model_validate({"name": chosen} if isinstance(chosen, str) else chosen)
    if table.file is not None:
        return Measure(**dict(table))
    function = resolve(table.name, CONTRIBUTIONS, "contribution")
    return Measure(**{**dict(table), "options": builder_arguments(function, table.options)})


_FORMS: Mapping[str, Callable[[Any], Any]] = {"server_optimizer": _optimizer, "contribution": _contribution}
