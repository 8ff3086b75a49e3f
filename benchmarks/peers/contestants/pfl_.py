"""pfl: ``FederatedAveraging`` on a ``SimulatedBackend`` with in-memory tensors, in one process or in two.

Its in-memory data set cannot shuffle, so clients' rows lie in the order of round 0's batches. With two processes this
one is rank 0 and starts the other, which is handed the same questions.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from protocol import Driver, arguments, read, serve

driver = Driver()
options = arguments(threads=1, processes=1, rank=0, port=0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


follower = None
if options.processes > 1:
    port = options.port or _free_port()
    os.environ |= {"TORCHELASTIC_RUN_ID": "fljax", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(options.rank), "LOCAL_RANK": str(options.rank), "WORLD_SIZE": str(options.processes)}
    os.environ["LOCAL_WORLD_SIZE"] = str(options.processes)
    if options.rank == 0:
        command = [sys.executable, __file__, *sys.argv[1:], "--rank", "1", "--port", str(port)]
        follower = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

import itertools  # noqa: E402
import logging  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_parts  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402

logging.disable(logging.INFO)
torch.set_num_threads(options.threads)
work = read(options.workload)
meta = work.meta
x, y = torch_parts.examples(work), torch.from_numpy(work.y.astype(np.int64))
rows = torch.from_numpy(work.batches().astype(np.int64)).flatten(1)
clients = [PyTorchTensorDataset((x[own], y[own]), user_id=str(i)) for i, own in enumerate(rows)]


class Module(torch_parts.Lenet):
    """What pfl wants of a model."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}  # nothing is evaluated


class Run:
    """The model, its optimisers and the backend."""

    def __init__(self) -> None:
        self.module = Module(work)
        self.names = torch_parts.ordered(self.module, work.parameters)
        initial = torch_parts.to_torch(work.parameters)
        with torch.no_grad():
            for leaf, name in zip(self.module.parameters(), self.names, strict=True):
                leaf.copy_(initial[name])
        central = torch.optim.SGD(self.module.parameters(), 1.0)
        self.model = PyTorchModel(self.module, torch.optim.SGD, central)
        turns = itertools.cycle(range(len(clients)))
        data = FederatedDataset(lambda client: clients[client], lambda: next(turns))
        self.backend = SimulatedBackend(training_data=data, val_data=data)
        self.local = NNTrainHyperParams(
            local_batch_size=meta["batch"], local_num_epochs=1, local_learning_rate=meta["learning_rate"]
        )

    def go(self, rounds: int) -> None:
        """So many rounds, each with the whole cohort."""
        plan = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=2**30,
            train_cohort_size=len(clients),
            val_cohort_size=0,
        )
        FederatedAveraging().run(plan, self.backend, self.model, self.local, send_metrics_to_platform=False)


run: Run | None = None


def _rounds(count: int) -> None:
    global run
    if follower is not None:
        assert follower.stdin is not None
        follower.stdin.write(json.dumps({"op": "rounds", "count": count}) + "\n")
        follower.stdin.flush()
    run = Run() if run is None else run
    run.go(count)
    if follower is not None:
        assert follower.stdout is not None
        follower.stdout.readline()


def _first_round() -> dict[str, np.ndarray]:
    _rounds(1)
    assert run is not None
    found = dict(zip(run.names, run.module.parameters(), strict=True))
    return torch_parts.from_torch(found, work.parameters)


if follower is not None:
    assert follower.stdout is not None
    follower.stdout.readline()  # it is ready
serve(driver, ("pfl", "torch"), first_round=_first_round, rounds=_rounds)
if follower is not None:
    follower.kill()
