"""LG-FedAvg: clients average the last layers and keep the other layers private.

Source: Liang et al., "Think locally, act globally: federated learning with local and global representations" (2020),
Algorithm 1; in IAFL's comparison the last three dense layers are shared. Deviation: updates are averaged uniformly over
the cohort, as in that comparison.

``partly_shared`` has the parts of algorithms whose clients share some leaves of the model and keep the others, also for
FedBN. The shared part and a client's own part are trees like the model, each with None in place of the other's leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array, Key, PyTree

from fljax import training
from fljax.algorithms.cohorts import select_uniform
from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import contribute_update, mean_update, reported_size
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, checked
from fljax.protocol import Algorithm, Info, LocalData, Round, Seat, Task
from fljax.protocol.messages import Sent
from fljax.protocol.roles import roles_of
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
        common, private = trees.split(trained, shared)
        return Sent(trees.subtract(common, down), reported_size(weights, data)), PartlySharedClient(private)

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


def is_under(path: str, name: object) -> bool:
    """Whether a leaf is ``name``, or inside of the layer ``name``."""
    return path == name or path.startswith(f"{name}/")


@checked
def lg_fedavg(
    task: Task,
    local: Local,
    *,
    shared: CountOrZero | Sequence[str] | Callable[[str], bool] = 3,
    clients_per_round: Count | None = None,
) -> Algorithm:
    """``G <- G + (1/|S|) sum_k Delta_k[G]``; client k trains all of ``(G, L_k)`` and keeps its trained ``L_k``.

    Args:
      task: model and loss.
      local: how clients train.
      shared: the parameters in G. A number n: the last n dense layers (layers called ``dense``, ``dense_0`` and so on
        by their numbers, then the head). Names: the layers and parameters whose path begins with one of the names,
        e.g. ``("block_7", "head")``. A function: the parameters whose path, e.g. ``"dense_0/kernel"``, it accepts.
      clients_per_round: drawn uniformly without replacement; None: all. A client outside the cohort keeps its L and
        uses it with the new G.

    Returns:
      The algorithm. An unseen client uses G with the initial L. Info: ``weight`` [row].

    Raises:
      ValueError: if the model has fewer dense layers than ``shared``, or no other parameters, so that nothing is left
        to the clients; or if a name matches no parameter.
    """
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    paths = trees.paths_of(shapes)
    return partly_shared(
        task,
        local,
        _chosen(paths, shared, task, shapes),
        clients_per_round=clients_per_round,
        contribute=contribute_update,
    )


def _chosen(
    paths: list[str], shared: CountOrZero | Sequence[str] | Callable[[str], bool], task: Task, shapes: PyTree
) -> list[bool]:
    """Whether each leaf is shared."""
    if callable(shared):
        return [bool(shared(path)) for path in paths]
    layers = list(dict.fromkeys(path.rpartition("/")[0] or path for path in paths))
    if isinstance(shared, int) and not isinstance(shared, bool):
        dense = _dense(paths, layers, task, shapes)
        if not 0 <= shared <= len(dense):
            raise ValueError(
                f"expected shared to be from 0 to the {len(dense)} dense layers of the model, got {shared}; "
                f"valid names of layers are {', '.join(layers)}"
            )
        names = dense[len(dense) - shared :]
    else:
        names = [shared] if isinstance(shared, str) else list(shared) if isinstance(shared, Sequence) else [shared]
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"expected shared to be a number of layers, names or a function of paths, got {shared!r}")
        if not any(is_under(path, name) for path in paths):
            raise ValueError(f"expected shared to name parameters, got {name!r}; valid names are {', '.join(layers)}")
    is_shared = [any(is_under(path, name) for name in names) for path in paths]
    if isinstance(shared, int) and all(is_shared):
        raise ValueError(
            f"expected shared below {shared} for a model without parameters outside its last {shared} dense layers, "
            f"got {shared}, which leaves nothing to the clients and is fedavg; its layers are {', '.join(layers)}"
        )
    return is_shared


def _dense(paths: list[str], layers: list[str], task: Task, shapes: PyTree) -> list[str]:
    """The dense layers in the order of their numbers, then the head."""
    heads = {
        path.rpartition("/")[0] or path
        for path, role in zip(paths, roles_of(task, shapes), strict=True)
        if role == "head"
    }
    dense = [layer for layer in layers if layer not in heads and re.fullmatch(r"dense(_\d+)?", layer, re.IGNORECASE)]
    return sorted(dense, key=_number_of) + sorted(heads)


def _number_of(layer: str) -> int:
    """The number in the name of a layer; 0 if it has none."""
    return int(layer.rpartition("_")[2] if "_" in layer else 0)


ENTRY = Entry(
    lg_fedavg,
    "averages the last layers, clients keep the others for themselves (LG-FedAvg)",
    ("liang2020think",),
    {"shared": ("weight",)},
)
