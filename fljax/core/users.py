"""Functions that users give: an error names the function, and what it returns is checked."""
# Both happen to a traced function while its program is traced, before anything is computed.

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from fljax.core.errors import during
from fljax.core.names import name_of
from fljax.core.values import kind_of


def call(kind: str, form: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a user's function returns; ``kind`` says what it is ("the loss"), ``form`` its parameters ("(x, y)")."""
    check_function(kind, form, function, *arguments, **named)
    with during(f"{kind} {name_of(function)}"):
        return function(*arguments, **named)


def check_function(kind: str, form: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Raises the ValueError of ``call`` if a function has other parameters; it is not called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C
        signature = None
    if signature is not None:
        try:
            signature.bind(*arguments, **named)
        except TypeError:
            raise ValueError(f"expected {kind} {name_of(function)} to take {form}, got {signature}") from None


def refused(kind: str, function: Callable[..., Any], wanted: str, found: Any) -> ValueError:
    """The error for what a user's function returned in place of what was ``wanted``."""
    return ValueError(f"expected {kind} {name_of(function)} to return {wanted}, got {kind_of(found)}")


def numbers(
    kind: str, function: Callable[..., Any], wanted: str, found: Any, shape: tuple[Any, ...], make: Any = jnp.asarray
) -> Any:
    """What a user's function returned, ``found``, as an array of real numbers, traced or not."""
    # An error says what is ``wanted``. The ``shape`` may end in ``...``. NumPy's ``make`` keeps double precision.
    try:
        array = None if found is None or isinstance(found, str | bytes | tuple | Mapping) else make(found)
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is not None and (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        real = not jnp.issubdtype(array.dtype, jnp.complexfloating)
        if real and (array.shape == shape or (shape[-1:] == (...,) and array.shape[: len(shape) - 1] == shape[:-1])):
            return array
    raise refused(kind, function, wanted, found)
