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
setting = torch_parts.Setting(work)


class Run:
    """The server's model, and one model in which every client trains."""

    def __init__(self) -> None:
        self.server = [leaf.clone() for leaf in setting.server]
        self.models = [leaf.expand(meta["clients"], *leaf.shape).clone() for leaf in self.server]
        self.matrix = torch.from_numpy(work.extra["matrix"]) if meta["evaluated"] else None

    def all_models(self) -> None:
        """A round of a model per client, and the test of all of them and of the reference model."""
        updates = [torch.zeros_like(leaf) for leaf in self.models]
        for row, client in enumerate(work.cohort):
            start = [leaf[client] for leaf in self.models]
            setting.train(start, setting.batches[row])
            for update, leaf, old in zip(updates, setting.own, start, strict=True):
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
                torch._foreach_copy_(setting.own, chosen)
                found = setting.module(setting.x[-meta["evaluated"] :])
                own = setting.y[-meta["evaluated"] :]
                _ = F.cross_entropy(found, own).item(), (found.argmax(1) == own).float().mean().item()

    def go(self, rounds: int) -> None:
        """Rounds, with evaluation where that is the workload."""
        for _ in range(rounds):
            if meta["evaluated"]:
                self.all_models()
                self.evaluate()
            else:
                self.server = setting.looped(self.server)

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model, or all models."""
        found = self.models if meta["evaluated"] else self.server
        return torch_parts.from_torch(dict(zip(setting.names, found, strict=True)), work.parameters)


serve_run(driver, ("torch",), Run)
