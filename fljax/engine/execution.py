"""How clients and seeds map to devices: a strategy, never part of an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

Strategy = Literal["auto", "vmap", "scan"] | int
Clients = Literal["auto", "trial", "vmap", "scan"] | int
Devices = Literal["all"] | int

# What ``auto`` decides by, from timings on 2 cores (2026-11-21). On a CPU a client's model with its gradient and update
# should stay in the first caches. An MLP of 52,000 parameters made 9,900 client-steps a second one client at a time and
# 9,300 five at a time (but 6 % more all at once in one run of benchmarks/results); a logistic regression of 610
# parameters made 110,000 alone, 194,000 in tens and 199,000 in fifties; of clients of very different size four or five
# were best.
CACHE = 256 * 2**10
# Share of an accelerator's free memory that clients side by side may fill, and what is taken where it does not tell.
FILLED = 0.5
ACCELERATOR = 8 * 2**30
# Prepared examples that are evaluated at a time: LeNet on 50 clients x 2,000 images took 2.0 s in fives, 3.2 s in 25s.
EVALUATION = {"cpu": 4 * 2**20, "accelerator": 1024 * 2**20}
# Runs for each device from which on devices take whole runs: they then wait for each other once a block, not in every
# round, and runs that do not divide by devices waste little.
APART = 4
# A client alone costs 1 + this times its share of many side by side.
ALONE = {"cpu": 1.0, "accelerator": 100.0}


class Execution(NamedTuple):
    """How many clients, and runs, are side by side. Results do not depend on it, up to rounding.

    Attributes:
      clients: "vmap" (all of a device's clients at once), "scan" (one after another), a number k (k at a time),
        "auto" (a fixed rule of shapes, backend, memory and sizes: see ``resolve``) or "trial" (``auto`` and its
        neighbours are compiled, timed for a round, and the fastest is taken).
      seeds: "auto", "vmap", "scan" or a number, for the runs of one call: seeds, in a sweep those of all cells.
      evaluation: likewise for clients while they are polled or evaluated.
      devices: over how many devices clients are spread, or whole runs (seeds, cells of a sweep) where there are four
        or more for each device; "all" or a number. A CPU is one device unless
        ``fljax.use_cores`` made its cores devices before JAX started.
    """

    clients: Clients = "auto"
    seeds: Strategy = "auto"
    evaluation: Strategy = "auto"
    devices: Devices = "all"


class Lanes(NamedTuple):
    """A resolved Execution: how many run side by side, on each of how many devices."""

    clients: int
    seeds: int  # runs
    evaluation: int
    devices: int = 1
    runs_apart: bool = False  # whether devices take runs (of a sweep, or seeds) whole, rather than a run's clients


class Sizes(NamedTuple):
    """What ``auto`` decides from; all in bytes but the counts."""

    rows: int  # of the cohort
    population: int  # clients that are evaluated
    seeds: int  # runs: seeds, times cells in a sweep
    model: int  # what one client receives, or the model that it trains, whichever is more
    evaluated: int  # prepared examples of one client's evaluation
    lane: int = 0  # what training one client holds at once
    samples: tuple[int, ...] | None = None  # of all clients, most first, where steps depend on them


def resolve(execution: Execution, sizes: Sizes, backend: str | None = None) -> Lanes:
    """Replaces names by numbers: a fixed rule of shapes, backend, memory and devices, so that a run can be repeated.

    "auto" for clients: on a CPU as many as keep three copies of the model (parameters, gradient, update) in 256 KiB;
    on an accelerator as many as fill half of its free memory, rounded down to a power of two, so that what a program
    holds besides seldom changes it. Where steps differ between clients, chunks take the steps of their longest client,
    and the number is lowered to where chunks of like clients waste least. Runs (seeds, and cells of a sweep)
    are batched only if all their clients fit as well. Where there are four runs or more for each device, devices take
    whole runs; else each trains a part of every cohort.

    Raises:
      ValueError: if a strategy is neither a known name nor a positive number, or there are fewer devices.
    """
    backend = jax.default_backend() if backend is None else backend
    kind = "cpu" if backend == "cpu" else "accelerator"
    devices = _devices(execution.devices, sizes)
    apart = devices > 1 and sizes.seeds >= APART * devices
    rows = sizes.rows if apart else -(-sizes.rows // devices)
    needed = max(1, 3 * sizes.model)
    fitting = CACHE // needed if kind == "cpu" else _power_of_two(_memory() // max(sizes.lane, needed))
    lanes = max(1, min(rows, fitting))
    if sizes.samples is not None:
        lanes = _least_waste(sizes.samples, lanes, ALONE[kind])
    clients = "auto" if execution.clients == "trial" else execution.clients
    each = sizes.population if apart else -(-sizes.population // devices)
    runs = -(-sizes.seeds // devices) if apart else sizes.seeds
    return Lanes(
        _lanes("clients", clients, rows, lanes, "auto, trial, vmap, scan"),
        _lanes("seeds", execution.seeds, runs, fitting // rows),
        _lanes("evaluation", execution.evaluation, each, EVALUATION[kind] // max(1, sizes.evaluated)),
        devices,
        apart,
    )


def neighbours(lanes: Lanes, sizes: Sizes) -> list[Lanes]:
    """What a trial tries: the number that ``auto`` takes, a quarter and four times of it, one, and all."""
    rows = -(-sizes.rows // lanes.devices)
    tried = {1, lanes.clients, lanes.clients // 4, lanes.clients * 4, rows}
    return [lanes._replace(clients=k) for k in sorted(tried) if 1 <= k <= rows]


def _devices(asked: Devices, sizes: Sizes) -> int:
    there = jax.device_count()
    number = there if asked == "all" else asked
    if isinstance(number, bool) or not isinstance(number, int) or not number >= 1:
        raise ValueError(f'expected execution.devices to be "all" or a positive number, got {asked!r}')
    if number > there:
        raise ValueError(
            f"expected execution.devices to be at most the {there} that JAX sees, got {number}; "
            "fljax.use_cores() makes the cores of a CPU devices"
        )
    return min(number, max(sizes.rows, 1))


def _memory() -> int:
    def free(device: Any) -> int:
        told = device.memory_stats() or {}
        return told.get("bytes_limit", ACCELERATOR) - told.get("bytes_in_use", 0)

    return int(FILLED * min(map(free, jax.local_devices())))


def _power_of_two(number: int) -> int:
    """The largest power of two that is no larger, 0 for 0."""
    return 1 << (number.bit_length() - 1) if number > 0 else 0


def _least_waste(samples: Sequence[int], most: int, alone: float) -> int:
    """The number of lanes at which chunks of like clients, each as long as its longest, cost least."""
    ordered = np.maximum(np.asarray(samples, float), 1)

    def cost(lanes: int) -> float:
        return float(np.sum(ordered[::lanes])) * lanes * (1 + alone / lanes)

    tried = {1, 2, 3, 4, 5, 6, 8, _even(len(samples), most), *(2**power for power in range(4, 20))}
    return min((lanes for lanes in sorted(tried) if lanes <= most), key=cost)


def _lanes(name: str, strategy: Clients, count: int, automatic: int, names: str = "auto, vmap, scan") -> int:
    message = f"expected execution.{name} to be {names} or a positive number, got {strategy!r}"
    if isinstance(strategy, str):
        named = {"auto": _even(count, automatic), "vmap": count, "scan": 1}
        if strategy not in named:
            raise ValueError(message)
        return max(1, named[strategy])
    if isinstance(strategy, bool) or not isinstance(strategy, int) or strategy < 1:
        raise ValueError(message)
    return max(1, min(strategy, count))


def _even(count: int, lanes: int) -> int:
    """At most ``lanes``, dividing ``count`` if that costs less than half of them, so that no chunk is padded."""
    lanes = max(1, min(lanes, count))
    divisor = next(k for k in range(lanes, 0, -1) if count % k == 0)
    return divisor if 2 * divisor >= lanes else lanes
