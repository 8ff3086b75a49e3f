"""FedAvg: clients train locally, the server averages their updates.

Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS 2017),
Algorithm 1. Deviations: the average is over updates, with a server learning rate (1 gives the original); sizes or
uniform weights, by flag; the cohort is drawn uniformly.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Array, Key, PyTree

from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import (
    contribute_by,
    keeping,
    learning_by,
    mean_update,
    reported_size,
    single_model,
    with_server_optimizer,
)
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, LocalData, Seat, Task
from fljax.protocol.messages import Sent
from fljax.training import Local, Optimizer


@checked
def fedavg(
    task: Task,
    local: Local,
    *,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``w <- w + server_lr * sum_k a_k Delta_k / sum_k a_k`` with ``Delta_k = LocalSGD(w, k) - w``.

    Args:
      task: model and loss.
      local: how clients train.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: ``a_k``: "size" is the client's number of training samples, "uniform" is 1.
      server_lr: server learning rate eta_g.
      server_optimizer: the name of an optax optimizer, e.g. ``"adam"`` (FedAdam), or with its options, e.g.
        ``training.OptimizerSettings("sgd", (("momentum", 0.9),))`` (FedAvgM); its gradient is the negated mean update.

    Returns:
      The algorithm. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: if ``weights`` is not a valid name or ``clients_per_round`` is not positive.
    """
    return averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)


def averaging(
    task: Task,
    local: Local,
    clients_per_round: int | None,
    weights: str,
    server_lr: float | Array,
    server_optimizer: Optimizer,
) -> Algorithm:
    """``fedavg`` for algorithms that replace some of its fields."""
    learning = learning_by(task, local)

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        trained = learning.train(key, seat, down, data, client)
        return Sent(trees.subtract(trained.params, down), reported_size(weights, data)), trained.state

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        init_client=keeping(task, local),
        **with_server_optimizer(task, contribute_by(weights), mean_update, server_lr, server_optimizer),
    )


ENTRY = Entry(
    fedavg, "averages updates, by size or uniformly", ("mcmahan2017communication",), differentiable=("server_lr",)
)
