"""torch.func: the whole cohort in one ``vmap(grad(loss))`` per step, eager or compiled."""

# pyright: reportMissingImports=false
from __future__ import annotations

from protocol import Driver, arguments, read, serve_run

driver = Driver()
options = arguments(threads=1, compile=False)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch_parts  # noqa: E402

torch.set_num_threads(options.threads)
work = read(options.workload)
setting = torch_parts.Setting(work)


class Run:
    """The server's model and a round of it."""

    def __init__(self) -> None:
        self.server = setting.server
        self.round_of = setting.mapped(options.compile)

    def go(self, rounds: int) -> None:
        """Rounds of FedAvg."""
        for _ in range(rounds):
            self.server = self.round_of(self.server)

    def parameters(self) -> dict[str, np.ndarray]:
        """The server's model."""
        return torch_parts.from_torch(dict(zip(setting.names, self.server, strict=True)), work.parameters)


serve_run(driver, ("torch",), Run)
