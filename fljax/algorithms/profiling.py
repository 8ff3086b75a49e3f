"""IP-FL's profiler: which rows say what an update of a cluster's model is worth, and what it is worth there.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4 and appendix H, by which the server holds
some rows for each tier, with the distribution of the tier's clients.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fljax import aggregators, training
from fljax.algorithms.clustered import least_loss_shares_of_rows, row_losses
from fljax.protocol import Held, Rows, Subset, Task, TrainingKey, roles

# Ways to choose a cluster's rows; any other name is that of rows of the server, the same for every cluster.
MATCHED, MEMBERS, DISTRIBUTIONS, IID = "matched", "members", "distributions", "iid"
_VALIDATION = "validation"
# In place of a loss that is not finite, which no model of finite loss can have.
_WORST = 1e30


def server_gradients(
    key: Key[Array, ""], task: Task, models: PyTree, held: Held, profile_on: str, clusters: int
) -> PyTree:
    """``[C, ...]``: the gradient of each cluster's model on the rows that stand for the cluster.

    Args:
      key: of this round; unused, since the gradient is computed without dropout.
      task: model and loss.
      models: ``[C, ...]`` after aggregation.
      held: the server's rows by name.
      profile_on: as for ``ipfl``, but "members", whose rows the server does not have.
      clusters: C.

    Raises:
      ValueError: if the server has no such rows.
    """
    rows = _rows_of(held, profile_on, clusters)
    if profile_on == MATCHED:
        return _weighted(key, task, models, rows[0], fitting(row_losses(task, models, rows[0]), rows[0].rows.size))
    index, size = _stacked(rows)
    if profile_on == DISTRIBUTIONS:
        losses = jnp.stack([training.evaluate_each(task, models, each)[0] for each in rows], axis=1)
        order = matched_columns(losses)
        index, size = index[order], size[order]
    return _plain(key, task, models, rows[0], index, size)


def fitting(losses: Float[Array, "C n"], size: Int[Array, ""]) -> Float[Array, "C n"]:
    """Which rows stand for each cluster, as weights: those on which its model has the least loss of all.

    A row on which m models have the least loss counts 1 / m for each of them. All rows stand for a cluster whose model
    has the least loss nowhere. The rows beyond ``size``, and those of which no loss is finite, have weight 0.
    """
    # A row whose loss no model can say stands for nobody.
    real = (jnp.arange(losses.shape[1]) < size) & jnp.any(jnp.isfinite(losses), axis=0)
    shares = jnp.where(real[None, :], least_loss_shares_of_rows(losses, "shared"), 0)
    some = jnp.sum(shares, axis=1, keepdims=True) > 0
    return jnp.where(some, shares, real[None, :].astype(shares.dtype))


def matched_columns(losses: Float[Array, "C D"]) -> Int[Array, " C"]:
    """The column of each row in the one-to-one matching with the least sum (Hungarian method), C at most D."""
    losses = jax.lax.stop_gradient(jnp.where(jnp.isfinite(losses), losses, _WORST))
    row, column = optax.assignment.hungarian_algorithm(losses)
    return jnp.zeros(losses.shape[0], jnp.int32).at[row].set(column.astype(jnp.int32))


def member_gradients(slopes: PyTree, sizes: Int[Array, " S"], trains: Bool[Array, "S C"]) -> PyTree:
    """``[C, ...]``: the mean of what members of each cluster sent, the gradients on their own validation rows, by rows.

    Args:
      slopes: ``[S, ...]``.
      sizes: ``[S]`` numbers of rows.
      trains: ``[S, C]``, whether a row of the cohort is present and trains the cluster's model.
    """
    return aggregators.mix(aggregators.member_weights(trains, sizes), slopes)


def slope_of(key: Key[Array, ""], task: Task, model: PyTree, rows: Subset) -> PyTree:
    """The gradient of a model's mean loss on all rows, without dropout, augmentation and noise."""
    return _gradient(key, task, model, rows._replace(noise=None), None)


def _plain(key: Key[Array, ""], task: Task, models: PyTree, first: Subset, index: Array, size: Array) -> PyTree:
    def slope(each: tuple[PyTree, Array, Array]) -> PyTree:
        model, index, size = each
        return _gradient(key, task, model, Subset(first.examples, Rows(index, size), moments=first.moments), None)

    return training.map_models(slope, (models, index, size), first.spread)


def _weighted(key: Key[Array, ""], task: Task, models: PyTree, rows: Subset, weights: Float[Array, "C n"]) -> PyTree:
    # Means over all rows become means by weight.
    factor = weights * rows.rows.size / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-30)
    return training.map_models(lambda each: _gradient(key, task, each[0], rows, each[1]), (models, factor), rows.spread)


def _gradient(key: Key[Array, ""], task: Task, model: PyTree, rows: Subset, factor: Array | None) -> PyTree:
    def loss(params: PyTree, x: Array, y: Array, position: Array, key: TrainingKey) -> Array:
        own = None if factor is None else factor[jnp.minimum(position, factor.shape[0] - 1)]
        if own is not None:  # a row without weight counts for nothing, even if its loss is not finite
            x = jnp.where(own.reshape(-1, *(1,) * (x.ndim - 1)) > 0, x, jnp.zeros((), x.dtype))
        found = task.loss(task.logits(roles.hold_statistics(task, params), x), y)
        return found if own is None else own * found

    return training.full_gradient(task._replace(augment=None), model, rows, key, loss=loss)


def _stacked(rows: list[Subset]) -> tuple[Array, Array]:
    width = max(each.rows.index.shape[-1] for each in rows)
    index = jnp.stack([jnp.pad(each.rows.index, (0, width - each.rows.index.shape[-1])) for each in rows])
    return index, jnp.stack([each.rows.size for each in rows])


def _rows_of(held: Held, profile_on: str, clusters: int) -> list[Subset]:
    """The server's rows that are read: those that all clusters share, as often as there are clusters; of distributions,
    all that the server has.

    Raises:
      ValueError: if the server has no rows of that name, or fewer distributions than clusters.
    """
    if profile_on == DISTRIBUTIONS:
        there = sum(re.fullmatch(r"distribution_\d+", name) is not None for name in held)
        names = [f"distribution_{place}" for place in range(max(clusters, there))]
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
