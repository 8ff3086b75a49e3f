"""Arguments of builders by parameter name: an experiment offers values, and a builder receives those it has names for.

Builders are algorithms, scenarios, models, data sets, partitions and measures of contributions.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


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


def with_old_names(
    names: Mapping[str, str | Callable[[Any], Mapping[str, Any]]],
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator of builders that accepts old names of keywords too, each with a DeprecationWarning.

    Args:
      names: by old name the new one, dotted for a field of a parameter that is a NamedTuple (``"tokens.price"``); or a
        function from the old value to values by new name. If several give a value to one new name, the last one counts.

    Returns:
      The decorator. Signatures, and so type checkers and configs, show the new names alone.
    """

    def decorate(build: Callable[_P, _R]) -> Callable[_P, _R]:
        inner: Callable[..., _R] = build

        @functools.wraps(build)
        def builder(*given: _P.args, **named: _P.kwargs) -> _R:
            return inner(*given, **with_current_names(inner, named, names))

        setattr(builder, _OLD_NAMES, names)
        return builder

    return decorate


_OLD_NAMES = "__fljax_old_names__"


def with_current_names(
    build: Callable[..., Any],
    given: Mapping[str, Any],
    names: Mapping[str, str | Callable[[Any], Mapping[str, Any]]] | None = None,
    *,
    table: str | None = None,
) -> dict[str, Any]:
    """The arguments of a builder with old names replaced by new ones, each with a DeprecationWarning.

    An argument whose old name is a parameter still has that name only if its value is no record, that is no NamedTuple
    and no mapping.

    Args:
      build: the builder.
      given: its arguments by name.
      names: as for ``with_old_names``; None: those of the builder, if it has any.
      table: the path of the arguments in a config, where records are tables; None: records are NamedTuples, and one
        that is not given starts from the parameter's default.

    Raises:
      ValueError: if a value is given by an old and by a new name.
    """
    names = getattr(build, _OLD_NAMES, {}) if names is None else names
    found = dict(given)
    if not names:
        return found
    parameters = inspect.signature(build).parameters
    moved: dict[str, tuple[str, Any]] = {}  # by new name: old name and value
    prefix = getattr(build, "__name__", "") if table is None else table
    for old, move in names.items():
        if old not in found or (old in parameters and isinstance(found[old], Mapping | tuple)):
            continue
        value = found.pop(old)
        places = {move: value} if isinstance(move, str) else move(value)
        now = " and ".join(f"{prefix}.{place}" for place in places)
        words = f"{prefix}.{old} is {now} now" if now else f"{prefix}.{old} has no effect"
        warnings.warn(f"{words}; the old name goes with the next version", DeprecationWarning, stacklevel=3)
        moved |= {place: (old, value) for place, value in places.items()}
    current = dict(found)
    for place, (old, value) in moved.items():
        name, _, field = place.partition(".")
        before = found.get(name, {})
        if name in found and (table is None or not field or not isinstance(before, Mapping) or field in before):
            raise ValueError(f"expected one of {old} and {name if table is None else place}, got both")
        if not field:
            current[name] = value
        elif table is None:
            current[name] = current.get(name, parameters[name].default)._replace(**{field: value})
        else:
            current[name] = {**current.get(name, {}), field: value}
    return current
