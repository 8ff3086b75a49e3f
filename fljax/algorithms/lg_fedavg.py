"""LG-FedAvg: clients average the last layers and keep the other layers private.

Source: Liang et al., "Think locally, act globally: federated learning with local and global representations" (2020),
Algorithm 1; in IAFL's comparison the last three dense layers are shared. Deviation: updates are averaged uniformly over
the cohort, as in that comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import jax
from jaxtyping import PyTree

from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import is_under, partly_shared
from fljax.core import trees
from fljax.core.values import Count, CountOrZero, checked
from fljax.protocol import Algorithm, Task
from fljax.protocol.roles import roles_of
from fljax.training import Local


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
    return partly_shared(task, local, _chosen(paths, shared, task, shapes), clients_per_round=clients_per_round)


def _chosen(
    paths: list[str], shared: CountOrZero | Sequence[str] | Callable[[str], bool], task: Task, shapes: PyTree
) -> list[bool]:
    """Whether each leaf is shared."""
    if callable(shared):
        return [bool(shared(path)) for path in paths]
    layers = list(dict.fromkeys(path.rpartition("/")[0] or path for path in paths))
    if isinstance(shared, int):
        dense = _dense(paths, layers, task, shapes)
        if not 0 <= shared <= len(dense):
            raise ValueError(
                f"expected shared to be from 0 to the {len(dense)} dense layers of the model, got {shared}; "
                f"valid names of layers are {', '.join(layers)}"
            )
        names: Sequence[str] = dense[len(dense) - shared :]
    else:
        names = shared
    for name in names:
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
    return sorted(dense, key=lambda layer: int(layer.partition("_")[2] or 0)) + sorted(heads)


ENTRY = Entry(
    lg_fedavg,
    "averages the last layers, clients keep the others for themselves (LG-FedAvg)",
    ("liang2020think",),
    {"shared": ("weight",)},
)
