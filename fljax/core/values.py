"""Values that users give to builders, checked by the annotations of their parameters (``@checked``).

- ``float`` is one finite number and no bool, ``int`` a whole one, which 2.0 is not; NumPy's numbers become Python's;
- ``Real[AnyArray, " N"]`` and ``Sequence[float]`` are finite numbers with as many axes;
- ``Annotated[..., Range(0, 1)]`` bounds all numbers inside, and ``Annotated[..., LABELS]`` alone allows labels, since
  values are taken by place;
- fields of a NamedTuple are checked by their own annotations; traced values by shape and dtype alone.

A builder receives those values of an experiment that it has parameter names for (``arguments_for``). A parameter
annotated with a NamedTuple (IP-FL's ``Tokens``) is a table in a config, whose keys are checked as options are.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import numbers
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, Array, Float

from fljax.core.names import check_unlabelled, did_you_mean, plain, shown, unknown, with_article

# --- Parameters ----------------------------------------------------------------------------------------------


def is_whole(value: object) -> bool:
    """Whether a value that a user gives is a whole number of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The function's keyword parameters, by name, without ``**options``."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: entry for name, entry in inspect.signature(function).parameters.items() if entry.kind in kinds}


def takes_anything(function: Callable[..., Any]) -> bool:
    """Whether the function has ``**options`` and so accepts any keyword."""
    return any(entry.kind is entry.VAR_KEYWORD for entry in inspect.signature(function).parameters.values())


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


# --- Annotations ---------------------------------------------------------------------------------------------


def plain_type(annotation: Any) -> Any:
    """The annotation if TOML has such values, else Any; a NamedTuple becomes a table; numbers by client may be one."""
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
    plain += [dict[str, Any]] if is_by_client(annotation) else []
    return typing.Union[tuple(plain)]  # noqa: UP007 - built at run time


def record_of(annotation: Any) -> type[tuple] | None:
    """The first NamedTuple in an annotation; None if there is none."""
    return next((part for part in parts_of(annotation) if is_record(part)), None)


def parts_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; an annotation that is none is its own only member."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def is_by_client(annotation: Any) -> bool:
    """Whether arrays of an annotation have clients, ``N``, as their last axis."""
    arrays = [part for part in parts_of(annotation) if isinstance(part, type) and issubclass(part, AbstractArray)]
    return any(part.dim_str.split()[-1:] == ["N"] for part in arrays)


def is_record(annotation: Any) -> bool:
    """Whether an annotation is the class of a NamedTuple."""
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def _has_no_value_in_toml(annotation: Any) -> bool:
    """Whether a type is that of arrays (a number that may be traced) or of functions, which only Python can give."""
    import jax  # imported here, since reading a config's keys does not need it

    if Callable in (annotation, typing.get_origin(annotation)):
        return True
    return isinstance(annotation, type) and issubclass(annotation, jax.Array | AbstractArray)


# Names that modules often import only for type checkers, and that do not exist in the modules at run time.
_ARRAYS = ("Array", "Bool", "Float", "Inexact", "Int", "Integer", "Num", "Real", "Shaped")


def annotations_of(builder: Callable[..., Any], *, extras: bool = False) -> dict[str, Any]:
    """The annotations of a builder's parameters, with ``Annotated`` if ``extras``; Any if it cannot be resolved."""
    if is_definition(builder):
        try:
            return dict(_resolved_annotations(builder, extras, code_of(builder)))
        except Exception:  # a user's annotation may raise anything, and may be resolved later
            pass
    resolve = _resolver_of(builder, extras)

    def resolved(annotation: Any) -> Any:
        try:
            return resolve(annotation)
        except Exception:
            return Any

    return {name: resolved(annotation) for name, annotation in _written_annotations(builder).items()}


def is_definition(builder: Callable[..., Any]) -> bool:
    """Whether a builder is a function or a class, which is equal to itself alone, and not an object that is called."""
    # Those of a notebook or a script are none: the types that their annotations name may be defined anew.
    known = inspect.isroutine(builder) or inspect.isclass(builder)
    return known and getattr(builder, "__module__", None) != "__main__"


