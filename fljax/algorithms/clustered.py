"""Parts of algorithms that keep several models at the server, one for each cluster: IP-FL, IFCA, FedSoft, FedEM."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from fljax import local as training
from fljax.types import LocalData, Rows, Subset, Task

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Key, PyTree


class Clusters(NamedTuple):
    """Server of an algorithm that keeps nothing but a model for each cluster."""

    models: PyTree  # [C, ...]


def check_clusters(clusters: int) -> int:
    """Raises a ValueError unless there is at least one cluster."""
    if isinstance(clusters, bool) or not isinstance(clusters, int) or clusters < 1:
        raise ValueError(f"expected a positive number of clusters, got {clusters!r}")
    return clusters


def initial_models(task: Task, key: Key[Array, ""], clusters: int, *, alike: bool = False) -> PyTree:
    """``[C, ...]`` initial models: the first one is ``task.init(key)``, as of an algorithm with one model.

    The others are drawn with keys of their own, or with ``alike`` are the same model.
    """
    first = task.init(key)
    if alike:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clusters, *leaf.shape)), first)
    others = [task.init(jax.random.fold_in(key, number)) for number in range(1, clusters)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *others)


def cluster_models(server: Clusters) -> PyTree:
    """What is judged as the models of the clusters."""
    return server.models


def judge(task: Task, models: PyTree, data: LocalData) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """Loss and accuracy of every cluster's model on a client's validation rows; without any, on its training rows."""
    return training.evaluate_each(task, models, validation(data), ragged=True)


def validation(data: LocalData) -> Subset:
    """A client's validation rows; of a client without any its training rows, without their noise."""
    some, width = data.valid.rows.size > 0, max(each.rows.index.shape[-1] for each in (data.valid, data.train))
    pad = lambda each: jnp.pad(each.rows.index, (0, width - each.rows.index.shape[-1]))  # noqa: E731
    size = jnp.where(some, data.valid.rows.size, data.train.rows.size)
    return data.valid._replace(rows=Rows(jnp.where(some, pad(data.valid), pad(data.train)), size))
