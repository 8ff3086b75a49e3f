"""FedBN: clients average all layers but those of batch normalisation, which they keep.

Source: Li et al., "FedBN: federated learning on non-IID features via local batch normalization" (ICLR 2021), Algorithm
1. Deviation: a cohort may be drawn (in the paper all clients take part). ``own="statistics"`` is SiloBN: Andreux et
al., "Siloed federated learning for multi-centric histopathology datasets" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from fljax.algorithms.entries import Entry
from fljax.algorithms.single_model import is_under, partly_shared
from fljax.core import trees
from fljax.core.values import Count, checked
from fljax.protocol import Algorithm, Task
from fljax.protocol.roles import roles_of
from fljax.training import Local


@checked
def fedbn(
    task: Task,
    local: Local,
    *,
    own: Literal["layers", "statistics"] | Sequence[str] | Callable[[str], bool] = "layers",
    clients_per_round: Count | None = 10,
    weights: Literal["size", "uniform"] = "size",
) -> Algorithm:
    """``G <- G + sum_k a_k Delta_k[G] / sum_k a_k``; client k trains all of ``(G, L_k)`` and keeps its trained ``L_k``.

    L are the layers of batch normalisation: their running averages, scales and biases.

    Args:
      task: model and loss.
      local: how clients train.
      own: the leaves in L. "layers": all leaves of layers with statistics (``Task.roles``). "statistics": the
        statistics alone; scales and biases are averaged (SiloBN). Names: the layers and leaves whose path begins with
        one of the names. A function: the leaves whose path, e.g. ``"BatchNorm_0/mean"``, it accepts.
      clients_per_round: drawn uniformly without replacement; None: all. A client outside the cohort keeps its L and
        uses it with the new G.
      weights: ``a_k``: "size" is the client's number of training samples, "uniform" is 1.

    Returns:
      The algorithm. There is no model for unseen clients, which have no L: their metrics are NaN. Info: ``weight``
      [row], normalised.

    Raises:
      ValueError: if a name is not valid or matches no leaf, or the task has no statistics and ``own`` asks for them.
    """
    algorithm = partly_shared(
        task, local, [not stays for stays in _own(task, own)], clients_per_round=clients_per_round, weights=weights
    )
    return algorithm._replace(counts=lambda server, seat: jnp.asarray(seat.known))


def _own(task: Task, own: str | Sequence[str] | Callable[[str], bool]) -> list[bool]:
    """Whether each leaf stays with the client."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    paths = trees.paths_of(shapes)
    if callable(own):
        return [bool(own(path)) for path in paths]
    if own in ("layers", "statistics"):
        roles = zip(paths, roles_of(task, shapes), strict=True)
        statistics = [path for path, role in roles if role in ("statistic", "frozen")]
        if not statistics:
            raise ValueError(
                f"expected a task with statistics, such as those of BatchNorm, got one without; own may name leaves: "
                f"valid names are {', '.join(paths)}"
            )
        if own == "statistics":
            return [path in statistics for path in paths]
        layers = {path.rpartition("/")[0] for path in statistics} - {""}  # the root is no layer
        return [path in statistics or path.rpartition("/")[0] in layers for path in paths]
    for name in own:
        if not any(is_under(path, name) for path in paths):
            raise ValueError(
                f"expected own to be layers, statistics or names of leaves, got {name!r}; "
                f"valid names are {', '.join(paths)}"
            )
    return [any(is_under(path, name) for name in own) for path in paths]


ENTRY = Entry(
    fedbn,
    "averages all layers but those of batch normalisation, which clients keep (FedBN)",
    ("li2021fedbn",),
    {"own": ("bias",)},
)
