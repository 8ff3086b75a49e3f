"""Signals that stop a command: at the first one a run saves, the second one ends; exit code 130 or 143.

Python's handlers wait for compiled code, so a thread reads the wake-up descriptor: the second signal ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from fljax.core.texts.plain import tell

if TYPE_CHECKING:
    from fljax.engine.checkpoints import StopRequest

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


class Ended(Exception):
    """A run has stopped itself. The message says why, and where its results are; the exit code is 1."""


class Signals:
    """Signals to stop that have come, and the request to stop of the run, which may still save what it has computed."""

    def __init__(self) -> None:
        self._stop: StopRequest | None = None
        self._arrived = 0
        self.seen: list[int] = []  # by the handler

    @property
    def stop(self) -> StopRequest:
        if self._stop is None:
            from fljax.engine.checkpoints import StopRequest  # imported here, since it imports JAX

            self._stop = StopRequest()
        return self._stop

    @property
    def _heard(self) -> bool:
        return self._stop is not None and self._stop.heard

    def arrive(self, number: int) -> None:
        """Called from another thread at every signal, since the handler waits until compiled code returns."""
        self._arrived += 1
        if self._arrived > 1:
            os._exit(128 + number)
        if self._heard:
            tell("stopping after these rounds, and saving; again: stopping at once", file=sys.stderr, flush=True)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler. Raises Interrupted unless a run stops by itself and saves."""
        if self._heard:
            self.seen.append(number)
            self.stop.make()
        elif _is_importing(frame):
            self.again(number)
        else:
            self.seen.append(number)
            raise Interrupted(number)

    def again(self, number: int) -> None:
        """Lets a signal come once more, a moment later, since an exception did not arrive or would not arrive."""
        self._arrived -= 1
        sender = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, number])
        sender.daemon = True
        sender.start()


@contextlib.contextmanager
def interruptible() -> Iterator[Signals]:
    """At the first signal, raises Interrupted or lets a run save and stop; the second ends the process at once."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # Signals that the shell set to be ignored stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    with _noticing(signals), _nothing_lost(signals):
        for number in before:
            signal.signal(number, signals.handle)
        try:
            yield signals
        except Exception as error:
            # Libraries may wrap Interrupted in their own errors: after a signal, any error becomes it.
            if signals.seen:
                raise Interrupted(signals.seen[0]) from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether Python imports something: C code that imports prints an exception, or aborts the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _nothing_lost(signals: Signals) -> Iterator[None]:
    """Python ignores exceptions in callbacks of its garbage collector and in finalizers; such a signal comes again."""
    # JAX has a callback there: while it starts, a quarter of all signals come in it.
    before = sys.unraisablehook

    def hook(lost: Any) -> None:
        if isinstance(lost.exc_value, Interrupted):
            signals.seen.pop()
            signals.again(lost.exc_value.number)
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _noticing(signals: Signals) -> Iterator[None]:
    """A thread that calls ``signals.arrive`` as soon as a signal comes."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def read() -> None:
        while (number := os.read(reading, 1)[0]) != 0:
            if number in SIGNALS:
                signals.arrive(number)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")  # no signal has this number
        thread.join()
        os.close(reading)
        os.close(writing)
