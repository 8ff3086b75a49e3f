"""Parts of algorithms with a model for each cluster (IP-FL, IFCA, FedSoft, FedEM), and IP-FL's profiler.

Source of the profiler: "IP-FL: Incentivized and Personalized Federated Learning", section 4 and appendix H, by which
the server holds some rows for each tier, with the distribution of the tier's clients.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax import training
from fljax.core.loops import repeat
from fljax.protocol import Held, Judged, LocalData, Rows, Subset, Task, TrainingKey, roles
from fljax.protocol.data import choose_list


class Clusters(NamedTuple):
    """Server of an algorithm that keeps only a model for each cluster."""

    models: PyTree  # [C, ...]


def initial_models(task: Task, key: Key[Array, ""], clusters: int, *, alike: bool = False) -> PyTree:
    """``[C, ...]`` initial models, the first as in an algorithm with one model; ``alike``: all are that one."""
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
    """Every model's loss on each row of a subset, 0 on padding rows; ``key`` draws the noise of the features."""
    capacity, size = subset.rows.index.shape[-1], subset.rows.size
    parts = -(-capacity // training.AT_ONCE)
    width = -(-capacity // parts)

    def one(model: PyTree) -> Array:
        def some(part: int | Int[Array, ""]) -> Array:
            position = part * width + jnp.arange(width)
            x, y = training.fetch(task, subset, position, key)
            return jnp.where(position < size, task.losses(task.logits(model, x), y), 0)

        if parts == 1:
            return some(0)
        shape = jax.eval_shape(some, 0)
        nothing = jnp.zeros((parts, width), shape.dtype)
        losses = repeat(-(-size // width), lambda part, all: all.at[part].set(some(part)), nothing, most=parts)
        return losses.reshape(-1)[:capacity]

    return training.map_models(one, models, subset.spread)


def least_loss_shares(
    losses: Float[Array, "C n"], size: Int[Array, ""], ties: Literal["lower", "shared"] = "lower"
) -> Float[Array, " C"]:
    """The share of a client's ``size`` real rows on which each model has the least loss; zeros without rows."""
    # As in FedSoft, Algorithm 1.
    shares = least_loss_shares_of_rows(losses, ties)
    real = jnp.arange(losses.shape[1]) < size
    return jnp.sum(jnp.where(real[None, :], shares, 0), axis=1) / jnp.maximum(size, 1)


def least_loss_shares_of_rows(
    losses: Float[Array, "C n"], ties: Literal["lower", "shared"] = "lower"
) -> Float[Array, "C n"]:
    """Each row's shares of the models: 1 for the first of least loss; "shared": 1 / m for each of m such models."""
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


# Ways to choose a cluster's rows; any other name is that of rows of the server, the same for every cluster.
MATCHED, MEMBERS, DISTRIBUTIONS, IID = "matched", "members", "distributions", "iid"
_VALIDATION = "validation"
# In place of a loss that is not finite, which no model of finite loss can have.
_WORST = 1e30


def server_gradients(
    key: Key[Array, ""], task: Task, models: PyTree, held: Held, profile_on: str, clusters: int
) -> PyTree:
    """``[C, ...]``: the gradient of each cluster's model on the rows of the server that stand for the cluster."""
    rows = _rows_of(held, profile_on, clusters)
    if profile_on == MATCHED:
        return _weighted(key, task, models, rows[0], fitting(row_losses(task, models, rows[0]), rows[0].rows.size))
    width = max(subset.rows.index.shape[-1] for subset in rows)
    index = jnp.stack([jnp.pad(subset.rows.index, (0, width - subset.rows.index.shape[-1])) for subset in rows])
    size = jnp.stack([subset.rows.size for subset in rows])
    if profile_on == DISTRIBUTIONS:
        losses = jnp.stack([training.evaluate_each(task, models, subset)[0] for subset in rows], axis=1)
        order = matched_columns(losses)
        index, size = index[order], size[order]
    return _plain(key, task, models, rows[0], index, size)


def fitting(losses: Float[Array, "C n"], size: Int[Array, ""]) -> Float[Array, "C n"]:
    """Which rows stand for each cluster, as weights: where its model has the least loss; all if that is nowhere."""
    # A row whose loss no model can say stands for nobody.
    real = (jnp.arange(losses.shape[1]) < size) & jnp.any(jnp.isfinite(losses), axis=0)
    # A row on which m models have the least loss counts 1 / m for each of them.
    shares = jnp.where(real[None, :], least_loss_shares_of_rows(losses, "shared"), 0)
    some = jnp.sum(shares, axis=1, keepdims=True) > 0
    return jnp.where(some, shares, real[None, :].astype(shares.dtype))


def matched_columns(losses: Float[Array, "C D"]) -> Int[Array, " C"]:
    """The column of each row in the one-to-one matching with the least sum (Hungarian method), C at most D."""
    losses = jax.lax.stop_gradient(jnp.where(jnp.isfinite(losses), losses, _WORST))
    row, column = optax.assignment.hungarian_algorithm(losses)
    return jnp.zeros(losses.shape[0], jnp.int32).at[row].set(column.astype(jnp.int32))


def slope_of(key: Key[Array, ""], task: Task, model: PyTree, rows: Subset) -> PyTree:
    """The gradient of a model's mean loss on all rows, without dropout, augmentation and noise."""
    return _gradient(key, task, model, rows._replace(noise=None), None)


def _plain(key: Key[Array, ""], task: Task, models: PyTree, first: Subset, index: Array, size: Array) -> PyTree:
    def slope(cluster: tuple[PyTree, Array, Array]) -> PyTree:
        model, index, size = cluster
        return _gradient(key, task, model, Subset(first.examples, Rows(index, size), moments=first.moments), None)

    return training.map_models(slope, (models, index, size), first.spread)


def _weighted(key: Key[Array, ""], task: Task, models: PyTree, rows: Subset, weights: Float[Array, "C n"]) -> PyTree:
    # Means over all rows become means by weight.
    factor = weights * rows.rows.size / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-30)
    return training.map_models(
        lambda cluster: _gradient(key, task, cluster[0], rows, cluster[1]), (models, factor), rows.spread
    )


def _gradient(key: Key[Array, ""], task: Task, model: PyTree, rows: Subset, factor: Array | None) -> PyTree:
    def loss(params: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
        weight = None if factor is None else factor[jnp.minimum(position, factor.shape[0] - 1)]
        if weight is not None:  # a row without weight counts for nothing, even if its loss is not finite
            x = jnp.where(weight.reshape(-1, *(1,) * (x.ndim - 1)) > 0, x, jnp.zeros((), x.dtype))
        losses = task.losses(task.logits(roles.hold_statistics(task, params), x), y)
        return losses if weight is None else weight * losses

    return training.full_gradient(task._replace(augment=None), model, rows, key, loss=loss)


def _rows_of(held: Held, profile_on: str, clusters: int) -> list[Subset]:
    """The server's rows of each cluster: the same ones for all clusters, or all distributions that the server has."""
    if profile_on == DISTRIBUTIONS:
        count = sum(re.fullmatch(r"distribution_\d+", name) is not None for name in held)
        names = [f"distribution_{place}" for place in range(max(clusters, count))]
    else:
        names = [_VALIDATION if profile_on in (MATCHED, IID) else profile_on] * clusters
    missing = [name for name in names if name not in held]
    if missing:
        advice = ""
        if missing[0] == _VALIDATION:
            advice = "; held_fraction above 0 keeps some for validation, and members uses the clients' own"
        raise ValueError(
            f"expected profile_on to name rows that the server has, or {MATCHED}, {MEMBERS}, {DISTRIBUTIONS} or {IID}, "
            f"got {profile_on!r} without the rows {missing[0]!r}; valid names are {', '.join(held) or 'none'}{advice}"
        )
    return [held[name] for name in names]
