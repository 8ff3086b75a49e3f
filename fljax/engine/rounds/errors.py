"""Names the functions of an algorithm in the errors that they raise, in compiled programs and op by op alike.

Only Python's calls are wrapped, inside the program: plans are compared and hashed as they were given. fljax's own
sentences (a ValueError from a ``raise`` in fljax) pass unchanged; a library's ValueError does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import jax

from fljax.core import errors
from fljax.engine.devices import eager
from fljax.protocol import Algorithm, Seat
from fljax.protocol.sums import Streamed

Function = TypeVar("Function", bound=Callable[..., Any])

# Functions of one client, which get a client's own row of a PerClient.
_OF_ONE_CLIENT = ("send", "peers", "contribute", "counts")


def named(build: Callable[[], Any], algorithm: str | None = None, seed: Any = None) -> Any:
    """The result of ``build()``; errors of the builder, and of an Algorithm's functions, become ``AlgorithmError``."""
    with within("the builder", algorithm, seed=seed):
        built = build()
    return wrapped(built, algorithm, seed) if isinstance(built, Algorithm) else built


def wrapped(found: Algorithm, algorithm: str | None = None, seed: Any = None) -> Algorithm:
    """The same algorithm; an exception in one of its functions is an ``AlgorithmError`` that names the function."""

    def wrap(name: str, function: Function, *sent: str) -> Function:
        @functools.wraps(function, updated=())
        def call(*arguments: Any, **keywords: Any) -> Any:
            seat = next((argument for argument in arguments if isinstance(argument, Seat)), None)
            where: dict[str, Any] = {"seed": seed}
            if seat is not None:
                known = {"client": seat.id} if seat.known else {"unseen": True}
                where |= {"round": seat.round, **known}
            elif name == "select":
                where["round"] = arguments[1]
            elif name in ("aggregate", "finish"):
                where["round"] = arguments[-1].number
            with within(name, algorithm, **where):
                result = function(*arguments, **keywords)
            if sent and eager.is_on() and not (seat is not None and seat.first):
                eager.note_sent(sent, result[0] if name == "train" else result)
            return result

        return call  # type: ignore[return-value] - a wrapper with the same arguments

    optional = {
        name: wrap(name, function)
        for name in ("common", "personal", "models", "counts", "peers")
        if (function := getattr(found, name)) is not None
    }
    polled = found.poll
    if polled is not None:
        polled = polled._replace(ask=wrap("ask", polled.ask, "ballot"))
    aggregate = found.aggregate
    if isinstance(aggregate, Streamed):
        aggregate = aggregate._replace(
            contribute=wrap("contribute", aggregate.contribute), finish=wrap("finish", aggregate.finish)
        )
    else:
        aggregate = wrap("aggregate", aggregate)
    return found._replace(
        init_server=wrap("init_server", found.init_server),
        init_client=wrap("init_client", found.init_client),
        send=wrap("send", found.send, "down", *(("shown",) if polled is not None and polled.shown else ())),
        select=wrap("select", found.select),
        train=wrap("train", found.train, "up"),
        aggregate=aggregate,
        poll=polled,
        **optional,
    )


@contextmanager
def within(
    function: str, algorithm: str | None = None, *, checked: bool = True, **where: Any
) -> Generator[None, None, None]:
    """``fljax.core.errors.during``; op by op, NaN inside raises where ``jax_debug_nans`` holds, if ``checked``."""
    # ``where`` is left out while a program is traced, once for all clients and rounds.
    where = where if eager.is_on() else {}
    try:
        with errors.during(function, algorithm=algorithm, **where), eager.checked() if checked else nullcontext():
            yield
    except errors.AlgorithmError as error:
        cause = error.__cause__
        if function in _OF_ONE_CLIENT and isinstance(cause, AttributeError) and "values" in str(cause):
            error.words += f"; in {function}, a PerClient of the Server is the client's own row, without .values"
        raise


def name_of(build: Callable[..., Any]) -> str | None:
    """The name of a builder; None if it has none."""
    if isinstance(build, functools.partial | jax.tree_util.Partial):
        return name_of(build.func)
    return getattr(build, "__name__", None)
