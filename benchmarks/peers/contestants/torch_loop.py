"""A plain torch loop: one resident model, clients one after another, tensors instead of a DataLoader."""

# pyright: reportMissingImports=false
from __future__ import annotations

from protocol import Driver, arguments, read, serve_run

driver = Driver()
options = arguments(threads=1)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_parts  # noqa: E402

torch.set_num_threads(options.threads)
work = read(options.workload)
meta = work.meta
x, y = torch_parts.examples(work), torch.from_numpy(work.y.astype(np.int64))
batches = torch.from_numpy(work.batches().astype(np.int64))


class Run:
    """The server's model, and one model in which every client trains."""

    def __init__(self) -> None:
        self.module = torch_parts.module(work)
        self.names = torch_parts.ordered(self.module, work.parameters)
        self.own = list(self.module.parameters())
        initial = torch_parts.to_torch(work.parameters)
        self.optimizer = torch.optim.SGD(self.own, meta["learning_rate"])
        self.server = [initial[name].clone() for name in self.names]
        self.models = [leaf.expand(meta["clients"], *leaf.shape).clone() for leaf in self.server]
        self.matrix = torch.from_numpy(work.extra["matrix"]) if meta["evaluated"] else None

    def train(self, start: list[torch.Tensor], client: int) -> None:
        """Trains the module from ``start`` on the batches of one row of the cohort."""
        with torch.no_grad():
            torch._foreach_copy_(self.own, start)
        for batch in batches[client]:
            loss = F.cross_entropy(self.module(x[batch]), y[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def one_model(self) -> None:
        """A round of FedAvg; clients are of equal size."""
        total = [torch.zeros_like(leaf) for leaf in self.server]
        for client in range(len(batches)):
            self.train(self.server, client)
            with torch.no_grad():
                torch._foreach_add_(total, self.own)
        self.server = [leaf / len(batches) for leaf in total]

    def all_models(self) -> None:
        """A round of a model per client, and the test of all of them and of the reference model."""
        updates = [torch.zeros_like(leaf) for leaf in self.models]
        for row, client in enumerate(work.cohort):
            start = [leaf[client] for leaf in self.models]
            self.train(start, row)
            for update, leaf, old in zip(updates, self.own, start, strict=True):
                update[client] = leaf.detach() - old
        for old, update, leaf in zip(self.models, updates, self.server, strict=True):
            flat = update.reshape(len(update), -1)
            old += (self.matrix @ flat).reshape(old.shape)
            leaf += update.mean(0)

    def evaluate(self) -> None:
        """Accuracy and loss of all N + 1 models on the common test set."""
        with torch.no_grad():
            for client in range(meta["clients"] + 1):
                chosen = self.server if client == meta["clients"] else [leaf[client] for leaf in self.models]
                torch._foreach_copy_(self.own, chosen)
                found = self.module(x[-meta["evaluated"] :])
                own = y[-meta["evaluated"] :]
                _ = F.cross_entropy(found, own).item(), (found.argmax(1) == own).float().mean().item()

    def go(self, rounds: int) -> None:
        """Rounds, with evaluation where that is the workload."""
        for _ in range(rounds):
            if meta["evaluated"]:
                self.all_models()
                self.evaluate()
            else:
                self.one_model()

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model, or all models."""
        found = self.models if meta["evaluated"] else self.server
        return torch_parts.from_torch(dict(zip(self.names, found, strict=True)), work.parameters)


serve_run(driver, ("torch",), Run)
