"""Parts of algorithms whose clients share some leaves of the model and keep the others: LG-FedAvg, FedBN.

The shared part and a client's own part are trees like the model, each with None in place of the other's leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array, Int, Key, PyTree

from fljax import training, trees
from fljax.algorithms.common import mean_update, reported_size, select_uniform
from fljax.messages import Sent
from fljax.streaming import Contribute, Streamed, Total
from fljax.training import Local
from fljax.types import Algorithm, Cohort, Held, Info, LocalData, Seat, Task


class PartlySharedServer(NamedTuple):
    """The shared leaves, and the initial values of the clients' own leaves."""

    shared: PyTree
    start: PyTree


class PartlySharedClient(NamedTuple):
    """A client's own leaves, kept between rounds."""

    own: PyTree


def split_leaves(tree: PyTree, chosen: Sequence[bool]) -> tuple[PyTree, PyTree]:
    """The chosen leaves and the others, as two trees with None in the gaps."""
    leaves, structure = jax.tree.flatten(tree)
    pairs = list(zip(leaves, chosen, strict=True))
    parts = [leaf if is_chosen else None for leaf, is_chosen in pairs], [None if yes else leaf for leaf, yes in pairs]
    return jax.tree.unflatten(structure, parts[0]), jax.tree.unflatten(structure, parts[1])


def merge_leaves(first: PyTree, second: PyTree) -> PyTree:
    """The tree of two parts that ``split_leaves`` made."""
    return jax.tree.map(lambda a, b: b if a is None else a, first, second, is_leaf=lambda leaf: leaf is None)


def leaf_paths(tree: PyTree) -> list[str]:
    """The path of each leaf, such as ``dense_0/kernel``, in order."""
    return [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


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
        model = merge_leaves(down, client.own)
        trained = training.train(key, model, data.train, task=task, local=local, round=seat.round).params
        common, own = split_leaves(trained, shared)
        return Sent(trees.subtract(common, down), reported_size(weights, data)), PartlySharedClient(own)

    def finish(
        key: Key[Array, ""],
        round: Int[Array, ""],
        server: PartlySharedServer,
        total: Total,
        rows: PyTree,
        cohort: Cohort,
        held: Held,
    ) -> tuple[PartlySharedServer, Info]:
        step, info = mean_update(total, rows, cohort)
        return server._replace(shared=trees.add_scaled(server.shared, step)), info

    return Algorithm(
        task=task,
        init_server=lambda key, census: PartlySharedServer(*split_leaves(task.init(key), shared)),
        init_client=lambda key, seat, down, data: PartlySharedClient(down.start),
        send=lambda server, seat: server if seat.first else server.shared,
        train=train,
        aggregate=Streamed(contribute, finish),
        select=select_uniform(clients_per_round),
        personal=lambda key, seat, down, client, data: merge_leaves(down, client.own),
    )
