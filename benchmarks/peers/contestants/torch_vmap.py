"""torch.func: the whole cohort in one ``vmap(grad(loss))`` per step, eager or compiled."""

# pyright: reportMissingImports=false
from __future__ import annotations

from protocol import Driver, arguments, read, serve_run

driver = Driver()
options = arguments(threads=1, compile=False)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_parts  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402

torch.set_num_threads(options.threads)
work = read(options.workload)
meta = work.meta
x, y = torch_parts.examples(work), torch.from_numpy(work.y.astype(np.int64))
batches = torch.from_numpy(work.batches().astype(np.int64)).transpose(0, 1).contiguous()  # [T, S, b]
module = torch_parts.Lenet(work)
names = [name for name, _ in module.named_parameters()]
plain = torch_parts.ordered(module, work.parameters)


def loss(parameters: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of one client's batch."""
    return F.cross_entropy(functional_call(module, parameters, (images,)), labels)


def step(models: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """One step of SGD of all clients."""
    slope = vmap(grad(loss))(models, images, labels)
    return {name: leaf - meta["learning_rate"] * slope[name] for name, leaf in models.items()}


class Run:
    """The server's model and the step of all clients."""

    def __init__(self) -> None:
        initial = torch_parts.to_torch(work.parameters)
        self.server = {name: initial[own] for name, own in zip(names, plain, strict=True)}
        self.step = torch.compile(step, fullgraph=True) if options.compile else step

    def go(self, rounds: int) -> None:
        """Rounds of FedAvg; clients are of equal size."""
        clients = batches.shape[1]
        for _ in range(rounds):
            with torch.no_grad():
                models = {name: leaf.expand(clients, *leaf.shape).contiguous() for name, leaf in self.server.items()}
                for batch in batches:
                    models = self.step(models, x[batch], y[batch])
                self.server = {name: leaf.mean(0) for name, leaf in models.items()}

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model."""
        return torch_parts.from_torch(dict(zip(plain, self.server.values(), strict=True)), work.parameters)


serve_run(driver, ("torch",), Run)
