"""What scripts and notebooks print while they wait: a line for each block of rounds, and the time that has passed."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import threading
import time
from collections.abc import Callable, Generator

import numpy as np

from fljax.core.names import duration
from fljax.engine.callbacks.contract import Block, Callback, going_on
from fljax.protocol import NumpyArray

# The metrics of a block that progress shows, if present.
SHOWN = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "average_accuracy": "accuracy",
}


def print_progress(write: Callable[[str], object] = print) -> Callback:
    """Writes one line per block: rounds done, means over seeds of the main metrics, rounds per second, the time left.

    With ``reference=`` the first metric is the incentivised participation rate. The time left is that of rounds as fast
    as those of the block. Within a block nothing is known: its rounds and its evaluation are compiled programs.
    """

    def callback(block: Block) -> None:
        rate = block.ran / max(block.seconds, 1e-9)
        ahead = block.rounds - block.round
        left = f", {duration(ahead / rate)} left" if ahead > 0 and rate > 0 else ""
        whose = f"{block.label}: " if block.label else ""
        write(f"{whose}round {block.round} of {block.rounds}: {progress_of(block)}, {rate:.1f} rounds/s{left}")

    return callback


def progress_of(block: Block) -> str:
    """Means over seeds: ``IPR 0.312, IPR unseen 0.250, accuracy 0.833``; the loss if there is no accuracy."""
    means = {word: _mean(block.metrics[name]) for name, word in SHOWN.items() if name in block.metrics}
    if "average_accuracy" not in block.metrics:
        name = "average_loss" if "average_loss" in block.metrics else "test_loss"
        means["loss"] = _mean(block.metrics[name])
    return ", ".join(f"{word} {'none' if mean is None else f'{mean:.3f}'}" for word, mean in means.items())


def log_to(path: str | pathlib.Path) -> Callback:
    """Appends one JSON line per block: label, round, seconds, and every metric of every seed (means over clients)."""

    def callback(block: Block) -> None:
        line = {"label": block.label} if block.label else {}
        line |= {"round": block.round, "seconds": round(block.seconds, 3), "diverged": block.diverged}
        line |= {name: [_mean(row) for row in values] for name, values in block.metrics.items()}
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(line, allow_nan=False) + "\n")

    return going_on(str(path), callback)


def _mean(values: NumpyArray) -> float | None:
    """The mean of values that are not NaN; None if there are none, or if one is infinite (JSON has no infinity)."""
    # ``metrics.over_seeds`` leaves infinity out; a line about progress must not hide that a run diverges.
    known = np.asarray(values, float)[~np.isnan(values)]
    mean = float(known.mean()) if known.size else math.nan
    return mean if math.isfinite(mean) else None


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
