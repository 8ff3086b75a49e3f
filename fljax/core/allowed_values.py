"""What an annotation of a parameter allows: numbers, arrays, names, records and functions (``fljax.core.values``)."""

from __future__ import annotations

import math
import os
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import AbstractArray

from fljax.core.names import with_article
from fljax.core.signatures import is_record, parts_of


class Range(NamedTuple):
    """The numbers that a parameter allows: finite ones from ``least`` to ``most``.

    Attributes:
      least: no number is below it.
      most: no number is above it.
      above: whether ``least`` itself is refused.
      below: whether ``most`` itself is refused.
      infinite: whether infinite numbers are allowed.
      unknown: whether NaN is allowed, for what is not known.
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False
    infinite: bool = False
    unknown: bool = False

    def allows(self, x: np.ndarray) -> bool:
        """Whether all numbers are allowed."""
        inside = (x > self.least if self.above else x >= self.least) & (x < self.most if self.below else x <= self.most)
        fits = inside & (self.infinite | np.isfinite(x))
        return bool((fits | (self.unknown & np.isnan(x))).all())

    def words(self) -> str:
        """The range in a sentence; empty if it has no bounds."""
        if math.isinf(self.least) and math.isinf(self.most):
            return ""
        if math.isinf(self.most):
            return f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        if self.above or self.below:
            return f"in {'(' if self.above else '['}{self.least:g}, {self.most:g}{')' if self.below else ']'}"
        return f"from {self.least:g} to {self.most:g}"


ALL = Range()


class Allowed(NamedTuple):
    """What an annotation allows, in parts.

    Attributes:
      anything: whether it says nothing that can be checked.
      none: None.
      truth: True and False.
      number: one number; "whole": one whole number; None: neither.
      axes: of arrays of numbers: the least and the largest number of axes; None: no arrays.
      whole_entries: whether entries of arrays are whole numbers.
      sequences: whether arrays stand for sequences of Python's, whose whole entries shape the program.
      names: the names.
      records: the classes of NamedTuples.
      others: further classes, such as ``str``; functions are ``Callable``.
      bounds: of numbers and of entries of arrays.
    """

    anything: bool = False
    none: bool = False
    truth: bool = False
    number: Literal["any", "whole"] | None = None
    axes: tuple[int, float] | None = None
    whole_entries: bool = False
    sequences: bool = False
    names: tuple[str, ...] = ()
    records: tuple[Any, ...] = ()
    others: tuple[Any, ...] = ()
    bounds: Range = ALL


def allowed_by(annotation: Any, bounds: Range = ALL) -> Allowed:
    """What an annotation allows. A range inside one member of a union holds for all of them."""
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        return allowed_by(annotation, next((each for each in extras if isinstance(each, Range)), bounds))
    found = Allowed(bounds=bounds)
    for part in parts_of(annotation):
        inner = allowed_by(part, bounds) if typing.get_origin(part) is Annotated else _one(part)
        found = either(found, inner)
    return found


def either(first: Allowed, second: Allowed) -> Allowed:
    """What either allows; a number of any kind includes whole ones."""
    number = "any" if "any" in (first.number, second.number) else first.number or second.number
    axes = [each for each in (first.axes, second.axes) if each is not None]
    return Allowed(
        first.anything or second.anything,
        first.none or second.none,
        first.truth or second.truth,
        number,  # type: ignore[arg-type]
        (min(low for low, _ in axes), max(high for _, high in axes)) if axes else None,
        first.whole_entries or second.whole_entries,
        bool(axes) and all(each.sequences for each in (first, second) if each.axes is not None),
        first.names + second.names,
        first.records + second.records,
        first.others + second.others,
        first.bounds if second.bounds == ALL else second.bounds,
    )


_WHOLE = ("Int", "Integer", "UInt")


def _one(part: Any) -> Allowed:
    """What a member of a union allows."""
    origin, inside = typing.get_origin(part), typing.get_args(part)
    if part is None or part is type(None):
        return Allowed(none=True)
    if part is bool:
        return Allowed(truth=True)
    if part is int:
        return Allowed(number="whole")
    if part is float:
        return Allowed(number="any")
    if origin is Literal and all(isinstance(each, str) for each in inside):
        return Allowed(names=inside)
    if is_record(part):
        return Allowed(records=(part,))
    if part is str:
        return Allowed(others=(str,))
    if os.PathLike in (part, origin):
        return Allowed(others=(os.PathLike,))
    if Callable in (part, origin):
        return Allowed(others=(Callable,))
    if isinstance(part, type) and issubclass(part, AbstractArray):
        words = str(part.dim_str).split()
        some = sum(word.startswith(("*", "...")) for word in words)
        kind = getattr(part.dtype, "__name__", "")
        if kind in ("Bool", "Key"):
            return Allowed(anything=True)
        if not words:
            return Allowed(number="whole" if kind in _WHOLE else "any")
        return Allowed(axes=(len(words) - some, math.inf if some else len(words)), whole_entries=kind in _WHOLE)
    if origin is Sequence and inside and inside[0] is not Any:
        entry = _one(inside[0])
        if entry.number is not None:
            return Allowed(axes=(1, 1), whole_entries=entry.number == "whole", sequences=True)
        if entry.axes is not None:
            low, high = entry.axes
            return Allowed(axes=(low + 1, high + 1), whole_entries=entry.whole_entries, sequences=True)
        if inside[0] is str:
            return Allowed(others=(Sequence,))
    return Allowed(anything=True)


def words(allowed: Allowed) -> str:
    """What is allowed, for a sentence: ``one number from 0 to 1 or None``."""
    bounds = f" {text}" if (text := allowed.bounds.words()) else ""
    said = allowed.bounds.infinite or allowed.bounds.unknown or math.isfinite(allowed.bounds.most)
    finite = "" if said else "finite "
    one = "a whole number" if allowed.number == "whole" else f"one {finite}number"
    found = [f"{one}{bounds}"] if allowed.number else []
    if allowed.axes is not None:
        low, high = allowed.axes
        axes = f"{low:g}" if low == high else f"{low:g} or more" if math.isinf(high) else f"{low:g} or {high:g}"
        entries = f"{'whole ' if allowed.whole_entries else finite}numbers{bounds}"
        found.append(f"an array of {entries} with {axes} {'axis' if axes == '1' else 'axes'}")
    found += [*allowed.names]
    found += ["True", "False"] if allowed.truth else []
    found += [with_article(each.__name__) for each in allowed.records]
    found += [_WORDS[each] for each in dict.fromkeys(allowed.others)]
    found += ["None"] if allowed.none else []
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]


_WORDS = {str: "text", os.PathLike: "a path", Callable: "a function", Sequence: "a list of names"}