def code_of(builder: Callable[..., Any]) -> Any:
    """What says that a definition has changed in its place, as IPython's autoreload changes it."""
    function: Any = inspect.unwrap(builder)
    defaults = getattr(function, "__defaults__", None) or ()
    return getattr(function, "__code__", None), len(defaults), getattr(function, "_fields", None)


@functools.lru_cache(maxsize=1024)  # cells of a sweep and entries of a config share builders
def _resolved_annotations(builder: Callable[..., Any], extras: bool, code: Any) -> Mapping[str, Any]:
    resolve = _resolver_of(builder, extras)
    return {name: resolve(annotation) for name, annotation in _written_annotations(builder).items()}


def _written_annotations(builder: Callable[..., Any]) -> dict[str, Any]:
    """As they stand in the signature; Any where there is none."""
    parameters = inspect.signature(builder).parameters.values()
    return {entry.name: Any if entry.annotation is entry.empty else entry.annotation for entry in parameters}


def _resolver_of(builder: Callable[..., Any], extras: bool) -> Callable[[Any], Any]:
    """What makes a type of an annotation that may be text; it raises what the annotation raises."""
    import jaxtyping

    function = inspect.unwrap(getattr(builder, "func", builder))
    usual = {**vars(typing), **vars(collections.abc), **{name: getattr(jaxtyping, name) for name in _ARRAYS}}
    module = sys.modules.get(function.__module__)  # None: a class from a pickle, or of a module that is not registered
    of_module = vars(module) if is_record(function) and module is not None else getattr(function, "__globals__", {})
    names = {**usual, **of_module}

    def resolve(annotation: Any) -> Any:
        holder = types.SimpleNamespace(__annotations__={"annotation": annotation})
        return typing.get_type_hints(holder, names, include_extras=extras)["annotation"]

    return resolve


# --- Allowed values ------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """The numbers that a parameter allows: finite ones from ``least`` to ``most``."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False  # whether ``least`` itself is refused
    below: bool = False  # whether ``most`` itself is refused
    infinite: bool = False  # whether infinite numbers are allowed
    unknown: bool = False  # whether NaN is allowed, for what is not known

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
LABELS = "labels"  # in Annotated: the builder reads the labels of pandas and xarray


class Allowed(NamedTuple):
    """What an annotation allows, in parts."""

    anything: bool = False  # it says nothing that can be checked
    none: bool = False
    truth: bool = False  # True and False
    number: Literal["any", "whole"] | None = None
    axes: tuple[int, float] | None = None  # of arrays, the least and the largest number; None: no arrays
    whole_entries: bool = False
    sequences: bool = False  # arrays stand for Python's sequences, whose whole entries shape the program
    names: tuple[str, ...] = ()
    records: tuple[Any, ...] = ()  # the classes of NamedTuples
    others: tuple[Any, ...] = ()  # such as ``str``; functions are ``Callable``
    bounds: Range = ALL  # of numbers and of entries of arrays
    labels: bool = False  # whether arrays may have labels


def allowed_by(annotation: Any, bounds: Range = ALL) -> Allowed:
    """What an annotation allows. A range inside one member of a union holds for all of them."""
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        allowed = allowed_by(annotation, next((extra for extra in extras if isinstance(extra, Range)), bounds))
        return allowed._replace(labels=LABELS in extras)
    allowed = Allowed(bounds=bounds)
    for part in parts_of(annotation):
        inner = allowed_by(part, bounds) if typing.get_origin(part) is Annotated else _one(part)
        allowed = either(allowed, inner)
    return allowed


