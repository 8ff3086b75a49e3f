"""What clients of very different size cost: ``python benchmarks/ragged.py``.

100 clients take part in every round with one pass over their data each. In one federation all have the same number of
rows, in the other the numbers are drawn from a Dirichlet distribution with parameter 0.5; the totals of steps are
compared. Rounds of both alternate, in one process, and the median of the ratios of seconds per real step is printed
and saved.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import fljax

fljax.use_cores()

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from throughput import hardware  # noqa: E402

from fljax import models  # noqa: E402
from fljax.algorithms import fedavg  # noqa: E402
from fljax.protocol import ClientData, Examples, Federation, Rows  # noqa: E402

CLIENTS, MEAN = 100, 300
TASKS: dict[str, Any] = {
    "logistic regression 60-10, batch 20": ((60,), 20, lambda: models.logistic_regression((60,), 10)),
    "MLP 784-64-30-10, batch 30": ((28, 28), 30, lambda: models.mlp((28, 28), 10, hidden=(64, 30), dropout=0.0)),
}


def federation(shape: tuple[int, ...], sizes: np.ndarray) -> Federation:
    """Clients with so many rows each, out of one pool."""
    random = np.random.default_rng(0)
    x = jnp.asarray(random.random((CLIENTS * MEAN, *shape)), jnp.float32)
    y = jnp.asarray(random.integers(0, 10, len(x)), jnp.int32)
    index = jnp.asarray(random.integers(0, len(x), (CLIENTS, int(sizes.max()))), jnp.int32)
    few = Rows(index[:, :1], jnp.ones(CLIENTS, jnp.int32))
    rows = Rows(index, jnp.asarray(sizes, jnp.int32))
    return Federation(Examples(x, y), ClientData(jnp.arange(CLIENTS, dtype=jnp.int32), rows, few, few))


class Run:
    """A run that goes on from call to call."""

    def __init__(self, task: Any, batch: int, sizes: np.ndarray, shape: tuple[int, ...], execution: Any) -> None:
        self.steps = int(np.sum(-(-sizes // batch)))
        self.algorithm = fedavg(task, fljax.Local(0.05, batch, epochs=1), clients_per_round=CLIENTS)
        self.federation, self.execution, self.state = federation(shape, sizes), execution, None

    def seconds_per_step(self, rounds: int) -> float:
        """Of ``rounds`` more rounds."""
        result = fljax.simulate(
            self.algorithm,
            self.federation,
            rounds=rounds,
            evaluate_every=rounds,
            initial=self.state,
            execution=self.execution,
        )
        self.state, self.clients = result.state, int(result.metrics["execution_clients"])
        return float(result.metrics["seconds_train"]) / rounds / self.steps


def main() -> None:
    """Measures both tasks, in what ``auto`` chooses and one client at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=4)
    default = Path(__file__).parent / "results" / f"{datetime.date.today()}-ragged.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    drawn = np.random.default_rng(1).dirichlet(np.full(CLIENTS, 0.5))
    skewed = np.maximum(1, np.round(drawn * CLIENTS * MEAN)).astype(int)
    found = []
    for name, (shape, batch, task) in TASKS.items():
        even = np.full(CLIENTS, MEAN)
        for devices in (1, "all"):
            execution = fljax.Execution(devices=devices)  # type: ignore[arg-type]
            runs = [Run(task(), batch, sizes, shape, execution) for sizes in (even, skewed)]
            for run in runs:
                run.seconds_per_step(options.rounds)
            ratios, rates = [], []
            for _ in range(options.passes):
                first, second = (run.seconds_per_step(options.rounds) for run in runs)
                ratios.append(second / first)
                rates.append((1 / first, 1 / second))
            middle = np.median(rates, axis=0)
            found.append(
                {
                    "task": name,
                    "devices": devices,
                    "clients_at_a_time": [run.clients for run in runs],
                    "largest_share": float(skewed.max() / skewed.sum()),
                    "steps_per_second_even": float(middle[0]),
                    "steps_per_second_skewed": float(middle[1]),
                    "ratio": float(np.median(ratios)),
                }
            )
            print(json.dumps(found[-1]))
    report = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "hardware": hardware()}
    options.out.write_text(json.dumps(report | {"results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
