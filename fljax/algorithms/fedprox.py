"""FedProx: FedAvg with a proximal term that keeps local models near the received model.

Source: Li et al., "Federated optimization in heterogeneous networks" (MLSys 2020), Algorithm 2. Deviations: the cohort
is drawn uniformly and weighted by size (the paper draws by size and weights uniformly); the subproblem is solved by
the run's local steps, not to a given accuracy; with ``stragglers``, each client straggles by chance (section 5.2 has a
fixed share of the cohort).
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import training
from fljax.algorithms.entries import Entry
from fljax.algorithms.fedavg import averaging
from fljax.algorithms.single_model import learning_by, reported_size
from fljax.core import trees
from fljax.core.values import Count, NonNegative, Share, checked
from fljax.protocol import Algorithm, LocalData, Rows, Seat, Task
from fljax.protocol.messages import Sent
from fljax.training import Local, Optimizer, Stream


@checked
def fedprox(
    task: Task,
    local: Local,
    *,
    mu: NonNegative = 0.1,
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
    stragglers: Share = 0.0,
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """FedAvg with the local objective ``F_k(y) + mu/2 ||y - w||^2``: ``mu (y - w)`` is added to every gradient.

    Args:
      task: model and loss.
      local: how clients train.
      mu: weight of the proximal term; 0 is FedAvg. The paper's grid is 0.001, 0.01, 0.1, 1.
      clients_per_round: drawn uniformly without replacement; None: all.
      weights: as for ``fedavg``.
      stragglers: probability, in each round, that a client of the cohort trains less: for a number of epochs (steps, if
        ``local`` has steps) that is uniform from 1 to that of ``local``. Its update counts like any other. 0.5 and 0.9
        in the paper.
      server_lr: server learning rate eta_g.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Info: ``weight`` [row], normalised.

    Raises:
      ValueError: as ``fedavg``, and if ``stragglers`` is a number outside [0, 1].
    """
    learning = learning_by(task, local)
    all_alike = isinstance(stragglers, int | float) and stragglers == 0

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        near = training.proximal(down, mu)
        work_key = training.stream(key, Stream.WORK)
        steps = None if all_alike else work(work_key, local, data.train.rows, stragglers)
        trained = learning.train(key, seat, down, data, client, adjust=near, steps=steps)
        return Sent(trees.subtract(trained.params, down), reported_size(weights, data)), trained.state

    inner = averaging(task, local, clients_per_round, weights, server_lr, server_optimizer)
    return inner._replace(train=train)


def work(key: Key[Array, ""], local: Local, rows: Rows, stragglers: float | Float[Array, ""]) -> Int[Array, ""]:
    """The number of steps of a client that straggles with this probability (``fedprox``)."""
    straggles, amount = jax.random.split(key)
    most = local.steps if local.steps is not None else local.epochs or 1
    less = jax.random.randint(amount, (), 1, most + 1, jnp.int32)
    units = jnp.where(jax.random.uniform(straggles, dtype=jnp.float32) < stragglers, less, most)
    if local.steps is not None:
        return units
    return units * -(-rows.size // min(local.batch_size, rows.index.shape[-1]))


ENTRY = Entry(
    fedprox,
    "FedAvg with a proximal term that holds clients near the received model",
    ("li2020federated",),
    differentiable=("mu", "server_lr"),
    flat=("stragglers",),
)