def either(first: Allowed, second: Allowed) -> Allowed:
    """What either allows; a number of any kind includes whole ones."""
    number = "any" if "any" in (first.number, second.number) else first.number or second.number
    axes = [counts for counts in (first.axes, second.axes) if counts is not None]
    return Allowed(
        first.anything or second.anything,
        first.none or second.none,
        first.truth or second.truth,
        number,  # type: ignore[arg-type]
        (min(low for low, _ in axes), max(high for _, high in axes)) if axes else None,
        first.whole_entries or second.whole_entries,
        bool(axes) and all(side.sequences for side in (first, second) if side.axes is not None),
        first.names + second.names,
        first.records + second.records,
        first.others + second.others,
        first.bounds if second.bounds == ALL else second.bounds,
        first.labels or second.labels,
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
    if origin is Literal and all(isinstance(name, str) for name in inside):
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
        return _array(part)
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


def _array(part: Any) -> Allowed:
    """What an annotation of jaxtyping allows."""
    words = str(part.dim_str).split()
    some = sum(word.startswith(("*", "...")) for word in words)
    kind = getattr(part.dtype, "__name__", "")
    if kind in ("Bool", "Key"):
        return Allowed(anything=True)
    if not words:
        return Allowed(number="whole" if kind in _WHOLE else "any")
    return Allowed(axes=(len(words) - some, math.inf if some else len(words)), whole_entries=kind in _WHOLE)


def in_words(allowed: Allowed) -> str:
    """What is allowed, for a sentence: ``one number from 0 to 1 or None``."""
    bounds = f" {text}" if (text := allowed.bounds.words()) else ""
    said = allowed.bounds.infinite or allowed.bounds.unknown or math.isfinite(allowed.bounds.most)
    finite = "" if said else "finite "
    one = "a whole number" if allowed.number == "whole" else f"one {finite}number"
    parts = [f"{one}{bounds}"] if allowed.number else []
    if allowed.axes is not None:
        low, high = allowed.axes
        axes = f"{low:g}" if low == high else f"{low:g} or more" if math.isinf(high) else f"{low:g} or {high:g}"
        entries = f"{'whole ' if allowed.whole_entries else finite}numbers{bounds}"
        parts.append(f"an array of {entries} with {axes} {'axis' if axes == '1' else 'axes'}")
    parts += [*allowed.names]
    parts += ["True", "False"] if allowed.truth else []
    parts += [with_article(record.__name__) for record in allowed.records]
    parts += [_WORDS[kind] for kind in dict.fromkeys(allowed.others)]
    parts += ["None"] if allowed.none else []
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if len(parts) > 1 else parts[0]


_WORDS = {str: "text", os.PathLike: "a path", Callable: "a function", Sequence: "a list of names"}


_P = ParamSpec("_P")
_R = TypeVar("_R")


# Numbers as annotations of parameters. Those that may be floats may be traced.
Number = Annotated[float | Float[Array, ""], ALL]
NumberOrInfinity = Annotated[float | Float[Array, ""], Range(infinite=True)]
Positive = Annotated[float | Float[Array, ""], Range(0, above=True)]
NonNegative = Annotated[float | Float[Array, ""], Range(0)]
Share = Annotated[float | Float[Array, ""], Range(0, 1)]
PositiveFloat = Annotated[float, Range(0, above=True)]
# Losses and thresholds: NaN for a client without rows, infinite where a model has diverged or everything will do.
LOSSES = Range(infinite=True, unknown=True)
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]


