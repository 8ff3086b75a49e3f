"""Signals that stop a command."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fljax.cli.running import Interrupted, interruptible

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_an_exception(number: int) -> None:
    with pytest.raises(Interrupted) as caught, interruptible():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number


def in_a_callback_of_the_garbage_collector(number: int) -> None:
    """Where JAX frees its buffers."""

    def once(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            signal.raise_signal(number)

    gc.callbacks.append(once)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(once)


def in_a_finalizer(number: int) -> None:
    class Held:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Held()


def in_an_import(number: int) -> None:
    """Where C code may print the exception, or abort the process."""
    __import__(f"stopped_by_{number}")


@pytest.mark.in_turn
@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("where", [in_a_callback_of_the_garbage_collector, in_a_finalizer, in_an_import])
def test_an_exception_that_would_be_lost_comes_later(where, number, tmp_path, monkeypatch, capfd):
    (tmp_path / f"stopped_by_{number}.py").write_text(f"import signal\nsignal.raise_signal({number})\n")
    monkeypatch.syspath_prepend(tmp_path)
    came_back = []

    def stopped() -> None:
        with interruptible():
            where(number)
            came_back.append(where)
            time.sleep(10)

    with pytest.raises(Interrupted) as caught:
        stopped()
    assert came_back
    assert caught.value.code == 128 + number
    assert "Exception ignored" not in capfd.readouterr().err


def test_other_exceptions_that_python_ignores_are_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        def __del__(self) -> None:
            raise KeyError("own")

    shown: list[BaseException | None] = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: shown.append(found.exc_value))
    with interruptible():
        Held()
    assert [str(found) for found in shown] == ["'own'"]


def test_what_a_library_makes_of_it_is_an_interruption() -> None:
    def wrapped() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException as error:
            raise RuntimeError("a library's own") from error

    with pytest.raises(Interrupted) as caught, interruptible():
        wrapped()
    assert caught.value.code == 143


@pytest.mark.parametrize("number", NUMBERS)
def test_a_run_that_listens_is_asked_to_save_and_stop(number: int, capfd: pytest.CaptureFixture[str]) -> None:
    with interruptible() as signals, signals.stop.listening():
        assert not signals.stop.made
        signal.raise_signal(number)
        assert signals.stop.made
        until, told = time.monotonic() + 10, ""
        while not told and time.monotonic() < until:  # another thread says it
            time.sleep(0.01)
            told = capfd.readouterr().err
    assert signals.seen == [number]
    assert told == "stopping after these rounds, and saving; again: stopping at once\n"


# A call of a library that Python's handlers wait for, and that lets other threads run.
BUSY = """
import hashlib, threading
from fljax.cli.running import interruptible
with interruptible():
    threading.Timer(0.5, print, ["up"], {"flush": True}).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_signal_ends_at_once_also_in_compiled_code(number: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(10) == 128 + number
