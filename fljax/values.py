"""Values that users give to builders, checked by the annotations of their parameters.

``@checked`` on a builder (an algorithm, a scenario, a partition) refuses, in one sentence, each value that the
annotation of its parameter does not allow:

- ``float``, and ``float | Float[Array, ""]``, is one finite number of Python, NumPy or JAX, and no bool;
- ``int`` is one whole number, which 2.0 is not;
- ``Real[AnyArray, " N"]`` and ``Sequence[float]`` are finite numbers with as many axes;
- ``Literal["a", "b"]`` is one of its names, ``bool`` is True or False;
- fields of a NamedTuple, such as ``Local``, are checked by their own annotations;
- ``Annotated[..., Range(0, 1)]`` bounds all numbers inside.

Of traced values, the shape and the dtype are checked alone. NumPy's numbers, and JAX's where a whole number is asked
for, become Python's. A parameter with another annotation, or with none, takes anything.

Floor 0: imports ``arguments``, ``signatures`` and ``naming`` only.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, Array, Float

from fljax.arguments import parameters_of, takes_anything
from fljax.naming import nearest, shown, unknown
from fljax.signatures import annotations_of, is_record, parts_of

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Range(NamedTuple):
    """The numbers that a parameter allows: finite ones from ``least`` to ``most``.

    Attributes:
      least: no number is below it.
      most: no number is above it.
      above: whether ``least`` itself is refused.
      below: whether ``most`` itself is refused.
      infinite: whether infinity is allowed.
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
        fits = inside & (np.isfinite(x) | (self.infinite & (x == math.inf)))
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
# Numbers as annotations of parameters. Those that may be floats may be traced.
Number = Annotated[float | Float[Array, ""], ALL]
Positive = Annotated[float | Float[Array, ""], Range(0, above=True)]
NonNegative = Annotated[float | Float[Array, ""], Range(0)]
Share = Annotated[float | Float[Array, ""], Range(0, 1)]
PositiveFloat = Annotated[float, Range(0, above=True)]
# Losses and thresholds: NaN for a client without rows, infinite where a model has diverged or everything will do.
LOSSES = Range(infinite=True, unknown=True)
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]


class Allowed(NamedTuple):
    """What an annotation allows, in parts.

    Attributes:
      anything: whether it says nothing that can be checked.
      none: None.
      truth: True and False.
      number: one number; "whole": one whole number; None: neither.
      axes: of arrays of numbers: the least and the largest number of axes; None: no arrays.
      whole_entries: whether entries of arrays are whole numbers.
      names: the names.
      record: the class of a NamedTuple.
      others: further classes, such as ``str``; functions are ``Callable``.
      bounds: of numbers and of entries of arrays.
    """

    anything: bool = False
    none: bool = False
    truth: bool = False
    number: Literal["any", "whole"] | None = None
    axes: tuple[int, float] | None = None
    whole_entries: bool = False
    names: tuple[str, ...] = ()
    record: Any = None
    others: tuple[Any, ...] = ()
    bounds: Range = ALL


def checked(build: Callable[_P, _R]) -> Callable[_P, _R]:
    """The builder, which refuses values that its annotations do not allow (see the top of this module).

    Raises:
      ValueError: by the builder, also for a parameter that it does not have: ``expected mu to be one finite number
        of at least 0, got [0.1, 0.2]``.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def builder(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            valid = parameters_of(build)
            for each in () if takes_anything(build) else named:
                if each not in valid:
                    raise ValueError(f"{unknown('parameter', each, valid)} of {build.__name__}") from None
            return build(*given, **named)  # Python's own error names the builder and the parameter
        allowed = allowances(builder)
        for name, value in bound.arguments.items():
            if name in allowed:  # not *arguments and **options
                bound.arguments[name] = admitted(name, value, allowed[name])
        return build(*bound.args, **bound.kwargs)

    setattr(builder, _MARK, True)
    return builder


_MARK = "__fljax_checked__"


def is_checked(build: Callable[..., Any]) -> bool:
    """Whether a builder, or what it wraps, is ``checked``."""
    while not hasattr(build, _MARK) and hasattr(build, "__wrapped__"):
        build = build.__wrapped__
    return hasattr(build, _MARK)


@functools.cache
def allowances(build: Callable[..., Any]) -> dict[str, Allowed]:
    """What each parameter of a builder, or each field of a NamedTuple, allows."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, each in inspect.signature(build).parameters.items() if each.kind in kinds]
    found = annotations_of(build, extras=True)
    return {name: allowed_by(found[name]) for name in names}


