"""A search of ``fljax.games.design`` beside ``fljax.runs`` on the same plans with the same ``Over``.

Digits: 8 clients with 4 to 80 rows, four lies, new federations in each generation. All calls of ``fljax.runs`` in a
search are noted and repeated without it, in turns, so both compute the same runs. The first turns compile and are not
counted. The ratio is runs per CPU-second of the search by those of ``fljax.runs``, as in `pairs`. The host share is the
CPU time of Python's thread, in which no run is computed, by that of all threads.
"""

import contextlib
import functools
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import flax.linen as nn
import numpy as np

import fljax
from benchmarks.engine.pairs import Turn, alternating, ratio
from fljax import algorithms, data, games, models
from fljax.games.mechanisms import designing, steps
from fljax.games.strategic import playing
from fljax.scenarios import ByReport, Strategy

SIZES = (4, 5, 6, 8, 12, 30, 50, 80)
LIES = {f"{name} by {by:g}": Strategy(factor=ByReport(**{name: by})) for name in ("size", "loss") for by in (0.1, 10)}
SPACES: dict[str, dict[str, Any]] = {
    "weighted": {"size_power": games.Interval(-0.5, 1.5), "clip": games.Interval(0.3, 30, log=True)},
    "learnt": {"theta": games.Around(0.3 * np.random.default_rng(0).normal(size=36))},
}


def measure(options: Namespace) -> Iterator[Any]:
    """A row for each rule."""
    return (row(name, options) for name in options.rules.split(","))


def row(name: str, options: Namespace) -> tuple[str, ...]:
    """Both with one rule."""
    mechanism, calls = mechanism_of(name, options), list[Callable[[], Any]]()

    def noted(*given: Any, **named: Any) -> Any:
        calls.append(functools.partial(fljax.runs, *given, **named))
        return calls[-1]()

    with mock.patch.object(playing, "runs", noted):
        _, runs = steps.searched(mechanism, 0)
    turns: list[Turn] = [functools.partial(spent, lambda: steps.searched(mechanism, 0))]
    turns.append(functools.partial(spent, lambda: [call() for call in calls]))
    found = alternating(turns, options.pairs + 1)[1:]
    rates = [runs / statistics.median(pair[place][0] for pair in found) for place in (0, 1)]
    shares = [100 * statistics.median(pair[place][1] / pair[place][0] for pair in found) for place in (0, 1)]
    beside = ratio([second[0] / first[0] for first, second in found])
    return name, f"{runs:,}", *(f"{each:.0f}" for each in rates), beside, *(f"{each:.1f} %" for each in shares)


def spent(call: Callable[[], Any]) -> tuple[float, float]:
    """CPU-seconds of all threads and of this one."""
    cpu, own = time.process_time(), time.thread_time()
    call()
    return time.process_time() - cpu, time.thread_time() - own


def mechanism_of(name: str, options: Namespace) -> steps.Mechanism:
    """What ``design`` searches."""
    loaded = data.load("digits")
    x, y = np.asarray(loaded.x).reshape(len(loaded.x), -1) / np.float32(255), np.asarray(loaded.y).astype(np.int32)

    def federation(seed: int) -> fljax.Federation:
        rows = np.split(np.random.default_rng(seed).permutation(len(x)), np.cumsum(np.repeat(SIZES, 2)))
        pairs = zip(rows[:-1:2], rows[1::2], strict=True)
        parts = [{"train": (x[a], y[a]), "test": (x[b], y[b])} for a, b in pairs]
        return data.from_clients({f"c{k}": part for k, part in enumerate(parts[: options.clients])}, classes=10)

    task = models.task_from_module(nn.Dense(10), x[:1], classes=10)
    local = fljax.Local(learning_rate=1.0, batch_size=10, steps=3)
    same: dict[str, Any] = {"deviations": LIES, "tolerance": [0.03], "outside": None, "over": SPACES[name]}
    given = {"task": task, "local": local, "clients_per_round": None}
    plan, sizes = fljax.Plan(getattr(algorithms, name), given), {"rounds": options.rounds, "budget": options.budget}
    ended = mock.patch.object(designing, "searched", side_effect=InterruptedError)
    with ended as search, contextlib.suppress(InterruptedError):
        games.design(plan, federation, **sizes, **same)
    return search.call_args.args[0]
