"""Every coalition of clients retrained: ``python benchmarks/coalitions.py`` beside ``simulate`` on all clients.

Fashion-MNIST, shared out among 10 clients by Dirichlet(0.5), the multilayer perceptron 784-64-30-10, 20 rounds of 20
steps of 32: 1,024 coalitions are 2,048,000 client-steps, and their value is the accuracy on the common test set. The
two forms take turns in one process. The unit is client-steps by CPU-second of the process, everything included. The
first turn of ``runs`` compiles its program. ``simulate`` runs in programs of 30 rounds, which have the same kernels.
The loop is one call of ``simulate`` for each coalition, of which ``--loop`` are taken, spread over all of them; it does
not compile again.
Shapley values must add up to the value of all, and three coalitions are compared with runs of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from throughput import hardware

import fljax
from fljax import algorithms, data, models
from fljax.engine.whole_runs.members import rows_of_members

STEPS, BATCH = 20, 32


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a function returns, its CPU-seconds and its seconds."""
    began, began_cpu = time.perf_counter(), time.process_time()
    found = function()
    return found, time.process_time() - began_cpu, time.perf_counter() - began


def peak() -> float:
    """The largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def shapley(values: np.ndarray, clients: int) -> np.ndarray:
    """``phi_i = sum_S |S|! (N - 1 - |S|)! / N! (v(S + i) - v(S))`` of a table by code, ``[2^N]``."""
    codes = np.arange(2**clients)
    sizes = np.array([code.bit_count() for code in codes.tolist()])
    weight = np.array([1 / (clients * math.comb(clients - 1, size)) for size in range(clients)])
    without = [codes[codes >> client & 1 == 0] for client in range(clients)]
    return np.array([np.sum(weight[sizes[c]] * (values[c | 1 << i] - values[c])) for i, c in enumerate(without)])


def main() -> None:
    """Takes turns, prints each, and writes the summary."""
    parser = argparse.ArgumentParser(description="Every coalition of clients retrained, beside a plain run.")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--coalitions", type=int, help="how many, spread over all of them; without it all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--passes", type=int, default=2, help="turns of each form; 0: the table alone")
    parser.add_argument("--loop", type=int, default=32, help="coalitions that a loop of separate runs computes")
    parser.add_argument("--devices", type=int, default=2, help="cores of the CPU that JAX sees as devices")
    parser.add_argument("--folder", type=Path, help="of the files of Fashion-MNIST")
    parser.add_argument("--checkpoint", type=Path, help="of the finished blocks; without it a temporary folder")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    if options.devices > 1:
        fljax.use_cores(options.devices)
    images = data.load("fashion_mnist", folder=options.folder)
    federation = data.federate(images, "dirichlet", clients=options.clients, beta=0.5, test="global")
    task = models.mlp(images.x.shape[1:], 10, dropout=0.0)
    local = fljax.Local(0.05, BATCH, steps=STEPS)
    plan = fljax.Plan(algorithms.fedavg, {"task": task, "local": local, "clients_per_round": None})
    count = 2**options.clients if options.coalitions is None else options.coalitions
    codes = np.linspace(0, 2**options.clients - 1, count).round().astype(int)
    member = codes[:, None] >> np.arange(options.clients)[None, :] & 1
    steps = int(member.sum()) * options.rounds * STEPS
    # As many client-steps as the table, in programs that are not long.
    plain_rounds = max(30, 30 * round(steps / (30 * options.clients * STEPS)))

    def plain(rounds: int = plain_rounds) -> Any:
        return fljax.simulate(plan, federation, rounds=rounds, evaluate_every=30)

    def table(folder: str | Path) -> Any:
        return fljax.runs(plan, federation, fljax.Over(member=member), rounds=options.rounds, checkpoint=folder)

    def loop(places: np.ndarray) -> None:
        for place in places:
            some = rows_of_members(federation, jnp.asarray(member[place], bool))
            fljax.simulate(plan, some, rounds=options.rounds, evaluate_every=options.rounds)

    def fresh() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return table(folder)

    report: dict[str, Any] = {
        "hardware": hardware(),
        "jax": jax.__version__,
        "coalitions": count,
        "client_steps": steps,
    }
    if options.passes:
        _, report["plain_first_cpu"], _ = timed(lambda: plain(30))
        report["plain_peak_mib"] = peak()
    over = fljax.Over(member=member[:1])
    _, report["runs_first_cpu"], _ = timed(lambda: fljax.runs(plan, federation, over, rounds=0))
    rates: dict[str, list[float]] = {"plain": [], "runs": [], "loop": []}
    sample = np.linspace(1, count - 1, options.loop).round().astype(int)
    if options.passes and len(sample):
        loop(sample[-1:])
    for _ in range(options.passes):
        _, cpu, wall = timed(plain)
        rates["plain"].append(plain_rounds * options.clients * STEPS / cpu)
        print(f"plain: {rates['plain'][-1]:,.0f} client-steps by CPU-second, {wall:.1f} s", flush=True)
        found, cpu, wall = timed(fresh)
        rates["runs"].append(steps / cpu)
        print(f"runs:  {rates['runs'][-1]:,.0f} client-steps by CPU-second, {cpu:.1f} CPU-s, {wall:.1f} s", flush=True)
        if len(sample):
            _, cpu, wall = timed(lambda: loop(sample))
            rates["loop"].append(int(member[sample].sum()) * options.rounds * STEPS / cpu)
            print(f"loop:  {rates['loop'][-1]:,.0f} client-steps by CPU-second, {wall:.1f} s", flush=True)
    if not options.passes or options.checkpoint is not None:
        found = table(options.checkpoint) if options.checkpoint is not None else fresh()
    report |= {"rates": rates, "peak_mib": peak(), "load": [round(each, 1) for each in os.getloadavg()]}
    if options.passes:
        ratios = [a / b for a, b in zip(rates["runs"], rates["plain"], strict=True)]
        report["ratio"] = statistics.median(ratios)
        if rates["loop"]:
            report["ratio_to_loop"] = statistics.median(
                a / b for a, b in zip(rates["runs"], rates["loop"], strict=True)
            )
    value = found["test_accuracy"].mean("client").values[:, 0].astype(float)
    if count == 2**options.clients:
        phi = shapley(value, options.clients)
        report |= {"shapley": phi.round(4).tolist(), "efficiency": float(phi.sum() - (value[-1] - value[0]))}
    alone = [place for place in (count // 3, count - 2, count - 1) if member[place].any()]
    report["alone"] = {}
    for place in alone:
        over = fljax.Over(member=member[place : place + 1])
        again = fljax.runs(plan, federation, over, rounds=options.rounds)["test_loss"]
        same = bool(np.array_equal(again.isel(run=0), found["test_loss"].isel(run=place), equal_nan=True))
        report["alone"][int(codes[place])] = same
    print(json.dumps(report, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
