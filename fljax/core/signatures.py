"""What the signatures of builders say: the types of options, and which options are records.

Hyper-parameters that belong together are one NamedTuple (IP-FL's ``Tokens``). A parameter annotated with one is a table
in a config: its keys are checked as options are, and a Config holds the table.
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal


def plain_type(annotation: Any) -> Any:
    """The annotation if TOML has such values (numbers, text, booleans, literals, lists, their unions), else Any.

    A NamedTuple becomes a table of any values.
    """
    plain, foreign = [], False
    for part in parts_of(annotation):
        if is_record(part):
            plain.append(dict[str, Any])
        elif part in (None, type(None), float, int, str, bool) or typing.get_origin(part) in (Literal, Sequence):
            plain.append(part)
        elif not _has_no_value_in_toml(part):
            foreign = True  # such as a mapping: its values cannot be checked here
    if foreign or all(part in (None, type(None)) for part in plain):
        return Any
    return typing.Union[tuple(plain)]  # noqa: UP007 - built at run time


def record_of(annotation: Any) -> type[tuple] | None:
    """The first NamedTuple in an annotation; None if there is none."""
    return next((part for part in parts_of(annotation) if is_record(part)), None)


def parts_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; an annotation that is none is its own only member."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def is_record(annotation: Any) -> bool:
    """Whether an annotation is the class of a NamedTuple."""
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def _has_no_value_in_toml(annotation: Any) -> bool:
    """Whether a type is that of arrays (a number that may be traced) or of functions, which only Python can give."""
    import jax  # imported here, since reading a config's keys does not need it
    from jaxtyping import AbstractArray

    if collections.abc.Callable in (annotation, typing.get_origin(annotation)):
        return True
    return isinstance(annotation, type) and issubclass(annotation, jax.Array | AbstractArray)


# Names that modules often import only for type checkers, and that do not exist in the modules at run time.
_ARRAYS = ("Array", "Bool", "Float", "Inexact", "Int", "Integer", "Num", "Real", "Shaped")


def annotations_of(builder: Callable[..., Any], *, extras: bool = False) -> dict[str, Any]:
    """The annotations of a builder's parameters; Any for an annotation that cannot be resolved.

    Args:
      builder: a function, or the class of a NamedTuple.
      extras: whether ``Annotated`` is kept.
    """
    import jaxtyping

    function = inspect.unwrap(getattr(builder, "func", builder))
    usual = {**vars(typing), **vars(collections.abc), **{name: getattr(jaxtyping, name) for name in _ARRAYS}}
    module = sys.modules.get(function.__module__)  # None: a class from a pickle, or of a module that is not registered
    own = vars(module) if is_record(function) and module is not None else getattr(function, "__globals__", {})
    names = {**usual, **own}

    def resolved(annotation: Any) -> Any:
        holder = types.SimpleNamespace(__annotations__={"annotation": annotation})
        try:
            return typing.get_type_hints(holder, names, include_extras=extras)["annotation"]
        except Exception:  # a user's annotation may raise anything
            return Any

    parameters = inspect.signature(builder).parameters.values()
    return {each.name: Any if each.annotation is each.empty else resolved(each.annotation) for each in parameters}
