"""Handling of signals that stop a command: one sentence, and exit code 130 or 143."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal has stopped the command. Not a subclass of KeyboardInterrupt, as Click handles that itself."""

    def __init__(self, number: int, words: str = "interrupted") -> None:
        super().__init__(words)
        self.number = number

    @property
    def code(self) -> int:
        """The exit code, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number


class Stopped(Exception):
    """A run has stopped itself. The message says why, and where its results are; the exit code is 1."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted at the first signal; the second signal ends the process at once.

    Libraries may wrap Interrupted in their own errors; after a signal, any error becomes Interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def stop(number: int, frame: Any) -> None:
        if seen:
            os._exit(128 + number)
        if _is_importing(frame):
            # An extension module would print an exception inside its imports as a traceback: send the signal again.
            again = threading.Timer(0.05, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        seen.append(number)
        raise Interrupted(number)

    # Signals that the shell set to be ignored stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    except Exception:
        if seen:
            raise Interrupted(seen[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing(frame: Any) -> bool:
    """Whether an import is in progress in this frame or its callers."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
