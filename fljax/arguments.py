"""Builders get what they have parameters for: what an experiment offers them by name, and how it is handed over.

Floor 0: imports the standard library only. Algorithms, scenarios, models, data sets, partitions and measures of
contributions are functions that ask for what they need by the names of their parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# What measures of contributions may ask for.
FACTS = ("size", "population", "standalone_accuracy", "standalone_loss")


class Offer(NamedTuple):
    """What an experiment gives to one kind of builder, so that it is no option of a config.

    Attributes:
      positional: how many arguments are given by position.
      named: which others are given to builders that have a parameter of that name.
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


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that can be given by keyword, by name; ``**options`` is none of them."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds}


def takes_anything(function: Callable[..., Any]) -> bool:
    """Whether the function has ``**options``, so that every keyword may be given."""
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether the function can be given an argument of this name."""
    return name in parameters_of(function) or takes_anything(function)


def is_required(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has a parameter of this name that cannot be left out."""
    parameter = parameters_of(function).get(name)
    return parameter is not None and parameter.default is parameter.empty


def arguments_for(
    function: Callable[..., Any], offered: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What of ``offered`` the function has parameters for, and all that is ``given``, which wins."""
    names = parameters_of(function)
    return {name: value for name, value in offered.items() if name in names} | dict(given or {})


def argument_of(function: Callable[..., Any], given: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """An argument as it is given, or the parameter's default, or ``otherwise`` where there is no such parameter."""
    parameters = parameters_of(function)
    return given.get(name, parameters[name].default if name in parameters else otherwise)
