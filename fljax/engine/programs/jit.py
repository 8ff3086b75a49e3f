"""The compiled programs of a process: compiler options for one or several devices, and a bounded store of programs.

XLA's time to compile follows the number of kernels (``benchmarks/results/archive/2026-11-24-first-round.md``). What a
loop repeats is under ``jit`` where its shapes are asked for first, so JAX traces it once.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core.platforms import traced_for
from fljax.engine.devices import eager
from fljax.engine.devices.layout import Layout, products_of

# XLA's pass that splits loops over the threads of a CPU; XLA parses these as it does XLA_FLAGS.
UNSPLIT = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
# Matrix products that XLA fuses into YNNPACK's kernels leave helper tasks in the queues of threads that lead devices:
# the heap grows while a program runs, by some MB a second, and is given back at its end. Without the kernels small
# networks are 11 to 20 % slower (benchmarks/engine/pairs.py), so only programs that cannot be cut into short ones leave
# them out. Earlier releases of XLA have neither the kernels nor the option.
UNFUSED = {"xla_cpu_experimental_ynn_fusion_type": ""}
# On a CPU, LLVM's most expensive optimisations double the time to compile, and rounds are no faster with them
# (benchmarks/results/archive/2026-11-28-optimisation-level.md).
ENOUGH = {"xla_backend_optimization_level": 2}
# The number of programs that a process keeps; a run has three or four. Each uses about 100 of the 65,530 memory maps
# that Linux allows per process; large networks use several times as many.
PROGRAMS = 64


class Store:
    """The last used programs, at most ``limit``; above it, the least recently used quarter is dropped."""

    # JAX's own caches refer to jitted functions weakly, so they drop traced and compiled code. With ``collects`` its
    # memory is freed at once, since compiled code holds memory maps; traced code holds none.

    def __init__(self, limit: int, collects: bool = True) -> None:
        self.limit = limit
        self._collects = collects
        self._kept: dict[Hashable, Any] = {}  # in order of use, the last used at the end
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The program of this key; ``make`` creates it if it is not in the store."""
        dropped: list[Any] = []
        with self._lock:
            made = self._kept.pop(key, None)
            made = make() if made is None else made
            self._kept[key] = made
            if len(self._kept) > self.limit:
                oldest = list(self._kept)[: max(1, self.limit // 4)]
                dropped = [self._kept.pop(old_key) for old_key in oldest]
        if dropped and self._collects:
            dropped.clear()
            gc.collect()  # traced code has reference cycles
        return made


STORE = Store(PROGRAMS)


class Program:
    """A function under ``jax.jit`` for ``layout.devices`` devices (one without an argument ``layout``)."""

    # Each set of static arguments and shapes has a jitted function of its own, kept in ``store``.
    # If the cores of a CPU are devices, XLA must not also split the loops of one device over all threads. It queues a
    # piece for every thread, but each thread leads a device and does not take the pieces. After some thousand loops the
    # queues are full, and jaxlib 0.10 then computes wrong large matrix products. (A ResNet18 on two devices was right
    # for six local steps.) With one device per core nothing is lost by not splitting. YNNPACK's kernels share work in
    # the same way (``UNFUSED``), so programs that are ``is_long`` also disable the kernels, if XLA has the option.

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static_argnames: Sequence[str],
        donate_argnames: Sequence[str] = (),
        compiler_options: dict[str, Any] | None = None,
        is_long: bool = False,
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
        """The jitted function for these static arguments and shapes."""
        bound = self._signature.bind(*arguments, **named).arguments
        static = tuple((name, bound.pop(name, None)) for name in self._static)
        leaves, structure = jax.tree.flatten(bound)
        options = self.options(dict(static))
        key = (self, static, structure, tuple(map(_describe, leaves)), tuple(options.items()))
        return self._store.find(key, lambda: self._fresh(options))

    def options(self, static: Mapping[str, Any]) -> dict[str, Any]:
        """The compiler options for these static arguments; ``layout`` gives the devices' number and platform."""
        layout: Layout | None = static.get("layout")
        if layout is None or layout.platform != "cpu":
            return self._options
        options = self._options if _level_is_chosen() else ENOUGH | self._options
        if layout.devices == 1:
            return options
        unfused = self._is_long and is_accepted(tuple(UNFUSED.items()))
        return options | UNSPLIT | (UNFUSED if unfused else {})

    def _fresh(self, options: dict[str, Any]) -> Any:
        @functools.wraps(self._function)
        def function(*arguments: Any, **named: Any) -> Any:  # JAX keeps the compiled code while this function exists
            layout: Layout | None = self._signature.bind(*arguments, **named).arguments.get("layout")
            if layout is None:
                return self._function(*arguments, **named)
            with products_of(layout.precision), traced_for(layout.platform):
                return self._function(*arguments, **named)

        chosen: Any = {"static_argnames": self._static, "donate_argnames": self._donated}
        return jax.jit(function, **chosen, compiler_options=options)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the function; the first call with these static arguments and shapes compiles it."""
        # ``jax_debug_nans`` does not hold here: JAX's own check would stop at every NaN that says "unknown"
        # (``fljax.engine.loop.diagnosis`` looks at results).
        if eager.is_on():
            return self._op_by_op(*arguments, **named)
        if not eager.nans_raise():
            return self.jitted(*arguments, **named)(*arguments, **named)
        with jax.debug_nans(False):
            return self.jitted(*arguments, **named)(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        """The traced function, which can be lowered and compiled ahead of the first call."""
        with jax.disable_jit(False), jax.debug_nans(False):
            return self.jitted(*arguments, **named).trace(*arguments, **named)

    def _op_by_op(self, *arguments: Any, **named: Any) -> Any:
        bound = self._signature.bind(*arguments, **named).arguments
        layout: Layout | None = bound.get("layout")
        # Python numbers become arrays, as under jit.
        arrays = {
            name: jax.tree.map(jnp.asarray, argument) for name, argument in bound.items() if name not in self._static
        }
        with products_of("default" if layout is None else layout.precision):
            return self._function(**bound | arrays)


def _level_is_chosen() -> bool:
    """Whether the user has set the level of optimisations for all programs, which options of one would replace."""
    level = next(iter(ENOUGH))
    return bool(jax.config.read("jax_disable_most_optimizations")) or level in os.environ.get("XLA_FLAGS", "")


def program(**options: Any) -> Callable[[Callable[..., Any]], Program]:
    """A decorator that makes a ``Program``; ``options`` are those of ``Program``."""
    return functools.partial(Program, **options)


@functools.cache
def is_accepted(options: tuple[tuple[str, Any], ...]) -> bool:
    """Whether the installed XLA knows these compiler options; found by compiling a small function with them."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(options)).lower(np.float32(0)).compile()
    except Exception:
        return False
    return True


def _describe(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), getattr(leaf, "dtype", type(leaf))
