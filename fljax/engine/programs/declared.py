"""Normalises plans so that equal plans share a program: declared types of numbers, one object for equal partials."""

from __future__ import annotations

import functools
import numbers
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import AbstractArray

from fljax.core.signatures import annotations_of
from fljax.protocol import Algorithm, Task

_PARTIALS: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def as_declared(build: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a builder, with whole numbers as floats where its parameters are annotated as floats.

    A float is traced and an int is static, so ``threshold=1`` and ``threshold=1.0`` would be two programs. Lists of
    numbers become arrays, whose entries are traced, if the annotation allows an array. Fields of NamedTuples among the
    arguments, such as ``Local``, follow their own annotations.
    """
    declared = _declared(build)
    return {name: _converted(value, declared.get(name, _NOTHING)) for name, value in arguments.items()}


# What an annotation allows, also as entries: "float", "whole" (numbers) and "array".
_Kinds = frozenset[str]
_NOTHING: _Kinds = frozenset()


def _declared(build: Callable[..., Any]) -> dict[str, _Kinds]:
    """What the parameters of a builder, or of a NamedTuple's constructor, allow."""
    try:
        return {name: _kinds(annotation) for name, annotation in annotations_of(build).items()}
    except (TypeError, ValueError):  # not every callable has a signature
        return {}


def _kinds(annotation: Any, outer: tuple[Any, ...] = ()) -> _Kinds:
    """``outer``: the aliases of ``type`` statements that this annotation is a part of, which may have themselves."""
    if annotation is float or annotation is int:
        return frozenset(["float" if annotation is float else "whole"])
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        entries = {"Float": ["float"], "Int": ["whole"]}.get(getattr(annotation.dtype, "__name__", ""), [])
        return frozenset(["array", *entries])
    kind = typing.get_origin(annotation) or annotation
    if kind is jax.Array or hasattr(kind, "__array__"):  # also NumPy's, and what NumPy makes arrays of
        return frozenset(["array"])
    if hasattr(kind, "__value__"):  # ``type Alias = ...``, as NumPy's ArrayLike is in newer Pythons
        return _NOTHING if kind in outer else _kinds(kind.__value__, (*outer, kind))
    inside = () if kind in (Literal, Callable) else typing.get_args(annotation)
    return _NOTHING.union(*(_kinds(part, outer) for part in inside))


def _converted(value: Any, kinds: _Kinds) -> Any:
    is_float = "float" in kinds and "whole" not in kinds
    if isinstance(value, Task):
        return value
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        declared = _declared(type(value))
        pairs = zip(fields, value, strict=True)
        return type(value)(*(_converted(part, declared.get(name, _NOTHING)) for name, part in pairs))
    if isinstance(value, Mapping):
        return {name: _converted(part, kinds) for name, part in value.items()}
    if isinstance(value, tuple | list) and "array" in kinds:
        array = _as_array(value)
        if array is not None:
            return array.astype(float) if array.dtype.kind in "iu" and is_float else array
        kinds = kinds - {"array"}  # its entries are not arrays themselves
    if isinstance(value, tuple | list):
        return type(value)(_converted(part, kinds) for part in value)
    whole = not isinstance(value, bool) and isinstance(value, numbers.Integral)
    return float(value) if whole and is_float else value


def _as_array(value: Any) -> np.ndarray | None:
    """A (nested, regular) list of numbers as an array; None for anything else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):
        return None
    return array if array.dtype.kind in "biuf" and array.size else None


def share_partials(tree: Any) -> Any:
    """``tree`` with each ``functools.partial`` replaced by the first equal partial so far, also inside tasks."""
    # Python and JAX compare partials by identity, so equal partials would be separate programs.
    if isinstance(tree, Task):
        return Task(*map(_first, tree))
    return jax.tree.map(
        lambda node: share_partials(node) if isinstance(node, Task) else _first(node),
        tree,
        is_leaf=lambda node: isinstance(node, Task),
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


class _Traced:
    """The mark of a traced leaf in a Spec. There is one instance, which pickle finds by name."""

    def __reduce__(self) -> str:
        return "TRACED"


TRACED = _Traced()


class FixedBuilder:
    """A builder that returns a given algorithm; hashed by the identity of the algorithm's functions."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def __call__(self) -> Algorithm:
        return self.algorithm

    def __hash__(self) -> int:
        return hash(self.algorithm)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedBuilder) and self.algorithm == other.algorithm
