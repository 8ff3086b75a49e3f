"""How a command ends when the user or the system stops it: one sentence, and exit code 130 or 143."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal has stopped the command. No subclass of KeyboardInterrupt, which Click would answer itself."""

    def __init__(self, number: int, words: str = "interrupted") -> None:
        super().__init__(words)
        self.number = number

    @property
    def code(self) -> int:
        """As a shell counts: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted at the first signal; the second ends the process at once.

    An error that a signal has caused inside a library, which may wrap what is raised, counts as the interruption.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def stop(number: int, frame: Any) -> None:
        if seen:
            os._exit(128 + number)
        if _is_importing(frame):
            # An extension module would print what is raised inside its imports as a traceback: the signal comes again.
            again = threading.Timer(0.05, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        seen.append(number)
        raise Interrupted(number)

    # What a shell has told the process to ignore stays ignored.
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
    """Whether a module is being imported somewhere up the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
