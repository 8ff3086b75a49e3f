"""What a round holds beside its arguments, by the size of its cohort: ``python benchmarks/cohorts.py``.

An MLP (784-64-30-10) is trained by FedAvg, INCFL, SCAFFOLD and IFCA. The bytes are the temporary ones that the
compiled program of a round says it needs, with as many clients side by side as ``auto`` takes. Nothing is run.
``--source FOLDER`` measures the fljax of another checkout.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

COHORTS = (100, 1_000, 10_000)
ROWS = 60


def main() -> None:
    """Compiles the programs and prints the table."""
    parser = argparse.ArgumentParser(description="Temporary memory of a round, by the size of its cohort.")
    parser.add_argument("--cohorts", default=",".join(map(str, COHORTS)), help="comma-separated")
    parser.add_argument("--source", default="", metavar="FOLDER", help="another checkout of fljax")
    parser.add_argument("--devices", type=int, default=1, help="cores of the CPU that JAX sees as devices")
    options = parser.parse_args()
    if options.source:
        sys.path.insert(0, options.source)
    cohorts = [int(each) for each in options.cohorts.split(",")]

    import fljax

    fljax.use_cores(options.devices)
    print(f"temporary MB of a round on {options.devices} device(s), each; in brackets: clients side by side")
    print(" ".join([f"{'cohort':>10}", *(f"{cohort:>16,}" for cohort in cohorts)]))
    for name in ("fedavg", "incfl", "scaffold", "ifca"):
        found = [measure(name, cohort, options.devices) for cohort in cohorts]
        cells = [f"{megabytes:>11.1f} ({lanes:>2})" for megabytes, lanes in found]
        print(" ".join([f"{name:>10}", *cells]), flush=True)


def federation(clients: int) -> Any:
    """Clients with 60 of 6,000 random images each."""
    import jax.numpy as jnp
    import numpy as np

    from fljax.protocol import ClientData, Examples, Federation, Rows

    random = np.random.default_rng(0)
    examples = Examples(jnp.asarray(random.integers(0, 256, (6000, 28, 28)), jnp.uint8), jnp.arange(6000) % 10)
    owned = Rows(jnp.asarray(random.integers(0, 6000, (clients, ROWS)), jnp.int32), jnp.full(clients, ROWS, jnp.int32))
    few = Rows(owned.index[:, :1], jnp.ones(clients, jnp.int32))
    return Federation(examples, ClientData(jnp.arange(clients, dtype=jnp.int32), owned, few, few))


def measure(name: str, cohort: int, devices: int) -> tuple[float, int]:
    """Temporary megabytes of the compiled round, and how many clients are side by side on each device."""
    import jax.numpy as jnp

    from fljax import algorithms, models
    from fljax.engine import Execution
    from fljax.engine.programs import evaluation, program
    from fljax.engine.programs.execution import resolve
    from fljax.training import Local

    try:
        from fljax.engine.programs.shapes import measure as shapes_of
    except ImportError:  # an older checkout
        shapes_of = vars(program)["measure"]

    data = federation(cohort)
    task = models.mlp((28, 28), 10, hidden=(64, 30), dropout=0.0)
    more = {"threshold": 1.0} if name == "incfl" else {}
    algorithm = getattr(algorithms, name)(task, Local(0.05, 30, epochs=1), clients_per_round=None, **more)
    spec, inputs = program.partition_plan(algorithm, data)
    execution = Execution(devices=devices)
    layout = resolve(execution, shapes_of(spec, inputs, 1).sizes)
    traced = list(evaluation.trace_all(spec, layout, 1, inputs, jnp.zeros(1, jnp.uint32)))[1]
    analysis = traced.lower().compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes / 1e6, layout.clients


if __name__ == "__main__":
    main()
