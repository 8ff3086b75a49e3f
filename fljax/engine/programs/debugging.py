"""Debug mode: a run op by op, without ``jax.jit``, one client after another.

The same host loop, rounds and evaluation run as in any other mode. ``fljax.engine.devices.eager`` has the Python loops
that replace compiled ones, ``fljax.engine.rounds.errors`` names what failed.

What the engine would only trace (shapes before a run, rehearsals, programs ahead) is left out, since a user's ``print``
would meet tracers. Bytes of messages are counted as they are sent.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from fljax.engine.devices import eager
from fljax.engine.programs.execution import Execution

Function = TypeVar("Function", bound=Callable[..., Any])


def mode(execution: Execution | None) -> AbstractContextManager[None]:
    """While it is entered, runs are op by op, if the execution or ``jax_disable_jit`` asks for it."""
    asked = execution is not None and execution.clients == "debug"
    return eager.entered() if asked or eager.is_on() else contextlib.nullcontext()


def as_asked(run: Function) -> Function:
    """A decorator: ``run(..., execution=...)`` in the mode of its execution, which becomes "debug" without ``jit``.

    There is no ``on_memory`` then, since nothing is compiled.
    """

    @functools.wraps(run)
    def call(*arguments: Any, **options: Any) -> Any:
        execution = options.get("execution")
        with mode(execution):
            if eager.is_on():
                options["execution"] = (execution or Execution())._replace(clients="debug")
                options |= {"on_memory": None} if "on_memory" in options else {}
            return run(*arguments, **options)

    return call  # type: ignore[return-value] - a wrapper with the same arguments
