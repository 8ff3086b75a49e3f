"""A toy that records the contributions that it is given, and a measure of one's own, both found by import path.

Source: none; they exist to test how experiments hand contributions on.
"""

from __future__ import annotations

from typing import Any

from fljax.protocol import Algorithm, Task, along
from fljax.training import Local
from tests.toys.models_per_client import models_per_client


def rewarding(task: Task, local: Local, *, contribution: Any, clients_per_round: int | None = None) -> Algorithm:
    """``models_per_client`` that records its ``contribution`` by client.

    Args:
      task: model and loss.
      local: how clients train.
      contribution: ``[N]`` by id.
      clients_per_round: who trains in a round; None: all.
    """
    inner = models_per_client(task, local, contribution=contribution, clients_per_round=clients_per_round)

    def aggregate(*arguments: Any) -> Any:
        server, info = inner.aggregate(*arguments)
        return server, {**info, **along("client", contribution=contribution)}

    return inner._replace(aggregate=aggregate)


def inverse_loss(standalone_loss: Any, *, power: float = 1.0) -> Any:
    """``loss^-power``."""
    return standalone_loss**-power
