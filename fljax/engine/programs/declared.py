"""Normalises plans so that equal plans share a program: declared types of numbers, one object for equal partials.

Whole numbers become floats where floats are declared, and equal partials become one function.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fljax.core.arguments import with_current_names
from fljax.core.signatures import annotations_of
from fljax.protocol import Task

_FLOAT = re.compile(r"(?<!\w)(float\b|Float\[)")
_INTEGER = re.compile(r"(?<!\w)(int\b|Int\[)")
_PARTIALS: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def as_declared(build: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a builder, with whole numbers as floats where its parameters are annotated as floats.

    A float is traced and an int is static, so ``threshold=1`` and ``threshold=1.0`` would be two programs. Lists of
    numbers become arrays, whose entries are traced, if the annotation allows an array. Fields of NamedTuples among the
    arguments, such as ``Local``, follow their own annotations.
    """
    arguments = with_current_names(build, arguments)
    annotations = _annotations(build)
    return {name: _converted(value, annotations.get(name)) for name, value in arguments.items()}


def _converted(value: Any, annotation: Any) -> Any:
    if isinstance(value, Task):
        return value
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        own = _annotations(type(value))
        pairs = zip(fields, value, strict=True)
        return type(value)(*(_converted(each, own.get(name)) for name, each in pairs))
    if isinstance(value, Mapping):
        return {name: _converted(each, annotation) for name, each in value.items()}
    if isinstance(value, tuple | list) and "Array" in _text(annotation):
        array = _as_array(value)
        if array is not None:
            return array.astype(float) if array.dtype.kind in "iu" and _is_float(annotation) else array
        annotation = "float" if _is_float(annotation) else None  # its entries are not arrays themselves
    if isinstance(value, tuple | list):
        return type(value)(_converted(each, annotation) for each in value)
    whole = not isinstance(value, bool) and isinstance(value, numbers.Integral)
    return float(value) if whole and _is_float(annotation) else value


def _annotations(build: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a builder or of a NamedTuple's constructor; their text, where it cannot be resolved."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):  # not every callable has a signature
        return {}
    known = annotations_of(build)
    return {name: each.annotation if known[name] is Any else known[name] for name, each in parameters.items()}


def _is_float(annotation: Any) -> bool:
    """Whether an annotation allows a float but not a whole number."""
    text = _text(annotation)
    return bool(_FLOAT.search(text)) and not _INTEGER.search(text)


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else repr(annotation)


def _as_array(value: Any) -> np.ndarray | None:
    """A (nested, regular) list of numbers as an array; None for anything else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):
        return None
    return array if array.dtype.kind in "biuf" and array.size else None


def share_partials(tree: Any) -> Any:
    """``tree`` with each ``functools.partial`` replaced by the first equal partial so far, also inside tasks.

    Python and JAX compare partials by identity, so equal partials would be separate programs.
    """
    if isinstance(tree, Task):
        return Task(*map(_first, tree))
    return jax.tree.map(
        lambda each: share_partials(each) if isinstance(each, Task) else _first(each),
        tree,
        is_leaf=lambda each: isinstance(each, Task),
    )


def _first(function: Any) -> Any:
    if type(function) is not functools.partial:
        return function
    keywords = tuple(sorted(function.keywords.items()))
    try:
        return _PARTIALS.setdefault(_typed((_first(function.func), function.args, keywords)), function)
    except TypeError:  # a partial with an unhashable argument, such as an array, is not shared
        return function


def _typed(value: Any) -> Any:
    """A key in which 1, 1.0 and True differ."""
    inner = tuple(map(_typed, value)) if isinstance(value, tuple) else _first(value)
    return type(value), inner
