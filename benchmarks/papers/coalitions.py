"""Every coalition of clients retrained, beside a plain run.

Fashion-MNIST, shared out among the clients by Dirichlet(0.5), the multilayer perceptron 784-64-30-10, rounds of 20
steps of 32; the value of a coalition is the accuracy on the common test set. ``simulate`` on all clients, the table
of all coalitions and a loop take turns in one process, after a first call of each that compiles. The unit is
client-steps by CPU-second of the process, everything included. The loop is one call of ``simulate`` for each of some
coalitions, spread over all of them. *By simulate* is the median of the ratios turn by turn.

Then the results are checked: Shapley values add up to the gain of all, and three coalitions have the bits of runs of
their own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr

import fljax
from benchmarks.reporting import Row
from fljax import algorithms, contributions, data, models
from fljax.engine.whole_runs.program import rows_of_members

STEPS, BATCH = 20, 32


class Problem(NamedTuple):
    """What is retrained: ``member [M, N]`` has the coalitions."""

    plan: fljax.Plan
    federation: fljax.Federation
    member: np.ndarray
    rounds: int

    def runs(self, member: np.ndarray) -> xr.Dataset:
        """Some coalitions, anew."""
        with tempfile.TemporaryDirectory() as folder:
            over = fljax.Over(member=member)
            return fljax.runs(self.plan, self.federation, over, rounds=self.rounds, checkpoint=folder)

    def loop(self, member: np.ndarray) -> None:
        """A call of ``simulate`` for each of some coalitions."""
        for row in member:
            some = rows_of_members(self.federation, jnp.asarray(row, bool))
            fljax.simulate(self.plan, some, rounds=self.rounds, evaluate_every=self.rounds)

    def steps(self, member: np.ndarray) -> int:
        """Client-steps of some coalitions."""
        return int(member.sum()) * self.rounds * STEPS


def problem_of(options: Namespace) -> Problem:
    """The federation and the coalitions."""
    images = data.load(options.data, **({"folder": options.folder} if options.folder else {}))
    federation = data.federate(images, "dirichlet", clients=options.clients, beta=0.5, test="global")
    task = models.mlp(images.x.shape[1:], 10, dropout=0.0)
    local = fljax.Local(0.05, BATCH, steps=STEPS)
    plan = fljax.Plan(algorithms.fedavg, {"task": task, "local": local, "clients_per_round": None})
    member = np.arange(2**options.clients)[:, None] >> np.arange(options.clients)[None, :] & 1
    return Problem(plan, federation, member, options.rounds)


def measure(options: Namespace) -> Iterator[Row]:
    """The rates of the three forms, then the checks."""
    fljax.use_cores(options.devices)
    problem = problem_of(options)
    member = problem.member
    sample = member[np.linspace(1, len(member) - 1, options.loop).round().astype(int)]
    # As many client-steps as the table, in programs that are not long.
    rounds = max(30, 30 * round(problem.steps(member) / (30 * options.clients * STEPS)))
    table: list[xr.Dataset] = []
    forms: dict[str, tuple[Callable[[], Any], int]] = {
        "simulate": (
            lambda: fljax.simulate(problem.plan, problem.federation, rounds=rounds, evaluate_every=30),
            rounds * options.clients * STEPS,
        ),
        "all coalitions": (lambda: table.append(problem.runs(member)), problem.steps(member)),
        "loop": (lambda: problem.loop(sample), problem.steps(sample)),
    }
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for done in range(options.passes + 1):
        for name, (form, steps) in forms.items():
            began = time.process_time()
            form()
            if done:
                rates[name].append(steps / (time.process_time() - began))
    for name, found in rates.items():
        ratios = [own / plain for own, plain in zip(found, rates["simulate"], strict=True)]
        yield name, statistics.median(found), f"{min(found):,.0f} to {max(found):,.0f}", statistics.median(ratios)
    value = table[-1]["test_accuracy"].mean("client").values[:, 0].astype(float)
    phi = contributions.shapley(value)
    gain = value[-1] - value[0]
    yield f"Shapley values add up to {phi.sum():.6f}, all clients gain {gain:.6f}", None, None, float(phi.sum() - gain)
    for place in (len(member) // 3, len(member) - 2, len(member) - 1):
        same = equal(problem.runs(member[place : place + 1]), table[-1].isel(run=slice(place, place + 1)))
        yield f"coalition {place} has the bits of a run of its own", None, None, same


def equal(first: xr.Dataset, second: xr.Dataset) -> bool:
    """Whether all measures have equal bits."""
    return set(first) == set(second) and all(
        first[name].dtype == second[name].dtype
        and np.array_equal(first[name].values, second[name].values, equal_nan=True)
        for name in first
    )
