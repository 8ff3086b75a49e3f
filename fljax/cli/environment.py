"""Where a run happens: cores, compiled programs, memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time

CACHE_LIMIT = 2 * 2**30  # bytes of compiled programs; those not used for longest go first


def start_jax(cache: bool = True) -> None:
    """Before JAX starts: the cores become devices, and compiled programs are kept between runs.

    FLJAX_COMPILATION_CACHE may name another folder than ~/.cache/fljax/xla, or be "off". Where JAX itself is told
    of one by JAX_COMPILATION_CACHE_DIR, that one is used.
    """
    import jax

    from fljax.engine.cores import PATIENT, use_cores

    with contextlib.suppress(RuntimeError):  # called from a process in which JAX runs already
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


def mend_cache(folder: pathlib.Path, older: float = 60.0) -> None:
    """Removes programs that were being written when their process was killed.

    JAX 0.10 keeps the time of each program's last use in a file beside it, and where that is missing it can store no
    other program any more. ``older``: seconds, so that what another process writes now is left alone.
    """
    for program in folder.glob("*-cache"):
        used = program.with_name(program.name.removesuffix("-cache") + "-atime")
        with contextlib.suppress(OSError):
            if not used.exists() and time.time() - program.stat().st_mtime > older:
                program.unlink()


def memory() -> dict[str, str]:
    """Of the machine, and of each accelerator that tells."""
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
