"""Parts of algorithms whose clients share some leaves of the model and keep the others: LG-FedAvg, FedBN.

The shared part and a client's own part are trees like the model, each with None in place of the other's leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Array, Key, PyTree

from fljax import training
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.single_model import mean_update, reported_size
from fljax.core import trees
from fljax.protocol import Algorithm, Info, LocalData, Round, Seat, Task
from fljax.protocol.messages import Sent
from fljax.protocol.sums import Contribute, Streamed, Total
from fljax.training import Local


class PartlySharedServer(NamedTuple):
    """The shared leaves, and the initial values of the clients' own leaves."""

    shared: PyTree
    start: PyTree


class PartlySharedClient(NamedTuple):
    """A client's own leaves, kept between rounds."""

    own: PyTree


def partly_shared(
    task: Task,
    local: Local,
    shared: Sequence[bool],
    *,
    clients_per_round: int | None,
    contribute: Contribute,
    weights: str = "uniform",
) -> Algorithm:
    """An algorithm that averages updates of the shared leaves; clients train the whole model and keep the other leaves.

    Args:
      task: model and loss.
      local: how clients train.
      shared: whether each leaf of the model is shared.
      clients_per_round: drawn uniformly without replacement; None: all.
      contribute: ``contribute_update``, or ``contribute_weighted(...)``.
      weights: "size" if clients report their numbers of training samples.
    """

    def train(
        key: Key[Array, ""], seat: Seat, down: PyTree, client: PartlySharedClient, data: LocalData
    ) -> tuple[Sent, PartlySharedClient]:
        model = trees.merge(down, client.own)
        trained = training.train(key, model, data.train, task=task, local=local, round=seat.round).params
        common, own = trees.split(trained, shared)
        return Sent(trees.subtract(common, down), reported_size(weights, data)), PartlySharedClient(own)

    def finish(server: PartlySharedServer, total: Total, rows: PyTree, round: Round) -> tuple[PartlySharedServer, Info]:
        step, info = mean_update(total, rows, round.cohort)
        return server._replace(shared=trees.add_scaled(server.shared, step)), info

    return Algorithm(
        task=task,
        init_server=lambda key, census: PartlySharedServer(*trees.split(task.init(key), shared)),
        init_client=lambda key, seat, down, data: PartlySharedClient(down.start),
        send=lambda server, seat: server if seat.first else server.shared,
        train=train,
        aggregate=Streamed(contribute, finish),
        select=select_uniform(clients_per_round),
        personal=lambda key, seat, down, client, data: trees.merge(down, client.own),
    )
