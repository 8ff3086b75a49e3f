"""``jax.jit`` for the programs of a run, which are compiled differently for one device and for several."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from fljax.engine.execution import Lanes

# XLA's pass that splits loops over the threads of a CPU; XLA parses these as it does XLA_FLAGS.
UNSPLIT = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


class Program:
    """A function of ``(spec, lanes, ...)`` under ``jax.jit``.

    Where the cores of a CPU are devices, XLA must not split the loops of one device over all threads as well. It
    queues a piece for every thread, and while each thread leads a device nobody takes the pieces out: after some
    thousand loops the queues are full, and from then on jaxlib 0.10 gets large matrix products wrong. (A ResNet18 on
    two devices was right for six local steps.) With a device to every core nothing is lost by not splitting; with
    fewer devices than cores, loops use as many cores as there are devices.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        own = options.pop("compiler_options", {})
        self.alone = jax.jit(function, compiler_options=own, **options)
        self.apart = jax.jit(function, compiler_options=own | UNSPLIT, **options)

    def on(self, lanes: Lanes) -> Any:
        """The jitted function for as many devices as ``lanes`` has."""
        return self.apart if lanes.devices > 1 and jax.default_backend() == "cpu" else self.alone

    def __call__(self, spec: Any, lanes: Lanes, *rest: Any) -> Any:
        """Runs it, compiled at the first call with such arguments."""
        return self.on(lanes)(spec, lanes, *rest)

    def trace(self, spec: Any, lanes: Lanes, *rest: Any) -> Any:
        """What can be lowered and compiled ahead of the first call."""
        return self.on(lanes).trace(spec, lanes, *rest)


def program(**options: Any) -> Callable[[Callable[..., Any]], Program]:
    """A decorator that makes a ``Program``; ``options`` are those of ``jax.jit``."""
    return functools.partial(Program, **options)
