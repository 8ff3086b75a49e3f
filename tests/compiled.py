"""Compiled programs of the tests: how they are compiled, where they are kept, and when they are forgotten."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

# Of the memory maps that Linux grants a process, the share that may be in use before programs are forgotten.
SHARE = 0.6
# Bytes of memory of a process above which programs are forgotten, and by which it must grow before they are again: what
# the heap does not give back would else have them forgotten after every file.
RESIDENT, GROWTH = 3 * 2**30, 2**30
# Between two garbage collections; with Python's own number they take a tenth of the time of the tests.
NEW_OBJECTS = 200_000
# Bytes of programs on the disk that a later run of the tests may find.
KEPT = 2 * 2**30
USUAL = 65_530  # Linux's own limit of memory maps


@contextmanager
def quickly(quick: bool = True) -> Iterator[None]:
    """Programs are compiled without most optimisations: compiling tiny programs costs far more than running them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@contextmanager
def flags_restored() -> Iterator[None]:
    """A command in this process adds flags of XLA, which are part of the names of compiled programs on the disk."""
    before = os.environ.get("XLA_FLAGS")
    try:
        yield
    finally:
        os.environ.pop("XLA_FLAGS", None)
        if before is not None:
            os.environ["XLA_FLAGS"] = before


@contextmanager
def compilations() -> Iterator[list[str]]:
    """An entry for each program that is compiled inside."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen  # afterwards it listens on, for nobody: the public interface takes no single listener back


def forget_if_many(limit: int) -> int:
    """Each compiled program holds memory, and a few of the memory maps that Linux grants a process. Thousands of
    programs would use them up, and the next compilation would crash the process.

    Args:
      limit: bytes of memory above which programs are forgotten.

    Returns:
      The limit from now on.
    """
    if memory_maps() <= SHARE * limit_of_memory_maps() and resident() <= limit:
        return limit
    jax.clear_caches()
    gc.collect()
    return max(RESIDENT, resident() + GROWTH)


def resident() -> int:
    """Bytes of memory of this process; 0 where the system does not say."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_maps() -> int:
    """The memory maps of this process; 0 where the system does not say."""
    try:
        return pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def limit_of_memory_maps() -> int:
    """The number of memory maps that a process may have."""
    try:
        return int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return USUAL


def keep_on_disk(folder: pathlib.Path) -> None:
    """Programs of this process, of workers and of commands that tests start are kept in one folder.

    ``fljax.engine.devices.layout.mend`` has nothing to mend there. It is for caches of a limited size, where a killed
    process may leave a program without the time of its last use, and JAX then stores no other. Here JAX has no limit:
    a program that a killed process wrote in part is compiled again, with a warning.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ.pop("FLJAX_COMPILATION_CACHE", None)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def remove_oldest(folder: pathlib.Path, kept: int = KEPT) -> None:
    """Removes the programs that were written first, until the others have ``kept`` bytes at most."""
    found = []
    for program in folder.glob("*-cache"):
        with suppress(FileNotFoundError):  # other tests share the folder, and may have removed it
            found.append((program.stat(), program))
    total = 0
    for stat, program in sorted(found, key=lambda pair: -pair[0].st_mtime):
        total += stat.st_size
        if total > kept:
            program.unlink(missing_ok=True)
