"""Signals that stop a command, wherever they find it."""

from __future__ import annotations

import gc
import signal
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from fljax.cli.stopping import Interrupted, interruptible


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


def in_a_finalizer(number: int) -> None:
    class Held:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Held()


def in_a_callback_of_the_garbage_collector(number: int) -> None:
    """Where JAX frees its buffers."""

    def once(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(once)
        signal.raise_signal(number)

    gc.callbacks.append(once)
    gc.collect()


def in_a_callback_of_a_weak_reference(number: int) -> None:
    class Held: ...

    held = Held()
    reference = weakref.ref(held, lambda _: signal.raise_signal(number))
    del held
    assert reference() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "where", [in_a_finalizer, in_a_callback_of_the_garbage_collector, in_a_callback_of_a_weak_reference]
)
def test_a_signal_is_not_lost_where_python_ignores_exceptions(
    where: Callable[[int], None], number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def stopped() -> None:
        with interruptible():
            where(number)
            time.sleep(10)

    with pytest.raises(Interrupted) as caught:
        stopped()
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
