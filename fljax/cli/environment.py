"""The environment of a run: cores, the compilation cache, memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time

from fljax.cli.stopping import Ended

CACHE_LIMIT = 2 * 2**30  # bytes of compiled programs; the least recently used are removed first


def start_jax(cache: bool = True) -> None:
    """Configures JAX before it starts: cores become devices, and compiled programs are cached between runs.

    The cache is in ~/.cache/fljax/xla. FLJAX_COMPILATION_CACHE sets another folder, or is "off". If only
    JAX_COMPILATION_CACHE_DIR is set, JAX uses that folder.
    """
    import jax

    from fljax.engine.devices.cores import PATIENT, use_cores

    with contextlib.suppress(RuntimeError):  # JAX is already running in this process
        use_cores(None if PATIENT else 1)
    chosen = os.environ.get("FLJAX_COMPILATION_CACHE", "")
    if not cache or chosen.lower() == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if os.environ.get("JAX_COMPILATION_CACHE_DIR") and not chosen:
        return
    folder = pathlib.Path(chosen).expanduser() if chosen else pathlib.Path.home() / ".cache" / "fljax" / "xla"
    mend_cache(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", CACHE_LIMIT)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def join(
    distributed: bool, coordinator: str | None, processes: int | None, process: int | None, patience: float
) -> None:
    """Joins this process with others if it is asked to, before JAX starts.

    What libraries print goes to stderr then, as gloo's greetings would stand in the output of --json.

    Raises:
      ValueError: if numbers are given without --distributed, or JAX does not accept them.
    """
    from fljax.core import processes as hosts

    if not distributed:
        if any(each is not None for each in (coordinator, processes, process)):
            raise ValueError(
                "expected --distributed beside --coordinator-address, --num-processes and --process-id, got none"
            )
        return
    sys.stdout.flush()
    printed = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(printed, "w", encoding=sys.stdout.encoding)
    before = signal.getsignal(signal.SIGTERM)
    try:
        hosts.distributed(coordinator, processes, process, initialization_timeout=patience)
    except RuntimeError as error:
        raise Ended(str(error)) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # JAX's preemption service takes this signal for itself


def mend_cache(folder: pathlib.Path, older: float = 60.0) -> None:
    """Removes programs that were being written when their process was killed.

    JAX 0.10 keeps the time of each program's last use in a second file. If this file is missing, JAX cannot store any
    further program. Only files ``older`` than this number of seconds are removed, since another process may be writing
    newer ones.
    """
    for program in folder.glob("*-cache"):
        used = program.with_name(program.name.removesuffix("-cache") + "-atime")
        with contextlib.suppress(OSError):
            if not used.exists() and time.time() - program.stat().st_mtime > older:
                program.unlink()


def memory() -> dict[str, str]:
    """The memory of the machine, and of each accelerator that reports it."""
    import jax

    found = {}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        found["machine"] = f"{pages * size / 2**30:.1f} GiB"
    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit:
            found[f"{device.platform}:{device.id}"] = f"{limit / 2**30:.1f} GiB"
    return found