def allowed_by(annotation: Any, bounds: Range = ALL) -> Allowed:
    """What an annotation allows. A range inside one member of a union holds for all of them."""
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        return allowed_by(annotation, next((each for each in extras if isinstance(each, Range)), bounds))
    found = Allowed(bounds=bounds)
    for part in parts_of(annotation):
        inner = allowed_by(part, bounds) if typing.get_origin(part) is Annotated else _one(part)
        found = _both(found, inner)
    return found


def _both(first: Allowed, second: Allowed) -> Allowed:
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
        first.names + second.names,
        first.record or second.record,
        first.others + second.others,
        first.bounds if second.bounds == ALL else second.bounds,
    )


def _one(part: Any) -> Allowed:
    """What a member of a union allows."""
    origin, inside = typing.get_origin(part), typing.get_args(part)
    if part is None or part is type(None):
        return Allowed(none=True)
    if part is bool:
        return Allowed(truth=True)
    if part is int:
        return Allowed(number="whole")
    if part is float or part is Array:
        return Allowed(number="any")
    if origin is Literal and all(isinstance(each, str) for each in inside):
        return Allowed(names=inside)
    if is_record(part):
        return Allowed(record=part)
    if part is str:
        return Allowed(others=(str,))
    if os.PathLike in (part, origin):
        return Allowed(others=(os.PathLike,))
    if Callable in (part, origin):
        return Allowed(others=(Callable,))
    if isinstance(part, type) and issubclass(part, AbstractArray):
        words = str(part.dim_str).split()
        some = sum(word.startswith(("*", "...")) for word in words)
        if not words:
            return Allowed(number="any")
        return Allowed(axes=(len(words) - some, math.inf if some else len(words)))
    if origin is Sequence and inside and inside[0] is not Any:
        entry = _one(inside[0])
        if entry.number is not None:
            return Allowed(axes=(1, 1), whole_entries=entry.number == "whole")
        if entry.axes is not None:
            return Allowed(axes=(entry.axes[0] + 1, entry.axes[1] + 1), whole_entries=entry.whole_entries)
        if inside[0] is str:
            return Allowed(others=(Sequence,))
    return Allowed(anything=True)


def admitted(name: str, value: Any, allowed: Allowed) -> Any:
    """The value as a builder gets it.

    Args:
      name: that of the parameter, for the error.
      value: what the user gave.
      allowed: what the parameter allows.

    Raises:
      ValueError: if the value is not allowed.
    """
    if allowed.record is not None and isinstance(value, allowed.record):
        return _admitted_fields(name, value)
    if allowed.anything or (value is None and allowed.none):
        return value
    if isinstance(value, str):
        if value in allowed.names or str in allowed.others:
            return value
        close = nearest(value, allowed.names)
        raise _refused(name, value, allowed, f" (did you mean {close!r}?)" if close is not None else "")
    if isinstance(value, bool | np.bool_):
        if allowed.truth:
            return bool(value)
        raise _refused(name, value, allowed)
    if isinstance(value, numbers.Number) or hasattr(value, "dtype") or isinstance(value, list | tuple | range):
        return _admitted_numbers(name, value, allowed)
    kinds = tuple(each for each in allowed.others if each is not Callable)
    if (Callable in allowed.others and callable(value)) or (kinds and isinstance(value, kinds)):
        return value
    raise _refused(name, value, allowed)


def _admitted_fields(name: str, record: Any) -> Any:
    """The record itself, or one with numbers of Python in place of NumPy's."""
    allowed = allowances(type(record))
    values = {each: getattr(record, each) for each in record._fields}
    found = {each: admitted(f"{name}.{each}", value, allowed[each]) for each, value in values.items()}
    changed = {each: value for each, value in found.items() if value is not values[each]}
    return record._replace(**changed) if changed else record


