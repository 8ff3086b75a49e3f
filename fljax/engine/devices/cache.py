"""Compiled programs on the disk (JAX's persistent cache), which later processes read in place of compiling."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time

import jax
from jax.experimental.compilation_cache import compilation_cache

from fljax.core.texts.plain import tell

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
