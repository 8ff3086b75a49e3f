"""Progress bars of the command line."""

from __future__ import annotations

from typing import Any

import pytest

from fljax.experiments.progress_bars import listener, progress_bars
from fljax.results.events import Event


def heard(*events: tuple[str, str, int, int, float, str]) -> list[Any]:
    """The bars after these events."""
    progress = progress_bars(quiet=True)
    listen = listener(progress)
    for event in events:
        listen(Event(*event))
    return progress.tasks


def test_standalone_training_shows_the_time_until_it_ends():
    training = ("standalone", "", 0, 8, 0.1, "training 4 standalone models per seed")
    (bar,) = heard(training)
    assert (bar.description, bar.total, bar.finished) == ("standalone", None, False)
    alone, own = heard(training, ("train", "a", 0, 8, 5.0, ""))
    assert alone.finished
    assert (own.total, own.completed) == (8, 0)
    assert [bar.finished for bar in heard(training, training)] == [True, False]  # in a sweep of two data sets


def test_the_speed_has_the_unit_of_what_is_counted():
    for unit in ("rounds", "runs"):
        progress = progress_bars(quiet=True)
        listen = listener(progress)
        listen(Event("train", "a", 0, 8, 0.0, "", unit))
        listen(Event("train", "a", 4, 8, 2.0, "left", unit))
        assert progress.tasks[0].fields["speed"] == f"left, 2.0 {unit}/s"


def test_an_algorithm_that_stopped_early_is_done():
    (bar,) = heard(("train", "a", 0, 8, 0.0, ""), ("train", "a", 4, 8, 1.0, ""), ("saved", "a", 8, 8, 1.1, ""))
    assert (bar.completed, bar.total, bar.finished) == (4, 4, True)


def test_a_narrow_terminal_keeps_rounds_and_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bars(quiet=False) as progress:
        listen = listener(progress)
        words = "IPR 0.550, IPR unseen 0.550, accuracy 0.963"
        listen(Event("train", "fedavg", 0, 6000, 0.0, ""))
        listen(Event("train", "fedavg", 6000, 6000, 100.0, words))
    line = next(each for each in capsys.readouterr().err.splitlines() if each.startswith("fedavg"))
    assert "6000/6000" in line
    assert "IPR 0.550" in line
    assert line.rstrip().endswith("00:00")
