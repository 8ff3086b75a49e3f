"""Arguments of builders by parameter name: an experiment offers values, and a builder receives those it has names for.

Floor 0: imports the standard library only. Builders are algorithms, scenarios, models, data sets, partitions and
measures of contributions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# The arguments that measures of contributions may have.
FACTS = ("size", "population", "standalone_accuracy", "standalone_loss")


class Offer(NamedTuple):
    """The arguments that an experiment gives to one kind of builder; they are not options of a config.

    Attributes:
      positional: the number of arguments given by position.
      named: further arguments, given to builders that have a parameter of that name.
    """

    positional: int = 0
    named: frozenset[str] = frozenset()


OFFERS: Mapping[str, Offer] = {
    "algorithm": Offer(
        0,
        frozenset({"task", "local", "contribution", "clustering", "reference", "threshold", "clients_per_round"}),
    ),
    "scenario": Offer(
        1, frozenset({"learning_rate", "batch_size", "threshold", "contribution", "reference", "baseline"})
    ),
    "dataset": Offer(0, frozenset({"clients", "unseen", "seed", "folder"})),
    "partition": Offer(1, frozenset({"clients", "unseen", "seed", "owner", "classes"})),
    "contribution": Offer(0, frozenset(FACTS)),
    "model": Offer(2, frozenset({"prepare", "dtype", "vocabulary"})),
    "optimizer": Offer(1),
}


def is_whole(value: object) -> bool:
    """Whether a value that a user gives is a whole number of Python, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The function's keyword parameters, by name, without ``**options``."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds}


def takes_anything(function: Callable[..., Any]) -> bool:
    """Whether the function has ``**options`` and so accepts any keyword."""
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether the function accepts a keyword argument of this name."""
    return name in parameters_of(function) or takes_anything(function)


def is_required(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has a parameter of this name without a default."""
    parameter = parameters_of(function).get(name)
    return parameter is not None and parameter.default is parameter.empty


def arguments_for(
    function: Callable[..., Any], offered: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The subset of ``offered`` that ``function`` has parameters for, overridden and extended by ``given``."""
    names = parameters_of(function)
    return {name: value for name, value in offered.items() if name in names} | dict(given or {})


def argument_of(function: Callable[..., Any], given: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """The given argument, or the parameter's default, or ``otherwise`` if the function has no such parameter."""
    parameters = parameters_of(function)
    return given.get(name, parameters[name].default if name in parameters else otherwise)
