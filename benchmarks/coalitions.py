"""Every coalition of clients retrained: ``python benchmarks/coalitions.py`` beside ``simulate`` on all clients.

Fashion-MNIST, shared out among 10 clients by Dirichlet(0.5), the multilayer perceptron 784-64-30-10, 20 rounds of 20
steps of 32: 1,024 coalitions are 2,048,000 client-steps, and their value is the accuracy on the common test set. Three
parts, each a command:

- ``--part speed``: ``simulate``, the table and a loop take turns in one process. The unit is client-steps by CPU-second
  of the process, everything included. The first turn of the table compiles its program. ``simulate`` runs in programs
  of 30 rounds, which have the same kernels. The loop is one call of ``simulate`` for each coalition, of which
  ``--loop`` are taken, spread over all of them; it does not compile again.
- ``--part table --checkpoint DIR``: the table alone, its peak of memory beside that of ``simulate`` in a process of its
  own, whether Shapley values add up to the value of all, and three coalitions beside runs of their own. The same
  command goes on after the blocks that the folder has; its peak is then that of the rest.
- ``--part killed --checkpoint DIR``: the table once more in a process that gets SIGKILL in the middle, another one that
  goes on, and whether all bits are those of the folder, which ``--part table`` has filled.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from throughput import hardware

import fljax
from fljax import algorithms, data, models
from fljax.core.files import read_npz
from fljax.engine.whole_runs.program import rows_of_members

STEPS, BATCH = 20, 32
PLAIN = 60  # rounds of ``simulate`` whose memory is measured, in programs of 30
INTO_BLOCK = 3.0  # seconds from the end of a block to the end of the process


class Problem(NamedTuple):
    """What is retrained: ``member [M, N]`` has the coalitions of ``codes``."""

    plan: fljax.Plan
    federation: fljax.Federation
    codes: np.ndarray
    member: np.ndarray
    rounds: int

    @property
    def steps(self) -> int:
        """Client-steps of all coalitions."""
        return int(self.member.sum()) * self.rounds * STEPS


def problem_of(options: argparse.Namespace) -> Problem:
    """The federation and the coalitions."""
    images = data.load("fashion_mnist", folder=options.folder)
    federation = data.federate(images, "dirichlet", clients=options.clients, beta=0.5, test="global")
    task = models.mlp(images.x.shape[1:], 10, dropout=0.0)
    local = fljax.Local(0.05, BATCH, steps=STEPS)
    plan = fljax.Plan(algorithms.fedavg, {"task": task, "local": local, "clients_per_round": None})
    count = 2**options.clients if options.coalitions is None else options.coalitions
    codes = np.linspace(0, 2**options.clients - 1, count).round().astype(int)
    member = codes[:, None] >> np.arange(options.clients)[None, :] & 1
    return Problem(plan, federation, codes, member, options.rounds)


def plain(problem: Problem, rounds: int) -> Any:
    """``simulate`` on all clients."""
    return fljax.simulate(problem.plan, problem.federation, rounds=rounds, evaluate_every=30)


def table(problem: Problem, folder: str | Path, on_block: Callable[[Any], Any] | None = None) -> xr.Dataset:
    """All coalitions, or those that the folder lacks."""
    over = fljax.Over(member=problem.member)
    return fljax.runs(
        problem.plan, problem.federation, over, rounds=problem.rounds, checkpoint=folder, on_block=on_block
    )


def fresh(problem: Problem) -> xr.Dataset:
    """All coalitions anew."""
    with tempfile.TemporaryDirectory() as folder:
        return table(problem, folder)


def loop(problem: Problem, places: np.ndarray) -> None:
    """A call of ``simulate`` for each of some coalitions."""
    for place in places:
        some = rows_of_members(problem.federation, jnp.asarray(problem.member[place], bool))
        fljax.simulate(problem.plan, some, rounds=problem.rounds, evaluate_every=problem.rounds)


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a function returns, its CPU-seconds and its seconds."""
    began, began_cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.process_time() - began_cpu, time.perf_counter() - began


