"""Flower's simulation engine: as many nodes as the cohort has clients, Ray actors of one core each, FedAvg.

The questions are answered from inside the ServerApp, so that starting the engine counts in the first round only.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os

from protocol import Driver, answer, arguments, read, versions

driver = Driver()
options = arguments(actors=2)
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
os.environ |= {"FLJAX_BENCHMARK_WORKLOAD": os.path.abspath(options.workload), "FLJAX_BENCHMARK_THREADS": "1"}
here = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))

import logging  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import flower_client  # noqa: E402
import numpy as np  # noqa: E402
import torch_parts  # noqa: E402
from flwr.app import ArrayRecord, Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

logging.getLogger("flwr").setLevel(logging.ERROR)
work = read(options.workload)
server = ServerApp()
began = 0.0


class AllOrNothing(FedAvg):
    """FedAvg that raises if a client fails; Flower itself leaves failed clients out of the mean."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Averages the replies of all clients."""
        replies = list(replies)
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) < len(work.cohort):
            reason = f": {failed[0].error}" if failed else ""
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed{reason}")
        return super().aggregate_train(server_round, replies)


class Run:
    """The strategy and the server's model."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        cohort = len(work.cohort)
        self.strategy = AllOrNothing(
            fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=cohort, min_evaluate_nodes=0
        )
        self.module = torch_parts.Lenet(work)
        self.names = torch_parts.ordered(self.module, work.parameters)
        initial = torch_parts.to_torch(work.parameters)
        own = [name for name, _ in self.module.named_parameters()]
        self.arrays = ArrayRecord({name: initial[plain] for name, plain in zip(own, self.names, strict=True)})

    def go(self, rounds: int) -> None:
        """So many rounds, each with all nodes."""
        result = self.strategy.start(grid=self.grid, initial_arrays=self.arrays, num_rounds=rounds)
        if not result.arrays:
            raise RuntimeError("Flower's clients sent nothing back")
        self.arrays = result.arrays

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model under fljax's names."""
        state = self.arrays.to_torch_state_dict()
        found = {
            plain: state[name] for plain, (name, _) in zip(self.names, self.module.named_parameters(), strict=True)
        }
        return torch_parts.from_torch(found, work.parameters)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Answers the driver while the engine runs."""
    run = Run(grid)
    for number, question in enumerate(questions):
        try:
            first = lambda: (run.go(1), run.parameters())[1]  # noqa: E731
            found = answer(question, first, run.go, {})
            if number == 0 and "seconds" in found:  # the engine was started for it
                found["seconds"] = time.perf_counter() - began
            driver.tell(**found)
        except Exception as error:
            driver.tell(error=f"{type(error).__name__}: {error}"[:300])


def _all(first: dict[str, Any], rest: Any) -> Any:
    yield first
    yield from rest


driver.tell(ready=True, versions=versions(("flwr", "ray", "torch")))
asked = driver.questions()
first_question = next(asked, None)
if first_question is not None:
    questions = _all(first_question, asked)
    began = time.perf_counter()
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend = {"client_resources": resources, "init_args": {"num_cpus": options.actors, "include_dashboard": False}}
    run_simulation(server, flower_client.app, num_supernodes=len(work.cohort), backend_config=backend)
