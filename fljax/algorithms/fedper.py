"""FedPer: clients average the body of the model and keep their own last layer.

Source: Arivazhagan et al., "Federated learning with personalization layers" (2019), Algorithms 1 and 2; the authors
released no code. Deviations: a cohort may be drawn (in the paper all clients take part); the personal layers are the
head of the task (the paper also tries more of the last blocks, as ``lg_fedavg`` names them).
"""

from __future__ import annotations

from typing import Literal

from fljax.algorithms.entries import Entry
from fljax.algorithms.heads import in_body
from fljax.algorithms.single_model import partly_shared, tuned
from fljax.core.values import Count, CountOrZero, checked
from fljax.protocol import Algorithm, Task
from fljax.training import Local


@checked
def fedper(
    task: Task,
    local: Local,
    *,
    tune_epochs: CountOrZero = 1,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
) -> Algorithm:
    """``B <- B + sum_k a_k Delta_k[B] / sum_k a_k``; client k trains all of ``(B, H_k)`` and keeps its trained ``H_k``.

    H is the head, the last layer by ``Task.roles``, and B the rest. Without a head it is FedAvg, without a body each
    client trains alone.

    Args:
      task: model and loss.
      local: how clients train.
      tune_epochs: passes over its training rows that an UNSEEN client trains ``(B, H)``, from the initial H, before it
        uses them; at the ``learning_rate`` of ``local``. 0: none.
      clients_per_round: drawn uniformly without replacement; None: all. A client outside the cohort keeps its H and
        uses it with the new B.
      weights: ``a_k``: "size" is the client's number of training samples, "uniform" is 1.

    Returns:
      The algorithm. Only B is sent. A client that never trained uses the initial H. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: if ``weights`` is not a valid name or ``tune_epochs`` is negative.
    """
    algorithm = partly_shared(task, local, in_body(task), clients_per_round=clients_per_round, weights=weights)
    return tuned(algorithm, local, tune_epochs, all_clients=False)


ENTRY = Entry(fedper, "averages all but the last layer, which clients keep (FedPer)", ("arivazhagan2019federated",))
