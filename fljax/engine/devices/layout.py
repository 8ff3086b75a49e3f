"""A run on its devices: the numbers of its layout, where its arrays are, its memory, and JAX's cache of programs.

Functions on tables with one row per client keep the axes of a row apart: a ``reshape`` to ``[S, P]`` would gather all.
Several processes each hold all of a state between programs, since each reads it. Peaks are XLA's own analysis. The
cores of a CPU can be devices of JAX, to spread clients over them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from fljax.core import processes
from fljax.core.plain import tell
from fljax.core.values import is_whole
from fljax.protocol import is_per_client

# XLA ends the process when one device waits for another for more than a minute, which can happen if one device's
# clients are much larger. From jaxlib 0.10 on flags change this time; earlier versions do not start with these flags.
PATIENT = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2]) >= (0, 10)
_WAITING = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 3600,
    "xla_cpu_collective_call_terminate_timeout_seconds": 10**6,
}


def use_cores(count: int | None = None) -> int:
    """Makes the CPU appear as ``count`` devices to JAX, so that ``simulate`` spreads clients over the cores.

    Call it once, at the top of a script or notebook, before anything is computed with JAX: the number of devices is
    fixed when JAX starts. ``fljax run`` calls it. Accelerators are not affected. It adds flags to XLA_FLAGS so that
    devices may wait for each other; before jaxlib 0.10 a wait of more than a minute may end the process.

    Args:
      count: number of devices; None: one for each core that this process may run on.

    Returns:
      The number of CPU devices.

    Raises:
      ValueError: if ``count`` is not positive.
      RuntimeError: if JAX has started with another number of devices, or XLA_FLAGS set another number.
    """
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not is_whole(count) or count < 1:
        raise ValueError(f"expected a positive number of cores, got {count!r}")
    if count > 1 and PATIENT:
        flags = os.environ.get("XLA_FLAGS", "")
        waiting = [f"--{name}={seconds}" for name, seconds in _WAITING.items() if name not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *waiting]).strip()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", count)
            return count
        except RuntimeError:  # JAX has started
            pass
    there = len(jax.devices("cpu"))  # chosen already
    if there != count:
        raise RuntimeError(
            f"expected use_cores({count}) to be called before JAX starts, got a JAX that runs with {there} CPU "
            "device(s) already; restart the notebook or script and call it first"
        )
    return count


AXIS = "clients"
Precision = Literal["default", "high", "highest"]
Where = Literal["device", "host"]


class Layout(NamedTuple):
    """A resolved ``Execution``."""

    clients: int  # side by side on each device in training
    seeds: int  # runs side by side on each device
    evaluation: int  # clients side by side on each device while they are polled or evaluated
    devices: int = 1
    runs_apart: bool = False  # whether devices share whole runs, not a run's clients
    platform: str = "cpu"  # "cpu", "gpu", "tpu"; ``ANY``: not known, so programs have all forms of code
    precision: Precision = "default"
    examples: Where = "device"
    client_states: Where = "device"

    @property
    def is_offloaded(self) -> bool:
        """Whether something stays on the host."""
        return self.examples == "host" or self.client_states == "host"


def default_platform() -> str:
    """The platform of the devices that runs use. It is asked before a program is traced, never while tracing."""
    return jax.default_backend()


def products_of(precision: Precision) -> AbstractContextManager[None]:
    """While it is entered, traced matrix products and convolutions that state no precision have this one."""
    # "default" leaves what the user set for the process.
    return contextlib.nullcontext() if precision == "default" else jax.default_matmul_precision(precision)


@functools.lru_cache(maxsize=8)
def mesh(devices: int) -> Mesh:
    """``devices`` devices along the axis "clients": of each process, in their order, the first ones."""
    count = jax.process_count()
    chosen = [device for process in range(count) for device in jax.local_devices(process)[: devices // count]]
    return Mesh(np.asarray(chosen), (AXIS,))


def is_there(devices: int) -> bool:
    """Whether a run that spans the processes may use so many devices, equally many of each process."""
    per_process, rest = divmod(devices, jax.process_count())
    return rest == 0 and 1 <= per_process <= jax.local_device_count()


def sharding(devices: int) -> NamedSharding | None:
    """The sharding of arrays that are replicated on every device; None for one device."""
    return None if devices == 1 else NamedSharding(mesh(devices), PartitionSpec())


def division(leaf: Any, devices: int, lead: int) -> PartitionSpec:
    """How devices divide a table with a row per client: along the longest axis behind ``lead`` that allows it."""
    # Not along the axis of clients: so 51 clients on 8 devices need no padding, and sums over them no communication.
    sizes = leaf.shape[lead:]
    fit = [axis for axis, size in enumerate(sizes) if size and size % devices == 0]
    if not fit:
        return PartitionSpec()
    longest = max(fit, key=lambda axis: sizes[axis])
    return PartitionSpec(*[None] * (lead + longest), AXIS)


def divide(tree: PyTree, devices: int, lead: int = 1) -> PyTree:
    """Tables with one row per client, divided among devices as ``division`` says; for use while tracing."""
    if devices == 1:
        return tree

    def one(leaf: Array) -> Array:
        spec = NamedSharding(mesh(devices), division(leaf, devices, lead))
        return jax.lax.with_sharding_constraint(leaf, spec)

    return jax.tree.map(one, tree)


def replicate(tree: PyTree, devices: int) -> PyTree:
    """The arrays of ``tree``, replicated on every device if there are several."""
    if devices == 1:
        return tree
    if processes.are_several():  # ``device_put`` would compare every array with those of all other processes
        return _everywhere(devices)(jax.tree.map(_unbound, tree))
    return jax.device_put(tree, sharding(devices))


@functools.lru_cache(maxsize=8)
def _everywhere(devices: int) -> Callable[[PyTree], PyTree]:
    """The identity, whose results are replicated on the devices of all processes."""
    return jax.jit(lambda tree: tree, out_shardings=sharding(devices))


def _unbound(leaf: Any) -> Any:
    """An array of this process that no device holds; numbers, weakly typed arrays and random keys as they are."""
    if not isinstance(leaf, jax.Array) or not leaf.is_fully_addressable or leaf.weak_type:
        return leaf
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf)


def on_one(tree: PyTree) -> PyTree:
    """The arrays of ``tree``, which may be replicated, on one device of this process; numbers as they are."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.device_put(leaf if leaf.is_fully_addressable else leaf.addressable_data(0), jax.local_devices()[0])

    return jax.tree.map(move, tree)


