"""Parts of algorithms that keep several models at the server, one for each cluster: IP-FL, IFCA, FedSoft, FedEM."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import training
from fljax.core.loops import repeat
from fljax.protocol import Judged, LocalData, Rows, Subset, Task
from fljax.protocol.lists import choose_list


class Clusters(NamedTuple):
    """Server of an algorithm that keeps only a model for each cluster."""

    models: PyTree  # [C, ...]


def initial_models(task: Task, key: Key[Array, ""], clusters: int, *, alike: bool = False) -> PyTree:
    """``[C, ...]`` initial models: the first one is ``task.init(key)``, as in an algorithm with one model.

    The others are drawn with other keys; with ``alike``, all are the first model.
    """
    first = task.init(key)
    if alike:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clusters, *leaf.shape)), first)
    others = [task.init(jax.random.fold_in(key, number)) for number in range(1, clusters)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *others)


def judged_clusters(models: PyTree) -> dict[str, Judged]:
    """Models of clusters ``[C, ...]``, each judged on the server's rows of each source distribution."""
    return {"cluster": Judged(models, "distribution", several=True)}


def cluster_models(server: PyTree) -> dict[str, Judged]:
    """``models`` of an algorithm whose Server has the cluster models in the field ``models``."""
    return judged_clusters(server.models)


def validation(data: LocalData) -> Subset:
    """A client's validation rows, or its training rows (without their noise) if it has none."""
    valid, train = data.valid.rows, data.train.rows
    some = valid.size > 0
    index = choose_list(some, valid.index, train.index)
    return data.valid._replace(rows=Rows(index, jnp.where(some, valid.size, train.size)))


def row_losses(
    task: Task, models: PyTree, subset: Subset, key: Key[Array, ""] | None = None
) -> Float[Array, "C n_max"]:
    """Every model's loss on each row of a subset; padding rows have loss 0.

    ``key`` draws the noise of the features, as for ``evaluate``.
    """
    capacity, size = subset.rows.index.shape[-1], subset.rows.size
    parts = -(-capacity // training.AT_ONCE)
    width = -(-capacity // parts)

    def one(model: PyTree) -> Array:
        def some(part: int | Int[Array, ""]) -> Array:
            position = part * width + jnp.arange(width)
            x, y = training.fetch(task, subset, position, key)
            return jnp.where(position < size, task.loss(task.logits(model, x), y), 0)

        if parts == 1:
            return some(0)
        found = jax.eval_shape(some, 0)
        nothing = jnp.zeros((parts, width), found.dtype)
        found = repeat(-(-size // width), lambda part, all: all.at[part].set(some(part)), nothing, most=parts)
        return found.reshape(-1)[:capacity]

    return training.map_models(one, models, subset.spread)


def least_loss_shares(
    losses: Float[Array, "C n"], size: Int[Array, ""], ties: Literal["lower", "shared"] = "lower"
) -> Float[Array, " C"]:
    """The share of a client's rows on which each model has the least loss; zeros for a client without rows.

    Args:
      losses: of every model on each row (``row_losses``); NaN counts as infinite.
      size: number of real rows.
      ties: a row on which m models have the least loss counts for the first of them ("lower"), or 1 / m for each of
        them ("shared").

    Source: Ruan and Joe-Wong, "FedSoft" (AAAI 2022), Algorithm 1.
    """
    each = least_loss_shares_of_rows(losses, ties)
    real = jnp.arange(losses.shape[1]) < size
    return jnp.sum(jnp.where(real[None, :], each, 0), axis=1) / jnp.maximum(size, 1)


def least_loss_shares_of_rows(
    losses: Float[Array, "C n"], ties: Literal["lower", "shared"] = "lower"
) -> Float[Array, "C n"]:
    """Each row's shares of the models: 1 for the model of least loss; ``ties`` and NaN as for ``least_loss_shares``."""
    losses = jnp.where(jnp.isnan(losses), jnp.inf, losses)
    if ties == "lower":
        least = jnp.argmin(losses, axis=0)[None, :] == jnp.arange(losses.shape[0])[:, None]
    else:
        least = losses == jnp.min(losses, axis=0, keepdims=True)
    return least.astype(jnp.result_type(float)) / jnp.sum(least, axis=0, keepdims=True)


def most_accurate(loss: Float[Array, " C"], accuracy: Float[Array, " C"]) -> Float[Array, " C"]:
    """1 for the most accurate model and 0 for others; of several, the one of least loss; equal models share the 1."""
    best = accuracy == jnp.max(accuracy)
    loss = jnp.where(best & ~jnp.isnan(loss), loss, jnp.inf)
    best = best & (loss == jnp.min(loss))
    return best.astype(accuracy.dtype) / jnp.maximum(jnp.sum(best), 1)