def peak() -> float:
    """The largest resident memory of this program so far, in MiB.

    Linux's ``ru_maxrss`` of a program that another one started begins at the peak of the latter; ``VmHWM`` does not.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kibibytes = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if kibibytes is None else kibibytes) / 1024


def shapley(values: np.ndarray, clients: int) -> np.ndarray:
    """``phi_i = sum_S |S|! (N - 1 - |S|)! / N! (v(S + i) - v(S))`` of a table by code, ``[2^N]``."""
    codes = np.arange(2**clients)
    sizes = np.array([code.bit_count() for code in codes.tolist()])
    weight = np.array([1 / (clients * math.comb(clients - 1, size)) for size in range(clients)])
    without = [codes[codes >> client & 1 == 0] for client in range(clients)]
    return np.array([np.sum(weight[sizes[c]] * (values[c | 1 << i] - values[c])) for i, c in enumerate(without)])


def checked(problem: Problem, measured: xr.Dataset) -> dict[str, Any]:
    """Whether Shapley values add up to the value of all, and three coalitions equal runs of their own."""
    report: dict[str, Any] = {}
    value = measured["test_accuracy"].mean("client").values[:, 0].astype(float)
    count, clients = problem.member.shape
    if count == 2**clients:
        phi = shapley(value, clients)
        report |= {"shapley": phi.round(4).tolist(), "gain": float(value[-1] - value[0])}
        report["efficiency"] = float(phi.sum() - (value[-1] - value[0]))
    report["alone"] = {}
    for place in (place for place in (count // 3, count - 2, count - 1) if problem.member[place].any()):
        over = fljax.Over(member=problem.member[place : place + 1])
        again = fljax.runs(problem.plan, problem.federation, over, rounds=problem.rounds)
        report["alone"][int(problem.codes[place])] = equal(again, measured.isel(run=slice(place, place + 1)))
    return report


def equal(first: xr.Dataset, second: xr.Dataset) -> bool:
    """Whether all measures have equal bits."""
    return set(first) == set(second) and all(
        first[name].dtype == second[name].dtype
        and np.array_equal(first[name].values, second[name].values, equal_nan=True)
        for name in first
    )


def speed(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """Turns of the three forms."""
    clients, count = options.clients, len(problem.codes)
    # As many client-steps as the table, in programs that are not long.
    plain_rounds = max(30, 30 * round(problem.steps / (30 * clients * STEPS)))
    report: dict[str, Any] = {}
    _, report["plain_first_cpu"], _ = timed(lambda: plain(problem, 30))
    report["plain_peak_mib"] = peak()
    over = fljax.Over(member=problem.member[:1])
    _, report["runs_first_cpu"], _ = timed(lambda: fljax.runs(problem.plan, problem.federation, over, rounds=0))
    rates: dict[str, list[float]] = {"plain": [], "runs": [], "loop": []}
    sample, measured = np.linspace(1, count - 1, options.loop).round().astype(int), None
    if len(sample):
        loop(problem, sample[-1:])
    for _ in range(options.passes):
        _, cpu, wall = timed(lambda: plain(problem, plain_rounds))
        rates["plain"].append(plain_rounds * clients * STEPS / cpu)
        print(f"plain: {rates['plain'][-1]:,.0f} client-steps by CPU-second, {wall:.1f} s", flush=True)
        measured, cpu, wall = timed(lambda: fresh(problem))
        rates["runs"].append(problem.steps / cpu)
        print(f"runs:  {rates['runs'][-1]:,.0f} client-steps by CPU-second, {cpu:.1f} CPU-s, {wall:.1f} s", flush=True)
        if len(sample):
            _, cpu, wall = timed(lambda: loop(problem, sample))
            rates["loop"].append(int(problem.member[sample].sum()) * problem.rounds * STEPS / cpu)
            print(f"loop:  {rates['loop'][-1]:,.0f} client-steps by CPU-second, {wall:.1f} s", flush=True)
    report |= {"rates": rates, "peak_mib": peak()}
    report["ratio"] = statistics.median(a / b for a, b in zip(rates["runs"], rates["plain"], strict=True))
    if rates["loop"]:
        report["ratio_to_loop"] = statistics.median(a / b for a, b in zip(rates["runs"], rates["loop"], strict=True))
    assert measured is not None
    return report | checked(problem, measured)


def alone(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """The table in this process, its memory beside a plain run's, and its checks."""
    begun = runs_on_disk(options.checkpoint)
    measured, cpu, wall = timed(lambda: table(problem, options.checkpoint, told))
    report = {"resumed_after": begun, "cpu_seconds": cpu, "seconds": wall, "peak_mib": peak()}
    lines = subprocess.run(command(options, "plain"), check=True, capture_output=True, text=True).stdout
    report["plain_peak_mib"] = json.loads(lines)["peak_mib"]
    report["above_plain_mib"] = report["peak_mib"] - report["plain_peak_mib"]
    return report | checked(problem, measured)


