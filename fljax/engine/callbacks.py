"""Ready-made callbacks for ``simulate``: a callback is any function of a Block; returning True stops the run."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import numpy as np

from fljax.engine.simulate import Block, Callback


def print_progress(write: Callable[[str], object] = print) -> Callback:
    """Writes one line per block: rounds done, mean test accuracy over seeds and clients, rounds per second.

    A task without a score has no accuracy: the line then gives the mean test loss.
    """

    def callback(block: Block) -> None:
        name = "accuracy" if "test_accuracy" in block.metrics else "loss"
        value = float(np.nanmean(block.metrics[f"test_{name}"]))
        rate = block.ran / max(block.seconds, 1e-9)
        write(f"round {block.round} of {block.rounds}: {name} {value:.3f}, {rate:.1f} rounds/s")

    return callback


def log_to(path: str | pathlib.Path) -> Callback:
    """Appends one JSON line per block: round, seconds, mean test loss and accuracy of every seed."""

    def callback(block: Block) -> None:
        line = {"round": block.round, "seconds": round(block.seconds, 3), "diverged": block.diverged}
        by_seed = {name: values.reshape(len(values), -1) for name, values in block.metrics.items()}
        line |= {name: np.nanmean(values, axis=-1).tolist() for name, values in by_seed.items()}
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    return callback


def stop_when(reached: Callable[[Block], bool]) -> Callback:
    """Stops the run after the first block for which ``reached(block)`` is True."""
    return lambda block: bool(reached(block))