def _admitted_numbers(name: str, value: Any, allowed: Allowed) -> Any:
    """One number or several, traced or not."""
    if isinstance(value, list | tuple) and Sequence in allowed.others and all(isinstance(each, str) for each in value):
        return value
    found = _concrete(value)
    if found is None:  # traced: its numbers are unknown
        array = jnp.asarray(value)  # a list may hold traced numbers
        axes = array.ndim
        if not jnp.iscomplexobj(array) and _fits(axes, allowed) and not (axes == 0 and allowed.number == "whole"):
            return value
        raise _refused(name, value, allowed)
    kind = found.dtype.kind
    if kind not in "biuf" or not _fits(found.ndim, allowed):
        raise _refused(name, value, allowed)
    whole = allowed.whole_entries if found.ndim else allowed.number == "whole"
    if (whole and kind not in "iu") or (found.ndim == 0 and kind == "b"):
        raise _refused(name, value, allowed)
    if not allowed.bounds.allows(found.astype(float) if kind in "bf" else found):
        raise _refused(name, value, allowed)
    if found.ndim == 0 and (whole or isinstance(value, np.generic | np.ndarray)):
        return found.item()
    return value


def check_flags(name: str, array: Any) -> None:
    """Raises a ValueError if an array holds anything but zeros and ones; traced numbers are not checked."""
    found = _concrete(array)
    if found is not None and not (wrong := found[(found != 0) & (found != 1)]).size == 0:
        raise ValueError(f"expected {name} to hold zeros and ones, got {wrong[0]}")


def as_number(value: Any) -> float | None:
    """A number of Python, NumPy or JAX as a float; None for all other values, bools and traced numbers included."""
    if isinstance(value, str | bytes | bool | list | tuple):
        return None
    found = _concrete(value)
    return float(found) if found is not None and found.ndim == 0 and found.dtype.kind in "iuf" else None


def as_whole(value: Any) -> int | None:
    """A whole number of Python, NumPy or JAX; None for all other values, 2.0, bools and traced numbers included."""
    if isinstance(value, str | bytes | bool | list | tuple):
        return None
    found = _concrete(value)
    return int(found) if found is not None and found.ndim == 0 and found.dtype.kind in "iu" else None


def _concrete(value: Any) -> np.ndarray | None:
    """The numbers of a value; None if some are traced. Of a ragged list, an array of objects."""
    try:
        found = np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None
    except (TypeError, ValueError):
        return np.empty((), object)
    narrow = found.dtype.kind == "V" and jnp.issubdtype(found.dtype, jnp.floating)  # bfloat16, which NumPy lacks
    return found.astype(np.float32) if narrow else found


def _fits(axes: int, allowed: Allowed) -> bool:
    """Whether so many axes are allowed; no axis is one number."""
    if axes == 0:
        return allowed.number is not None
    return allowed.axes is not None and allowed.axes[0] <= axes <= allowed.axes[1]


def _refused(name: str, value: Any, allowed: Allowed, question: str = "") -> ValueError:
    return ValueError(f"expected {name} to be {words(allowed)}, got {_shown(value)}{question}")


def _shown(value: Any) -> str:
    if _concrete(value) is None:
        return f"a traced array of shape {jnp.asarray(value).shape}"
    return shown(value.tolist() if isinstance(value, np.ndarray | jax.Array) else value)


def words(allowed: Allowed) -> str:
    """What is allowed, for a sentence: ``one number from 0 to 1 or None``."""
    bounds = f" {text}" if (text := allowed.bounds.words()) else ""
    said = allowed.bounds.infinite or allowed.bounds.unknown or math.isfinite(allowed.bounds.most)
    finite = "" if said else "finite "
    one = "a whole number" if allowed.number == "whole" else f"one {finite}number"
    found = [f"{one}{bounds}"] if allowed.number else []
    if allowed.axes is not None:
        low, high = allowed.axes
        axes = f"{low:g}" if low == high else f"at least {low:g}" if math.isinf(high) else f"{low:g} or {high:g}"
        entries = f"{'whole ' if allowed.whole_entries else finite}numbers{bounds}"
        found.append(f"an array of {entries} with {axes} {'axis' if axes == '1' else 'axes'}")
    found += [*allowed.names]
    found += ["True", "False"] if allowed.truth else []
    found += [f"a {allowed.record.__name__}"] if allowed.record is not None else []
    found += [_WORDS[each] for each in dict.fromkeys(allowed.others)]
    found += ["None"] if allowed.none else []
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]


_WORDS = {str: "text", os.PathLike: "a path", Callable: "a function", Sequence: "a list of names"}
