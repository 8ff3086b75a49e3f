"""Many behaviours as runs of one program: ``python benchmarks/profiles.py`` runs every profile of 10 clients.

A profile says which clients free-ride: there are 2^10 = 1,024 of them. Each is a Plan, and the plans differ in an array
only, so that ``fljax.engine.sweep`` compiles once and runs them all. Three of them are then run on their own, with
``fljax.simulate``, and compared. The data are the digits of scikit-learn, shared out among the clients by a Dirichlet
distribution.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import numpy as np

from fljax import algorithms, data, engine, models, scenarios, training
from fljax.engine.programs import jit

CLIENTS, CHECKED = 10, (0, 341, 1022)


def main() -> None:
    """Runs the profiles and prints what they took and whether the checked ones agree."""
    parser = argparse.ArgumentParser(description="All profiles of free riders among 10 clients, in one program.")
    parser.add_argument("--profiles", type=int, default=2**CLIENTS, help="how many, from that without free riders")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--devices", type=int, default=1, help="cores of the CPU that JAX sees as devices")
    options = parser.parse_args()
    if options.devices > 1:
        engine.use_cores(options.devices)
    digits = data.load("digits")
    federation = data.federate(digits, "dirichlet", clients=CLIENTS, beta=0.5)
    assert digits.classes is not None
    task = models.mlp(digits.x.shape[1:], digits.classes, prepare=models.standardise(digits.mean, digits.std))
    profiles = (np.arange(options.profiles)[:, None] >> np.arange(CLIENTS)[None, :]) & 1 == 1
    given: dict[str, Any] = {"task": task, "local": training.Local(0.1, batch_size=32, steps=10)}
    plans = [engine.Plan(riding, {**given, "who": profile}) for profile in profiles]
    execution = engine.Execution(devices="all")

    began = time.perf_counter()
    found = engine.sweep(plans, federation, rounds=options.rounds, evaluate_every=options.rounds, execution=execution)
    seconds = time.perf_counter() - began
    programs = len(jit.STORE)
    spent = {name: sum(float(result.metrics[f"seconds_{name}"]) for result in found) for name in ("compile", "train")}
    print(f"jax {jax.__version__}, {options.devices} device(s), {len(plans)} profiles, {options.rounds} rounds")
    print(f"{programs} programs (start, rounds, evaluation); {seconds:.1f} s in all", end="")
    print(f", of which compiling {spent['compile']:.1f} s and training {spent['train']:.1f} s")
    steps = len(plans) * options.rounds * CLIENTS * 10
    print(f"{steps:,} client-steps, {steps / spent['train']:,.0f} a second")
    accuracy = np.array([float(result.metrics["average_accuracy"][0, -1]) for result in found])
    for riders in sorted({int(count) for count in profiles.sum(axis=1)}):
        of = accuracy[profiles.sum(axis=1) == riders]
        spread = f"{of.mean():.3f} ({of.min():.3f} to {of.max():.3f})"
        print(f"{riders:3} free riders: {of.size:4} profiles, mean accuracy {spread}")
    for place in (each for each in CHECKED if each < len(plans)):
        alone = engine.simulate(
            plans[place], federation, rounds=options.rounds, evaluate_every=options.rounds, execution=execution
        )
        names = ("test_loss", "test_accuracy")
        apart = [float(np.nanmax(np.abs(alone.metrics[name] - found[place].metrics[name]))) for name in names]
        print(f"profile {place:4} on its own: losses differ by {apart[0]:.1e} at most, accuracies by {apart[1]:.1e}")


def riding(task: Any, local: Any, who: Any) -> Any:
    """FedAvg in which some clients send nothing."""
    return scenarios.free_riding(algorithms.fedavg(task, local, clients_per_round=None), who=who)


if __name__ == "__main__":
    main()
