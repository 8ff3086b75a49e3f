"""FedBABU: clients train the body alone, with one head that never changes, and tune the whole model before use.

Source: Oh et al., "FedBABU: toward enhanced representation for federated image classification" (ICLR 2022), Algorithm
1. Deviations: a cohort of fixed size is drawn; the authors divide the learning rate by 10 after half and three quarters
of the rounds, which is a schedule of ``local``. The number of epochs of tuning differs between their tables; 5 is the
default of their options.
"""

from __future__ import annotations

from typing import Literal

from fljax.algorithms.entries import Entry
from fljax.algorithms.heads import in_body, learning_of
from fljax.algorithms.single_model import partly_shared, tuned
from fljax.core.values import Count, CountOrZero, checked
from fljax.protocol import Algorithm, Task
from fljax.training import Local


@checked
def fedbabu(
    task: Task,
    local: Local,
    *,
    tune_epochs: CountOrZero = 5,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "uniform",
) -> Algorithm:
    """``B <- B + sum_k a_k (B_k - B) / sum_k a_k`` with ``B_k = LocalSGD(B; H)``, where H stays as it was initialised.

    H is the head, the last layer by ``Task.roles``, and B the rest. A client uses ``LocalSGD((B, H))``, all of it.

    Args:
      task: model and loss.
      local: how clients train; tuning uses its optimizer and batch size, and its ``learning_rate``, whatever its
        decay and schedule.
      tune_epochs: passes over its training rows that a client trains ``(B, H)`` before it uses them; 0: the common
        model.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: ``a_k``: "uniform" is 1, "size" is the client's number of training samples.

    Returns:
      The algorithm. Only B is sent; a client holds H, which it is given once. Without a head it is ``fedavg_finetune``
      of as many epochs. Info: ``weight`` [row].

    Raises:
      ValueError: if ``weights`` is not a valid name or ``tune_epochs`` is negative.
    """
    shared, learning = in_body(task), learning_of("trained", task, local)
    usual = partly_shared(task, local, shared, clients_per_round=clients_per_round, weights=weights, learning=learning)
    return tuned(usual, local, tune_epochs)


ENTRY = Entry(
    fedbabu,
    "averages all but the last layer, which stays as it was; clients tune the model before they use it (FedBABU)",
    ("oh2022fedbabu",),
    {"tune_epochs": 1},
)
