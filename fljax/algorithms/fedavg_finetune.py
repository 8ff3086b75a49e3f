"""FedAvg-finetune: FedAvg, with local training of the global model before each client uses it.

Source: IAFL, section 6, a baseline: uniform averaging, then one epoch at the initial learning rate. Deviation: none;
every evaluation during the run tunes the current global model.
"""

from __future__ import annotations

from typing import Literal

from fljax.algorithms.entries import Entry
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import tuned
from fljax.core.values import Count, CountOrZero, NonNegative, checked
from fljax.protocol import Algorithm, Task
from fljax.training import Local, Optimizer


@checked
def fedavg_finetune(
    task: Task,
    local: Local,
    *,
    tune_epochs: CountOrZero = 1,
    clients_per_round: Count | None = None,
    weights: Literal["size", "uniform"] = "uniform",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``theta_k = LocalSGD(w, k)`` for ``tune_epochs`` epochs at ``local.learning_rate``, with FedAvg's ``w``.

    Args:
      task: model and loss.
      local: how clients train; tuning uses its optimizer and batch size.
      tune_epochs: passes over the client's training rows; 0: FedAvg.
      clients_per_round: as for ``fedavg``.
      weights: as for ``fedavg``.
      server_lr: as for ``fedavg``.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm; the global model is judged as well. Info: ``weight`` [row].

    Raises:
      ValueError: if ``tune_epochs`` is negative, and as for ``fedavg``.
    """
    usual = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    return tuned(usual, local, tune_epochs)


ENTRY = Entry(
    fedavg_finetune,
    "FedAvg whose model every client tunes before it uses it",
    ("wu2024incentive",),
    differentiable=("server_lr",),
)
