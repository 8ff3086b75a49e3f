"""Signs of life from work that says nothing itself, such as one long compiled program."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator

from fljax.core.names import duration


@contextlib.contextmanager
def print_elapsed(
    what: str = "standalone models", *, every: float = 10.0, write: Callable[[str], object] = print
) -> Generator[None, None, None]:
    """Writes the time that has passed every few seconds, and at the end; for scripts and notebooks.

    ``with print_elapsed(): alone = fljax.standalone(...)`` writes ``standalone models: 10 s``. Standalone training is
    one compiled program, so that nothing is known about the time left: use it also around anything else that is silent.

    Args:
      what: the beginning of each line.
      every: seconds between two lines, above 0.
      write: called with each line, from a thread of its own.

    Raises:
      ValueError: if ``every`` is not positive.
    """
    if not every > 0:
        raise ValueError(f"expected a positive number of seconds between two lines, got {every!r}")
    began = time.perf_counter()
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(every):
            write(f"{what}: {duration(time.perf_counter() - began)}")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    write(f"{what}: done in {duration(time.perf_counter() - began)}")
