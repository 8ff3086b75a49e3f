"""Ditto: FedAvg plus a personal model for each client, regularised towards the global model.

Source: Li et al., "Ditto: fair and robust federated learning through personalization" (ICML 2021), Algorithm 1.
Deviation: lambda is one number (the authors' code may choose one for each client by validation).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry, with_work
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import learning_by
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, LocalData, Seat, Task
from fljax.protocol.messages import Sent
from fljax.training import Local, Optimizer, Stream


class DittoClient(NamedTuple):
    """A client's personal model v_k, kept between rounds, whether it ever trained, and kept states of optimizers."""

    personal: PyTree
    trained: Bool[Array, ""]
    shared: PyTree = ()  # of training for the global model
    optimizer: PyTree = ()  # of training of v_k


@checked
def ditto(
    task: Task,
    local: Local,
    *,
    regularisation: NonNegative = 1.0,
    personal_learning_rate: NonNegative | None = None,
    personal_epochs: Count | None = None,
    personal_steps: Count | None = None,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``v_k <- v_k - eta_p (g(v_k) + lambda (v_k - w))`` with w as received; w itself moves as in FedAvg.

    Args:
      task: model and loss.
      local: how clients train for the global model, and the defaults for the personal model.
      regularisation: lambda. 0: every client trains its personal model alone. The paper's grid is 0.1, 1, 2. Plain
        steps are stable where ``eta_p lambda`` is below 1.
      personal_learning_rate: eta_p, with the decay of ``local``; None: the learning rate of ``local``.
      personal_epochs: epochs for the personal model in every round, or
      personal_steps: steps for the personal model; both None: as for the global model.
      clients_per_round: drawn uniformly without replacement; None: all. The others keep v_k.
      weights: as for ``fedavg``.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. A client uses v_k; an unseen client, or one that never trained, uses the global model. ``common``
      is the global model, bit for bit that of ``fedavg``. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: as ``fedavg``, or if both ``personal_epochs`` and ``personal_steps`` are given or one is not positive.
    """
    personal = with_work(local, "personal", personal_epochs, personal_steps)
    if personal_learning_rate is not None:
        personal = personal._replace(learning_rate=personal_learning_rate)
    inner = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    learning = learning_by(task, personal)

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: DittoClient, data: LocalData
    ) -> tuple[Sent, DittoClient]:
        up, shared = inner.train(key, seat, down, client.shared, data)
        own_key, pull = training.stream(key, Stream.PERSONAL_MODEL), training.proximal(down, regularisation)
        trained = learning.train(own_key, seat, client.personal, data, client.optimizer, adjust=pull)
        return up, DittoClient(trained.params, jnp.asarray(True), shared, trained.state)

    def init_client(key: Key[Array, ""], seat: Seat, down: PyTree, data: LocalData) -> DittoClient:
        states = inner.init_client(key, seat, down, data), learning.first(down)
        return DittoClient(down, jnp.asarray(False), *states)

    return inner._replace(
        train=train,
        init_client=init_client,
        personal=lambda key, seat, down, client, data: trees.where(client.trained, client.personal, down),
    )


ENTRY = Entry(
    ditto,
    "FedAvg, and personal models that are held near the global one",
    ("li2021ditto",),
    {"personal_learning_rate": 0.15, "personal_steps": 2},
    differentiable=("regularisation", "personal_learning_rate", "server_lr"),
)