def killed(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    """A table whose process is killed in the middle, the rest in another process, and whether the bits are equal."""
    expected = table(problem, options.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        options.checkpoint = Path(folder)
        process = subprocess.Popen(command(options, "rest"), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if int(line.split()[0].replace(",", "")) >= len(problem.codes) / 2:
                break
        time.sleep(INTO_BLOCK)
        process.kill()
        code = process.wait()
        begun = runs_on_disk(options.checkpoint)
        print(f"killed, with code {code}: {begun:,} of {len(problem.codes):,} runs are on the disk", flush=True)
        subprocess.run(command(options, "rest"), check=True)
        same = equal(table(problem, options.checkpoint), expected)
    return {"code": code, "resumed_after": begun, "equal_bits": same}


def runs_on_disk(folder: Path) -> int:
    """The number of runs that a folder has."""
    return sum(len(read_npz(path, "finished runs")["place"]) for path in folder.glob("runs-*.npz"))


def told(done: Any) -> None:
    """Prints a line after each block; it begins with the number of finished runs."""
    print(f"{done.done:,} of {done.runs:,} runs, a block of {done.seconds:.1f} s", flush=True)


def command(options: argparse.Namespace, part: str) -> list[str]:
    """This command with another part."""
    names = ("clients", "coalitions", "rounds", "devices", "folder", "checkpoint")
    chosen = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return [sys.executable, __file__, "--part", part, *(f"--{name}={value}" for name, value in chosen.items())]


def main() -> None:
    """Computes a part, prints its numbers, and writes them."""
    parser = argparse.ArgumentParser(description="Every coalition of clients retrained, beside a plain run.")
    # The parts "plain" and "rest" are processes of the others.
    parser.add_argument("--part", default="speed", choices=("speed", "table", "killed", "plain", "rest"))
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--coalitions", type=int, help="how many, spread over all of them; without it all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--passes", type=int, default=2, help="turns of each form")
    parser.add_argument("--loop", type=int, default=32, help="coalitions that a loop of separate runs computes")
    parser.add_argument("--devices", type=int, default=2, help="cores of the CPU that JAX sees as devices")
    parser.add_argument("--folder", type=Path, help="of the files of Fashion-MNIST")
    parser.add_argument("--checkpoint", type=Path, help="of the finished blocks of --part table")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    if options.checkpoint is None and options.part in ("table", "killed", "rest"):
        parser.error(f"expected --checkpoint with --part {options.part}, got none")
    if options.passes < 1:
        parser.error(f"expected --passes to be at least 1, got {options.passes}")
    if options.devices > 1:
        fljax.use_cores(options.devices)
    problem = problem_of(options)
    if options.part == "rest":
        assert options.checkpoint is not None
        table(problem, options.checkpoint, told)
        return
    report: dict[str, Any]
    if options.part == "plain":
        plain(problem, PLAIN)
        report = {"peak_mib": peak()}
    else:
        about = {"hardware": hardware(), "jax": jax.__version__, "coalitions": len(problem.codes)}
        part = {"speed": speed, "table": alone, "killed": killed}[options.part]
        report = about | {"client_steps": problem.steps} | part(problem, options)
        report["load"] = [round(load, 1) for load in os.getloadavg()]
    print(json.dumps(report, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
