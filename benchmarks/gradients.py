"""What a gradient through a round holds: ``python benchmarks/gradients.py``.

The gradient of the mean test loss after some rounds of INCFL, with respect to every client's threshold and to the
learning rate. The model is an MLP (784-64-30-10); each client has 60 rows and takes two steps of 30 rows. The bytes are
the temporary ones that the compiled program says it needs. ``--run`` also runs it and prints seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from cohorts import federation


def main() -> None:
    """Compiles the programs and prints the table."""
    parser = argparse.ArgumentParser(description="Temporary memory of a gradient through rounds.")
    parser.add_argument("--clients", default="10,100,1000", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--run", action="store_true", help="also run each program, and print seconds")
    options = parser.parse_args()
    counts = [int(each) for each in options.clients.split(",")]
    print(f"temporary MB through {options.rounds} round(s)" + (", and seconds of a run" if options.run else ""))
    print(" ".join([f"{'clients':>28}", *(f"{count:>16,}" for count in counts)]))
    ways = {
        "all side by side": {},
        "one at a time": {"clients": 1},
        "one at a time, recomputed": {"clients": 1, "rematerialise": True},
    }
    for name, layout in ways.items():
        cells = [measure(count, options.rounds, layout, options.run) for count in counts]
        print(" ".join([f"{name:>28}", *(f"{cell:>16}" for cell in cells)]), flush=True)


def measure(clients: int, rounds: int, layout: dict[str, Any], run: bool) -> str:
    """Temporary megabytes of the compiled gradient; with ``run`` also the seconds of its second run."""
    import jax

    compiled, arguments = gradient(clients, rounds, layout)
    analysis = compiled.memory_analysis()
    assert analysis is not None
    cell = f"{analysis.temp_size_in_bytes / 1e6:,.1f}"
    if not run:
        return cell
    jax.block_until_ready(compiled(arguments))
    began = time.perf_counter()
    jax.block_until_ready(compiled(arguments))
    return f"{cell} {time.perf_counter() - began:.2f} s"


def gradient(clients: int, rounds: int, layout: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    """The compiled gradient, and its argument."""
    import jax
    import jax.numpy as jnp

    import fljax
    from fljax import algorithms, models, training

    data = federation(clients)
    task = models.mlp((28, 28), 10, hidden=(64, 30), dropout=0.0)

    def loss(values: dict[str, Any]) -> Any:
        local = training.Local(values["learning_rate"], 30, epochs=1)
        algorithm = algorithms.incfl(task, local, threshold=values["threshold"], clients_per_round=None)
        state, _ = fljax.rollout(algorithm, data, rounds=rounds, **layout)
        return fljax.evaluate_clients(algorithm, data, state, clients=1)["test_loss"].mean()

    values = {"threshold": jnp.full(clients, 2.0), "learning_rate": jnp.asarray(0.05)}
    return jax.jit(jax.grad(loss)).lower(values).compile(), values


if __name__ == "__main__":
    main()