def checked(build: Callable[_P, _R]) -> Callable[_P, _R]:
    """The builder, which refuses values that its annotations do not allow (see the top of this module)."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def builder(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError:
            valid = parameters_of(build)
            for name in () if takes_anything(build) else named:
                if name not in valid:
                    raise ValueError(f"{build.__name__}: {unknown('parameter', name, valid)}") from None
            return build(*arguments, **named)  # Python's own error names the builder and the parameter
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


_ALLOWANCES: weakref.WeakKeyDictionary[Any, dict[str, Allowed]] = weakref.WeakKeyDictionary()


def allowances(build: Callable[..., Any]) -> dict[str, Allowed]:
    """What each parameter of a builder, or each field of a NamedTuple, allows. A default of None allows None."""
    if build not in _ALLOWANCES:
        annotations = annotations_of(build, extras=True)
        _ALLOWANCES[build] = {
            name: either(allowed_by(annotations[name]), Allowed(none=parameter.default is None))
            for name, parameter in parameters_of(build).items()
        }
    return _ALLOWANCES[build]


def check_arguments(build: Callable[..., Any], given: Mapping[str, Any], by_seed: Mapping[str, Any]) -> None:
    """Checks values before they are traced: a ``checked`` builder that is called in a program sees no numbers."""
    # Those of ``by_seed`` have one row for each seed.
    check_unlabelled("arguments by seed", by_seed)
    if not is_checked(build):
        for name, value in given.items():  # e.g. how clients train, for a builder of one's own
            if hasattr(value, "_fields") and type(value).__module__.startswith("fljax.training"):
                _admitted_fields(name, value)
        return
    allowed = allowances(build)
    for name in given.keys() & allowed.keys():
        admitted(name, given[name], allowed[name])
    for name in by_seed.keys() & allowed.keys():
        by_run = allowed[name]
        inner = [(0, 0)] * (by_run.number is not None) + ([by_run.axes] if by_run.axes is not None else [])
        if inner:
            axes = 1 + min(low for low, _ in inner), 1 + max(high for _, high in inner)
            admitted(name, by_seed[name], by_run._replace(number=None, axes=axes))


def admitted(name: str, value: Any, allowed: Allowed) -> Any:
    """The value as a builder gets it. ``name`` is that of the parameter, for the error."""
    if isinstance(value, allowed.records):
        return _admitted_fields(name, value)
    if not allowed.labels:
        check_unlabelled(name, value)
    if allowed.anything or (value is None and allowed.none):
        return value
    if isinstance(value, str):
        if value in allowed.names or str in allowed.others:
            return value
        raise _refused(name, value, allowed, did_you_mean(value, allowed.names))
    if isinstance(value, bool | np.bool_):
        if allowed.truth:
            return bool(value)
        raise _refused(name, value, allowed)
    if isinstance(value, numbers.Number | list | tuple | range) or hasattr(value, "__array__"):
        return _admitted_numbers(name, value if allowed.labels else plain(value, name), allowed)
    kinds = tuple(kind for kind in allowed.others if kind is not Callable)
    if (Callable in allowed.others and callable(value)) or (kinds and isinstance(value, kinds)):
        return value
    raise _refused(name, value, allowed)


def _admitted_fields(name: str, record: Any) -> Any:
    """The record itself, or one with numbers of Python in place of NumPy's."""
    allowed = allowances(type(record))
    values = record._asdict()
    checked_values = {field: admitted(f"{name}.{field}", value, allowed[field]) for field, value in values.items()}
    changed = {field: value for field, value in checked_values.items() if value is not values[field]}
    return record._replace(**changed) if changed else record


def _admitted_numbers(name: str, value: Any, allowed: Allowed) -> Any:
    """One number or several, traced or not."""
    if (
        isinstance(value, list | tuple)
        and Sequence in allowed.others
        and all(isinstance(entry, str) for entry in value)
    ):
        return value
    if isinstance(value, int) and abs(value) >= 2**63 and allowed.number is not None:  # NumPy has no such numbers
        if allowed.bounds.least <= value <= allowed.bounds.most:
            return value
        raise _refused(name, value, allowed)
    array = _concrete(value)
    if array is None:  # traced: its numbers are unknown
        if _traced_fits(value, allowed):
            return value
        raise _refused(name, value, allowed)
    if array.dtype == object and array.ndim and all(as_number(entry) is not None for entry in array.flat):
        array = value = np.asarray(array.tolist())
    kind, whole = array.dtype.kind, allowed.whole_entries if array.ndim else allowed.number == "whole"
    wrong = kind not in "biuf" or not _fits(array.ndim, allowed) or (array.ndim == 0 and kind == "b")
    wrong = wrong or (whole and kind not in "iu" and array.size)
    if wrong or not allowed.bounds.allows(array.astype(float) if kind in "bf" else array):
        raise _refused(name, value, allowed)
    if kind == "f" and jax.dtypes.canonicalize_dtype(float) == np.float32 and not _is_single(array):
        raise _refused(name, value, allowed, f" (single precision has numbers from {_LEAST:.2g} to {_MOST:.2g}, and 0)")
    if array.ndim == 0 and (whole or isinstance(value, np.generic | np.ndarray)):
        return array.item()
    value = array if (hasattr(value, "iloc") or hasattr(value, "dims")) and not allowed.labels else value
    is_static = allowed.sequences and allowed.whole_entries
    return tuple(array.tolist()) if is_static and isinstance(value, jax.Array | list | tuple) else value


