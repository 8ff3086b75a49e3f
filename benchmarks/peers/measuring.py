"""Warm-up, the check of equal work, and interleaved passes over all contestants of one workload."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.peers.products import multiplied, reference
from benchmarks.peers.workers import CONTESTANTS, Contestant, Worker, WorkerError
from benchmarks.peers.workloads import Workload, meta_of
from benchmarks.reporting import MEBIBYTE, plain

Say = Callable[[str], None]


class Entrant(NamedTuple):
    """A contestant that is ready to be measured."""

    contestant: Contestant
    worker: Worker
    variant: str
    rounds: int  # that fill one turn
    first_round: float
    error: float
    tried: dict[str, float]  # client-steps/s of every variant in the warm-up


def export(workload: Workload, scratch: Path) -> Path:
    """Writes the workload's file, in a process of its own."""
    file = scratch / f"{workload.name}.npz"
    command = [sys.executable, str(CONTESTANTS / "export.py"), "--meta", json.dumps(meta_of(workload))]
    done = subprocess.run([*command, "--out", str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise WorkerError(plain(lines[-1]))
    return file


def error_of(file: Path, found: Mapping[str, np.ndarray]) -> float | None:
    """Relative error of the update after one round against the float64 answer; None if the file has none."""
    difference = size = 0.0
    with np.load(file) as expected:
        for name in (name for name in expected.files if name.startswith("after:")):
            own = name.removeprefix("after:")
            update = expected[name] - expected[f"parameter:{own}"].astype(np.float64)
            difference += float(np.sum((found[own].astype(np.float64) - expected[name]) ** 2))
            size += float(np.sum(update**2))
    return (difference / size) ** 0.5 if size else None


def enter(
    contestant: Contestant, python: str, workload: Workload, file: Path, scratch: Path, seconds: float, say: Say
) -> Entrant:
    """Warms up every variant alone and keeps the fastest, halted."""
    best: Entrant | None = None
    reasons: list[str] = []
    tried: dict[str, float] = {}
    for number, variant in enumerate(contestant.variants):
        named = " ".join(word.removeprefix("--") for word in variant)
        log = scratch / f"{workload.name}-{contestant.script}-{contestant.name.replace(' ', '-')}-{number}.log"
        worker = None
        try:
            worker = Worker(contestant, python, variant, file, log)
            found = log.with_suffix(".npz")
            first = worker.ask("first_round", out=str(found))["seconds"]
            with np.load(found) as after:
                error = error_of(file, after)
            assert error is not None  # the file has an answer
            rounds, rate = _calibrate(worker, workload, seconds)
        except (WorkerError, OSError, KeyError) as reason:
            reasons.append(plain(str(reason)))
            if worker is not None:
                worker.close()
            continue
        except BaseException:  # this run is being ended: nothing may stay behind, least of all a halted process
            for left in (worker, None if best is None else best.worker):
                if left is not None:
                    left.close()
            raise
        tried[named] = rate
        entrant = Entrant(contestant, worker, named, rounds, first, error, tried)
        worker.halt()
        if best is not None and tried[best.variant] >= rate:
            worker.close()
        else:
            if best is not None:
                best.worker.close()
            best = entrant
    if best is None:
        raise WorkerError(reasons[0])
    note = f" ({best.variant})" if len(contestant.variants) > 1 else ""
    say(f"  {contestant.name}{note}: {tried[best.variant]:,.0f} client-steps/s, error {best.error:.1e}")
    return best


def _calibrate(worker: Worker, workload: Workload, seconds: float) -> tuple[int, float]:
    """How many rounds fill a turn, and the rate seen on the way."""
    spent = worker.ask("rounds", count=1)["seconds"]
    spent = min(spent, worker.ask("rounds", count=1)["seconds"]) if spent < 2 * seconds else spent
    rounds = 1
    for _ in range(2):  # the second time with the overhead of a call spread over many rounds
        wanted = max(1, round(rounds * seconds / max(spent, 1e-9)))
        if wanted == rounds or (rounds > 1 and 0.5 < wanted / rounds < 2):
            break
        rounds = wanted
        spent = worker.ask("rounds", count=rounds)["seconds"]
        spent = worker.ask("rounds", count=rounds)["seconds"] if spent < 3 * seconds else spent
    return rounds, workload.client_steps * rounds / spent


def passes(
    entrants: list[Entrant], workload: Workload, count: int, multipliers: dict[str, Worker], say: Say
) -> tuple[dict[str, list[float | None]], dict[str, list[float | None]], dict[str, str]]:
    """Client-steps/s by contestant and pass, GFLOP/s of products by library and pass, and why some died on the way."""
    rates: dict[str, list[float | None]] = {entrant.contestant.name: [] for entrant in entrants}
    products: dict[str, list[float | None]] = {}
    lost: dict[str, str] = {}
    order = random.Random(0)
    for number in range(count):
        multiplied(multipliers, products, say)
        for entrant in order.sample(entrants, len(entrants)):
            name = entrant.contestant.name
            if name in lost:
                rates[name].append(None)
                continue
            entrant.worker.resume()
            try:
                spent = entrant.worker.ask("rounds", count=entrant.rounds)["seconds"]
                rates[name].append(workload.client_steps * entrant.rounds / spent)
            except WorkerError as reason:
                lost[name] = str(reason)
                rates[name].append(None)
                entrant.worker.close()  # a late answer would be taken for that to the next question
            entrant.worker.halt()
        say(f"  pass {number + 1} of {count}: the fastest product makes {reference(products).gflops[-1]:.0f} GFLOP/s")
    return rates, products, lost


def ratio(one: list[float | None], other: list[float | None]) -> float | None:
    """The median over passes of one rate by the other, pass by pass."""
    pairs = [a / b for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return statistics.median(pairs) if pairs else None


def peak_of(entrant: Entrant) -> float | None:
    """Mebibytes that its process and the children of that held at most; None if it died."""
    entrant.worker.resume()
    try:
        return entrant.worker.ask("memory")["peak_bytes"] / MEBIBYTE
    except WorkerError:
        return None
    finally:
        entrant.worker.halt()
