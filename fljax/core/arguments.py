"""Arguments of builders by parameter name: an experiment offers values, and a builder receives those it has names for.

Builders are algorithms, scenarios, models, data sets, partitions and measures of contributions.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any


def is_whole(value: object) -> bool:
    """Whether a value that a user gives is a whole number of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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