_LEAST, _MOST = (float(number) for number in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


def _is_single(array: np.ndarray) -> bool:
    """Whether no number becomes infinite in single precision, and a single one not 0."""
    size = np.abs(array[np.isfinite(array)].astype(float))
    return bool((size <= _MOST).all() and (array.ndim or ((size == 0) | (size >= _LEAST)).all()))


def _traced_fits(value: Any, allowed: Allowed) -> bool:
    """Whether a traced array, or a list that holds traced numbers, has an allowed shape and dtype."""
    entries = jax.tree.leaves(value, is_leaf=lambda entry: entry is None)
    if not all(isinstance(entry, numbers.Number) or hasattr(entry, "dtype") for entry in entries):
        return False
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):  # a ragged list, or an array of objects
        return False
    number = jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)
    if array.ndim == 0:
        return number and allowed.number == "any"  # a whole number shapes the program
    return _fits(array.ndim, allowed) and (number or array.dtype == jnp.bool_)


def check_flags(name: str, array: Any) -> None:
    """Raises a ValueError if an array holds anything but zeros and ones; traced numbers are not checked."""
    entries = _concrete(array)
    if entries is None:
        return
    wrong = entries[(entries != 0) & (entries != 1)]
    if wrong.size:
        raise ValueError(f"expected {name} to hold zeros and ones, got {wrong[0]}")


def check_by_client(name: str, numbers: Any, population: int, *, tables: bool = True) -> None:
    """Raises a ValueError unless there is one number, one for each client or, with ``tables``, a row for each round."""
    shape = np.shape(numbers)
    if len(shape) > 1 + tables or shape[-1:] not in ((), (population,)) or 0 in shape:
        table = ", or a table of as many columns with a row for each round" if tables else ""
        sentence = f"expected {name} to be one number or one for each of {population} clients{table}"
        raise ValueError(f"{sentence}, got shape {shape}")


def floats_of(values: Any, dtype: Any = float) -> Array:
    """A user's numbers as an array of floats; those with labels are refused, and traced ones stay so."""
    return jnp.asarray(plain(values), dtype)


def as_number(value: Any) -> float | None:
    """A number of Python, NumPy or JAX as a float; None for all other values, bools and traced numbers included."""
    if isinstance(value, str | bytes | bool | list | tuple):
        return None
    array = _concrete(value)
    return float(array) if array is not None and array.ndim == 0 and array.dtype.kind in "iuf" else None


def as_whole(value: Any) -> int | None:
    """A whole number of Python, NumPy or JAX; None for all other values, 2.0, bools and traced numbers included."""
    if isinstance(value, str | bytes | bool | list | tuple):
        return None
    array = _concrete(value)
    return int(array) if array is not None and array.ndim == 0 and array.dtype.kind in "iu" else None


def kind_of(value: Any) -> str:
    """What a user's function returned, for a sentence: ``a tuple``, ``None``, ``an array of float32 of shape [3]``."""
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of {value.dtype} of shape {list(value.shape)}"
    if isinstance(value, list | tuple | dict):
        return f"{with_article(type(value).__name__)} of {len(value)}"
    return f"{with_article(type(value).__name__)}, {shown(value)}"


def _concrete(value: Any) -> np.ndarray | None:
    """The numbers of a value; None if they cannot be known here. Of what is no array, an array of objects."""
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended):
        return np.empty((), object)  # random keys
    try:
        array = np.asarray(value)
    except (jax.errors.TracerArrayConversionError, RuntimeError):  # traced, or not all on this process
        return None
    except (TypeError, ValueError):
        return np.empty((), object)
    narrow = array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.floating)  # bfloat16, which NumPy lacks
    return array.astype(np.float32) if narrow else array


def _fits(axes: int, allowed: Allowed) -> bool:
    """Whether so many axes are allowed; no axis is one number."""
    if axes == 0:
        return allowed.number is not None
    return allowed.axes is not None and allowed.axes[0] <= axes <= allowed.axes[1]


def _refused(name: str, value: Any, allowed: Allowed, question: str = "") -> ValueError:
    return ValueError(f"expected {name} to be {in_words(allowed)}, got {_shown(value)}{question}")


def _shown(value: Any) -> str:
    if _concrete(value) is None:
        shape = getattr(value, "shape", None)
        return "a list with traced numbers" if shape is None else f"a traced array of shape {shape}"
    is_array = isinstance(value, np.ndarray | jax.Array) and hasattr(value, "tolist")
    return " ".join(shown(value.tolist() if is_array else value).split())
