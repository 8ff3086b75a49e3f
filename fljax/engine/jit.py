"""The compiled programs of a process: how they are compiled on one device and on several, and how many are kept."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fljax.engine.execution import Lanes

# XLA's pass that splits loops over the threads of a CPU; XLA parses these as it does XLA_FLAGS.
UNSPLIT = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
# Products that XLA fuses into YNNPACK's kernels leave helper tasks in queues of threads that lead devices: the heap
# grows as long as a program runs. Earlier releases of XLA have neither the kernels nor the option. Without the kernels
# small networks are 11 to 20 % slower (benchmarks/pairs.py), so that short programs keep them.
UNFUSED = {"xla_cpu_experimental_ynn_fusion_type": ""}
# How many programs a process keeps; a run has three. Each takes about 100 of the 65,530 memory maps that Linux grants
# a process, and large networks take several times as many.
PROGRAMS = 64
# From so many rounds on a program is long.
LONG = 32


class Store:
    """The programs that were used last, at most ``limit`` of them.

    When there are too many, the quarter that was not used for longest is dropped. JAX's own caches refer to a jitted
    function weakly, so that they forget what was traced and compiled for it. Programs of other code are not touched.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[Hashable, Any] = {}  # the one used last comes last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The program of this key, made at its first use."""
        dropped: list[Any] = []
        with self._lock:
            found = self._kept.pop(key, None)
            found = make() if found is None else found
            self._kept[key] = found
            if len(self._kept) > self.limit:
                oldest = list(self._kept)[: max(1, self.limit // 4)]
                dropped = [self._kept.pop(each) for each in oldest]
        if dropped:
            dropped.clear()
            gc.collect()  # what JAX traced refers to itself, so that counting references does not free it
        return found


STORE = Store(PROGRAMS)


class Program:
    """A function under ``jax.jit``, compiled for the devices that its argument ``lanes`` names (one without it).

    Every set of static arguments and shapes is a jitted function of its own, kept in a ``Store``.

    Where the cores of a CPU are devices, XLA must not split the loops of one device over all threads as well. It
    queues a piece for every thread, and while each thread leads a device nobody takes the pieces out: after some
    thousand loops the queues are full, and from then on jaxlib 0.10 gets large matrix products wrong. (A ResNet18 on
    two devices was right for six local steps.) With a device to every core nothing is lost by not splitting; with
    fewer devices than cores, loops use as many cores as there are devices. YNNPACK's kernels share their work in the
    same way; there a long program leaves them out as well, where XLA can do without them.

    Args:
      function: what is compiled.
      static_argnames: as for ``jax.jit``, like the next one.
      donate_argnames: see there.
      compiler_options: of XLA, on any number of devices.
      is_long: from the static arguments by name, whether a program runs for long; None: none does.
      store: keeps the programs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static_argnames: Sequence[str],
        donate_argnames: Sequence[str] = (),
        compiler_options: dict[str, Any] | None = None,
        is_long: Callable[[Mapping[str, Any]], bool] | None = None,
        store: Store = STORE,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = inspect.signature(function)
        self._static = tuple(static_argnames)
        self._donated = tuple(donate_argnames)
        self._options = compiler_options or {}
        self._is_long = is_long
        self._store = store

    def jitted(self, *arguments: Any, **named: Any) -> Any:
        """The jitted function for arguments like these."""
        given = self._signature.bind(*arguments, **named).arguments
        static = tuple((name, given.pop(name, None)) for name in self._static)
        leaves, structure = jax.tree.flatten(given)
        options = self.options(dict(static))
        key = (self, static, structure, tuple(map(_describe, leaves)), tuple(options.items()))
        return self._store.find(key, lambda: self._fresh(options))

    def options(self, static: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the compiler for these static arguments, of which ``lanes`` tells the number of devices."""
        lanes: Lanes | None = static.get("lanes")
        apart = lanes is not None and lanes.devices > 1 and jax.default_backend() == "cpu"
        if not apart:
            return self._options
        long = self._is_long is not None and self._is_long(static)
        return self._options | UNSPLIT | (UNFUSED if long and is_accepted(tuple(UNFUSED.items())) else {})

    def _fresh(self, options: dict[str, Any]) -> Any:
        @functools.wraps(self._function)
        def function(*arguments: Any, **named: Any) -> Any:  # JAX keeps what it compiles as long as this function lives
            return self._function(*arguments, **named)

        chosen: Any = {"static_argnames": self._static, "donate_argnames": self._donated}
        return jax.jit(function, **chosen, compiler_options=options)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs it, compiled at the first call with such arguments."""
        return self.jitted(*arguments, **named)(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        """What can be lowered and compiled ahead of the first call."""
        return self.jitted(*arguments, **named).trace(*arguments, **named)


def program(**options: Any) -> Callable[[Callable[..., Any]], Program]:
    """A decorator that makes a ``Program``; ``options`` are those of ``Program``."""
    return functools.partial(Program, **options)


@functools.cache
def is_accepted(options: tuple[tuple[str, Any], ...]) -> bool:
    """Whether the installed XLA knows these compiler options: it is asked to compile something small with them."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(options)).lower(np.float32(0)).compile()
    except Exception:
        return False
    return True


def check_enabled() -> None:
    """Raises a ValueError where JAX is told to run operations one by one: a run is a loop that only a compiler runs."""
    if getattr(jax.config, "jax_disable_jit", False):
        raise ValueError(
            "expected jax_disable_jit to be off, got on: runs are compiled programs; jax.debug.print and "
            "jax.debug.breakpoint look inside them"
        )


def _describe(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), getattr(leaf, "dtype", type(leaf))