def of_this_process(tree: PyTree) -> PyTree:
    """Arrays that are replicated over several processes, as arrays of this one; in one process ``tree`` itself."""
    return on_one(tree) if processes.are_several() else tree


def shardings(state: Any, devices: int, lead: int) -> Any:
    """How devices hold a state: tables with a row per client are divided (``division``), the rest is replicated."""
    everywhere = NamedSharding(mesh(devices), PartitionSpec())

    def divided(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: NamedSharding(mesh(devices), division(leaf, devices, lead)), tree)

    whole = jax.tree.map(lambda leaf: everywhere, state)
    server = jax.tree.map(
        lambda part: divided(part) if is_per_client(part) else everywhere, state.server, is_leaf=is_per_client
    )
    return whole._replace(clients=divided(state.clients), server=server)


def state_shardings(states: PyTree, layout: Layout, lead: int = 2) -> Any:
    """The shardings of states between programs; several processes, and devices that share runs, hold all of it."""
    if layout.devices == 1 or layout.runs_apart or mesh(layout.devices).is_multi_process:
        return jax.tree.map(lambda leaf: sharding(layout.devices), states)
    return shardings(states, layout.devices, lead)


def with_shardings(shapes: PyTree, shardings: PyTree) -> PyTree:
    """``shapes`` as ShapeDtypeStructs with these shardings; for programs that are traced before there are arrays."""

    def struct(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(struct, shapes, shardings)


def place_state(states: PyTree, layout: Layout) -> PyTree:
    """``states``, constrained to the shardings of ``state_shardings``; for use while tracing."""
    if layout.devices == 1:
        return states
    return jax.lax.with_sharding_constraint(states, state_shardings(states, layout))


def put_state(states: PyTree, layout: Layout) -> PyTree:
    """``states`` with the shardings of ``state_shardings``; the loop calls it before a program gets them."""
    if layout.devices == 1 or mesh(layout.devices).is_multi_process:
        return replicate(states, layout.devices)
    return jax.device_put(states, state_shardings(states, layout))


def keep_everywhere(tree: PyTree, layout: Layout) -> PyTree:
    """The arrays of ``tree``, constrained to be replicated on every device; for use while tracing."""
    return tree if layout.devices == 1 else jax.lax.with_sharding_constraint(tree, sharding(layout.devices))


# XLA assigns memory before it makes machine code. So quick machine code, in half the time, has the same analysis.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}


def made_bytes(compiled: Any) -> int | None:
    """Bytes that a compiled program holds at once on each device, without its arguments; None if XLA does not tell."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes


class Memory(NamedTuple):
    """A run's memory in bytes, on each device. ``peak`` is read from compiled programs, all else from shapes.

    Attributes:
      peak: the largest memory of a program of the run (start, rounds, evaluation), including all of the following; None
        if XLA does not tell it for this device.
      data: examples and index tables.
      server: the server's state between rounds, of all runs.
      clients: the clients' states between rounds and their last ballots, of all runs.
      model: one initial model of the task.
      runs: number of runs: seeds, in a sweep times cells.
      devices: number of devices; each holds these amounts. Tables with one row per client are divided among them.
    """

    peak: int | None
    data: int
    server: int
    clients: int
    model: int
    runs: int
    devices: int


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of JAX says that memory did not suffice, of a device or for compiling."""
    words = str(error)
    return isinstance(error, jax.errors.JaxRuntimeError | MemoryError) and (
        isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in words or "out of memory" in words.lower()
    )


def smaller(layout: Layout) -> Layout | None:
    """The layout with half as many clients and runs side by side; None if there is one of each already."""
    clients, seeds, evaluation = (max(1, count // 2) for count in layout[:3])
    halved = layout._replace(clients=clients, seeds=seeds, evaluation=evaluation)
    return None if halved == layout else halved


def out_of_memory_sentence(layout: Layout, done: int) -> str:
    """The warning of a run that goes on with the smaller ``layout`` after ``done`` rounds."""
    return (
        f"memory did not suffice; the run goes on after round {done} with fewer side by side: clients in training "
        f"{layout.clients}, clients in evaluation {layout.evaluation}, runs {layout.seeds}"
    )


LIMIT = 2 * 2**30  # bytes of compiled programs; the least recently used are removed first
LEAST_SECONDS = 0.1  # of compiling; quicker programs are compiled anew


def use_cache(folder: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """Keeps compiled programs in a folder, so that later processes read them, and prints its place.

    Call it at the top of a script or notebook. ``fljax run`` has the same cache. It has at most 2 GiB; the least
    recently used programs are removed first. Programs that compile in less than 0.1 seconds are not kept.

    Args:
      folder: where; None: the environment variable FLJAX_COMPILATION_CACHE, else JAX_COMPILATION_CACHE_DIR, else
        ``~/.cache/fljax/xla``.

    Returns:
      The folder; None if no programs are kept: FLJAX_COMPILATION_CACHE is "off", or the folder cannot be made.

    Raises:
      ValueError: if ``folder`` is no path, or the path of a file.
    """
    if folder is None:
        place = begin()
    # A user may give anything.
    elif isinstance(folder, str | os.PathLike) and os.fspath(folder):  # pyright: ignore[reportUnnecessaryIsInstance]
        place = pathlib.Path(folder).expanduser()
        if place.exists() and not place.is_dir():
            raise ValueError(f"expected a folder for compiled programs, got the file {str(place)!r}")
        _keep_in(place)
    else:
        raise ValueError(f"expected the path of a folder for compiled programs, got {folder!r}")
    words = "compiled programs are not kept"
    if place is not None:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            place, words = None, f"{words}: {error}"
        else:
            words = f"compiled programs are kept in {place}"
        jax.config.update("jax_enable_compilation_cache", place is not None)
    compilation_cache.reset_cache()  # JAX looks for its folder once, when it first compiles
    tell(words)
    return place


def begin() -> pathlib.Path | None:
    """Keeps the programs that are compiled from now on where the environment says; returns the folder."""
    # If only JAX_COMPILATION_CACHE_DIR is set, JAX uses that folder, with JAX's own settings.
    chosen, of_jax = os.environ.get("FLJAX_COMPILATION_CACHE", ""), os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if chosen.lower() == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    if of_jax and not chosen:
        return pathlib.Path(of_jax)
    folder = pathlib.Path(chosen).expanduser() if chosen else pathlib.Path.home() / ".cache" / "fljax" / "xla"
    _keep_in(folder)
    return folder


def _keep_in(folder: pathlib.Path) -> None:
    mend(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LIMIT)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)


def mend(folder: pathlib.Path, older: float = 60.0) -> None:
    """Removes programs that were being written when their process was killed."""
    # JAX 0.10 keeps the time of last use in a second file, and stores no further program if that is missing. Files
    # that are not ``older`` stay: another process may be writing them.
    for program in folder.glob("*-cache"):
        used = program.with_name(program.name.removesuffix("-cache") + "-atime")
        with contextlib.suppress(OSError):
            if not used.exists() and time.time() - program.stat().st_mtime > older:
                program.unlink()
