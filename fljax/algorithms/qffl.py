"""q-FFL: clients with larger losses have larger weights, so accuracies become more equal.

Source: Li et al., "Fair resource allocation in federated learning" (ICLR 2020), Algorithm 2 (q-FedAvg). Deviation: the
cohort is drawn uniformly, as in the authors' code (the paper draws by size).
"""

from __future__ import annotations

import jax
from jaxtyping import Array, Key, PyTree

from fljax import aggregators, training
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import SingleModel, init_optimized, keeping, single_model
from fljax.algorithms.single_model import server_optimizer as optimizer
from fljax.core import trees
from fljax.core.values import Count, NonNegative, checked
from fljax.protocol import Algorithm, Info, LocalData, Round, Seat, Task, along, roles
from fljax.protocol.messages import Report, Sent
from fljax.training import Local, Optimizer, Stream


@checked
def qffl(
    task: Task,
    local: Local,
    *,
    q: NonNegative = 1.0,
    clients_per_round: Count | None = 10,
    server_lr: NonNegative = 1.0,
    server_optimizer: Optimizer = "sgd",
) -> Algorithm:
    """``w <- w - sum_k D_k / sum_k h_k``: see ``fljax.aggregators.qffl_update``.

    Args:
      task: model and loss.
      local: how clients train; ``1 / learning_rate`` is the paper's Lipschitz constant L, of all
        clients, also where they train at other rates.
      q: fairness; 0 is FedAvg with uniform weights. The paper's grid is 0, 0.1, 1, 5, 10.
      clients_per_round: drawn uniformly without replacement; None: all.
      server_lr: factor of the increment; the paper has 1.
      server_optimizer: as for ``fedavg``.

    Returns:
      The algorithm. Info by row: ``loss`` of the received model on all training rows; NaN in an empty row.
    """
    server_side = optimizer(server_lr, server_optimizer, task)

    def train(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> tuple[Sent, PyTree]:
        loss_key = training.stream(key, Stream.LOSS)
        loss, _ = training.evaluate(task, lambda x: task.logits(down, x), data.train, key=loss_key)
        trained = training.train(key, down, data.train, task=task, local=local, round=seat.round, state=client)
        return Sent(trees.subtract(trained.params, down), Report(loss=loss)), trained.state

    # Not streamed: F^q is divided by the cohort's largest F^q, so that small losses do not underflow.
    def aggregate(server: SingleModel, up: Sent, round: Round) -> tuple[SingleModel, Info]:
        cohort = round.cohort
        rate = training.rate(local, round.number, jax.tree.leaves(up.update)[0].dtype)
        update = roles.zero_statistics(task, up.update)
        step = aggregators.qffl_update(update, up.report.loss, q=q, learning_rate=rate, present=cohort.present)
        step = roles.replace_statistics(task, step, aggregators.weighted_mean(up.update, trees.wide(cohort.present)))
        after = server_side.move(server.model, server.optimizer, step, cohort.present)
        return SingleModel(*after), along("row", loss=trees.or_nan(cohort.present, up.report.loss))

    return single_model(
        task,
        clients_per_round=clients_per_round,
        train=train,
        init_client=keeping(task, local),
        aggregate=aggregate,
        init_server=init_optimized(task, server_side),
    )


ENTRY = Entry(
    qffl,
    "weighs clients by a power of their loss, for fairness",
    ("li2020fair",),
    differentiable=("q", "server_lr"),
    reads="updates and losses, whose powers are relative to the largest loss",
)
