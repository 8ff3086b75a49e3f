"""Values that users give to builders, checked by the annotations of their parameters (``@checked``).

- ``float`` is one finite number and no bool, ``int`` a whole one, which 2.0 is not; NumPy's numbers become Python's;
- ``Real[AnyArray, " N"]`` and ``Sequence[float]`` are finite numbers with as many axes;
- ``Annotated[..., Range(0, 1)]`` bounds all numbers inside, and ``Annotated[..., LABELS]`` alone allows labels, since
  values are taken by place;
- fields of a NamedTuple are checked by their own annotations; traced values by shape and dtype alone.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax.core.names import check_unlabelled, nearest, plain, shown, unknown, with_article
from fljax.core.signatures import (
    ALL,
    Allowed,
    Range,
    allowed_by,
    annotations_of,
    either,
    in_words,
    parameters_of,
    takes_anything,
)

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
        close = nearest(value, allowed.names)
        raise _refused(name, value, allowed, f" (did you mean {close!r}?)" if close is not None else "")
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
    kind = array.dtype.kind
    if kind not in "biuf" or not _fits(array.ndim, allowed):
        raise _refused(name, value, allowed)
    whole = allowed.whole_entries if array.ndim else allowed.number == "whole"
    if (whole and kind not in "iu" and array.size) or (array.ndim == 0 and kind == "b"):
        raise _refused(name, value, allowed)
    if not allowed.bounds.allows(array.astype(float) if kind in "bf" else array):
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
