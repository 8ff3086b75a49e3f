"""Handling of signals that stop a command: one sentence, and exit code 130 or 143.

Python's handlers wait for compiled code, so a thread reads the wake-up descriptor: the second signal ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    """Signals to stop that have come, and the run that may still save what it has computed.

    Attributes:
      stop: the request to stop of the run; it is made at a signal if the run listens.
    """

    def __init__(self) -> None:
        self._stop: StopRequest | None = None
        self.seen: list[int] = []
        self._arrived = 0
        self._sent_again = 0

    @property
    def stop(self) -> StopRequest:
        if self._stop is None:
            from fljax.engine.checkpoints import StopRequest

            self._stop = StopRequest()
        return self._stop

    @property
    def _heard(self) -> bool:
        return self._stop is not None and self._stop.heard

    def arrive(self, number: int) -> None:
        """Called from another thread at every signal, also while compiled code runs: the second one ends the process.

        The handler itself waits until compiled code returns.
        """
        self._arrived += 1
        if self._arrived - self._sent_again > 1:
            os._exit(128 + number)
        if self._heard:
            print("stopping after these rounds, and saving; again: stopping at once", file=sys.stderr, flush=True)

    def handle(self, number: int, frame: Any) -> None:
        """The handler. Raises Interrupted unless a run stops by itself and saves."""
        if self.seen:
            os._exit(128 + number)
        if _is_importing(frame):
            # An extension module would print an exception inside its imports as a traceback.
            self._send_again(number)
            return
        self.seen.append(number)
        if self._heard:
            self.stop.make()
            return
        raise Interrupted(number)

    def ignored(self, error: Interrupted) -> None:
        """Called when Python has ignored the exception of the handler, as in callbacks of the garbage collector."""
        self.seen.clear()
        self._send_again(error.number)

    def _send_again(self, number: int) -> None:
        self._sent_again += 1
        again = threading.Timer(0.05, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


@contextlib.contextmanager
def interruptible() -> Iterator[Signals]:
    """At the first signal, raises Interrupted or lets a run save and stop; the second ends the process at once.

    Libraries may wrap Interrupted in their own errors; after a signal, any error becomes Interrupted.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # Signals that the shell set to be ignored stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    with _noticing(signals), _nothing_ignored(signals):
        for number in before:
            signal.signal(number, signals.handle)
        try:
            yield signals
        except Exception as error:
            if signals.seen:
                raise Interrupted(signals.seen[0]) from error
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _nothing_ignored(signals: Signals) -> Iterator[None]:
    """Calls ``signals.ignored`` where Python would print "Exception ignored in ..." and go on."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Interrupted):
            signals.ignored(unraisable.exc_value)
        else:
            before(unraisable)

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
        while (found := os.read(reading, 1)) and found[0]:  # 0: the end
            if found[0] in SIGNALS:
                signals.arrive(found[0])
        os.close(reading)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")
        thread.join()
        os.close(writing)


def _is_importing(frame: Any) -> bool:
    """Whether an import is in progress in this frame or its callers."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
