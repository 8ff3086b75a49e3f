"""Signs of life from silent work."""

from __future__ import annotations

import threading

import pytest

from fljax.core.names import duration
from fljax.engine import print_elapsed


def test_a_line_every_few_seconds_and_one_at_the_end():
    lines: list[str] = []
    twice = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            twice.set()

    with print_elapsed("work", every=0.01, write=write):
        assert twice.wait(30)
    assert lines[0] == "work: 0 s"
    assert lines[-1].startswith("work: done in ")


def test_an_error_is_not_done():
    lines: list[str] = []
    with pytest.raises(RuntimeError), print_elapsed("work", every=60, write=lines.append):
        raise RuntimeError
    assert lines == []
    with pytest.raises(ValueError, match="expected a positive number of seconds between two lines, got 0"):
        print_elapsed(every=0).__enter__()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, words: str):
    assert duration(seconds) == words
