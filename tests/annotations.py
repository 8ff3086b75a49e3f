"""Annotations are read at the first call of a function, and once for all functions of one definition.

jaxtyping writes and compiles two functions for each function that it wraps, which takes milliseconds: at import, also
for functions that no test calls, and again whenever a function inside of another one is defined, as those of algorithms
are in every program that is traced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any

import jaxtyping

_LIBRARY = inspect.getfile(jaxtyping.jaxtyped)
_called: ContextVar[Callable[..., Any]] = ContextVar("_called")  # the function whose call is being checked


def at_first_call(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """``jaxtyping.jaxtyped`` that wraps functions when they are first called while annotations are checked.

    What is wrapped is a stand-in, which calls the function itself. Functions of one definition share it, if their
    annotations are equal and their defaults are the same objects.
    """
    known: dict[int, tuple[FunctionType, Callable[..., Any]]] = {}  # by the code, which the first function keeps alive

    def check_of(function: FunctionType, typechecker: Any) -> Callable[..., Any]:
        first, check = known.get(id(function.__code__), (None, None))
        if first is not None and check is not None and _declares_the_same(first, function):
            return check
        check = wrap(_stand_in(function), typechecker=typechecker)
        known.setdefault(id(function.__code__), (function, check))
        return check

    def wrapped(function: Any, typechecker: Any) -> Any:
        if not isinstance(function, FunctionType):  # a class
            return wrap(function, typechecker=typechecker)
        checks, config = _Checks(functools.partial(check_of, function, typechecker)), jaxtyping.config

        def checked(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if config.jaxtyping_disable:
                return function(*args, **kwargs)
            return checks.call(function, args, kwargs)

        # With the globals of ``function`` it counts as fljax's own, where a run's identity asks for code of users.
        code, name = _as_of_jaxtyping(checked.__code__), function.__name__
        return functools.update_wrapper(
            FunctionType(code, function.__globals__, name, None, checked.__closure__), function
        )

    @functools.wraps(wrap)
    def jaxtyped(*args: Any, **options: Any) -> Any:
        if args or set(options) != {"typechecker"}:  # not the import hook
            return wrap(*args, **options)
        return lambda function: wrapped(function, options["typechecker"])

    return jaxtyped


class _Checks:
    """The check of a function, made when it is first asked for.

    It is no closure: a run's identity has the numbers that an algorithm's functions hold in theirs.
    """

    __slots__ = ("_check", "_make")
    __module__ = jaxtyping.__name__  # so that it is no code of a user's own

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        self._make = make
        self._check: Callable[..., Any] | None = None

    def call(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        if self._check is None:
            self._check = self._make()
        token = _called.set(function)
        try:
            return self._check(*args, **kwargs)
        finally:
            _called.reset(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoCheck, ()


class _NoCheck:
    """In place of a check that was pickled, which holds the context of its process."""

    def call(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)


def _declares_the_same(one: FunctionType, other: FunctionType) -> bool:
    same = lambda a, b: len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))  # noqa: E731
    named, others = one.__kwdefaults__ or {}, other.__kwdefaults__ or {}
    return (
        one.__annotations__ == other.__annotations__
        and same(one.__defaults__ or (), other.__defaults__ or ())
        and named.keys() == others.keys()
        and all(named[name] is others[name] for name in named)
    )


def _stand_in(function: FunctionType) -> FunctionType:
    """Calls the function whose call is being checked; it has the signature and the globals of ``function``."""
    called = _called

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return called.get()(*args, **kwargs)

    made = FunctionType(
        _as_of_jaxtyping(call.__code__), function.__globals__, function.__name__, None, call.__closure__
    )
    functools.update_wrapper(made, function)
    del made.__wrapped__
    made.__signature__ = inspect.signature(function)  # pyright: ignore[reportFunctionMemberAccess]
    return made


@functools.cache
def _as_of_jaxtyping(code: CodeType) -> CodeType:
    """Code whose lines count as those of a library: errors of algorithms name the innermost line of a user."""
    return code.replace(co_filename=_LIBRARY)
