"""Aggregation with several cluster models: importance weights, cluster updates and members' Shapley values.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 4 and appendix H, equations (7), (8) and
(15)-(37).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import AxisName, along_rows, check_shape, on_any_mesh, sum_over, sum_rows
from fljax.aggregators.linear import mix
from fljax.core.trees import floating, ratio, readable, wide

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree


def importance_weights(accuracy: Float[Array, "*batch C"]) -> Float[Array, "*batch C"]:
    """``u_kc = a_kc / sum_c' a_kc'``: the importance of each cluster's model to a client.

    The client's personalised model is ``theta_k = sum_c u_kc w_c``, i.e. ``mix(u, models)``, without any training.

    Args:
      accuracy: ``[N, C]`` (or ``[C]`` for one client): accuracy of each model on the client's own rows.

    Returns:
      Weights in the shape and dtype of ``accuracy`` (whole numbers become floats). Each row sums to 1; a row of zero
      accuracies gives uniform weights.

    Source: IP-FL, equations (7) and (8).
    """
    accuracy = floating(accuracy)
    shares = wide(accuracy)
    total = jnp.sum(shares, axis=-1, keepdims=True)
    even = jnp.full_like(shares, 1 / shares.shape[-1])
    return jnp.where(total > 0, shares / jnp.where(total > 0, total, 1), even).astype(accuracy.dtype)


def member_weights(
    membership: Bool[Array, "S C"], sizes: Float[Array, " S"], *, axis_name: AxisName | None = None
) -> Float[Array, "C S"]:
    """``alpha_cs = |D_s| / sum_j |D_j|`` over the members j of cluster c; a row of zeros for an empty cluster.

    Args:
      membership: ``[S, C]``, True where an update belongs to a cluster's model; multiply by ``present`` first.
      sizes: ``[S]`` numbers of samples.
      axis_name: a mapped axis over which the S rows are split: every device or lane holds ``[S/d, C]`` and ``[S/d]``,
        and gets ``[C, S/d]``, its own columns of the whole result. None: not split.

    Returns:
      ``[C, S]`` in the dtype of ``sizes``, at least float32.

    Raises:
      ValueError: unless ``membership`` has a row for each size.
    """
    membership, sizes = jnp.asarray(membership), wide(sizes)
    if membership.ndim != 2 or membership.shape[:1] != sizes.shape:
        shape, rows = list(membership.shape), list(sizes.shape)
        raise ValueError(f"expected membership of shape [S, C], got {shape} with sizes of shape [S] = {rows}")
    mass = membership.T.astype(sizes.dtype) * jnp.where(jnp.any(membership, axis=1), sizes, 0)[None, :]
    total = sum_over(jnp.sum(mass, axis=1, keepdims=True), axis_name)
    return ratio(mass, total)


def cluster_means(
    updates: PyTree, membership: Bool[Array, "S C"], sizes: Float[Array, " S"], *, axis_name: AxisName | None = None
) -> PyTree:
    """``sum_s alpha_cs Delta_s``: the increment of every cluster's model, weighted by samples.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``, new minus old.
      membership: ``[S, C]``, True where an update belongs to a cluster's model (``slot_rows``); multiply by ``present``
        first.
      sizes: ``[S]`` numbers of samples.
      axis_name: a mapped axis over which the S rows of all three are split; every device or lane gets the whole result.
        None: not split.

    Returns:
      A pytree whose leaves are ``[C, ...]``; zero for an empty cluster. An update without a cluster is never read.

    Source: IP-FL, Algorithm 1.
    """
    return mix(member_weights(membership, sizes, axis_name=axis_name), updates, axis_name=axis_name)


@on_any_mesh
def shapley_first_order(
    gradients: PyTree,
    updates: PyTree,
    weights: Float[Array, "C S"],
    *,
    normalised: bool = True,
    models: PyTree | None = None,
    axis_name: AxisName | None = None,
) -> Float[Array, "C S"]:
    """``phi_cs = -alpha_cs <grad L(w_c), w_s - w_c>``: the Shapley value of an update, to first order in the loss.

    To first order, a member's marginal contribution does not depend on the coalition. The Shapley value therefore
    equals the leave-one-out effect. A larger value means that the update lowers the loss L more.

    Args:
      gradients: a pytree whose leaves are ``[C, ...]``: gradients of the loss on the rows that the server holds, at
        each cluster's model AFTER aggregation.
      updates: a pytree whose leaves are ``[S, ...]``, raw: new minus old.
      weights: ``[C, S]``, the alphas of the aggregation (``member_weights``); rows sum to 1 or are zero.
      normalised: subtract the weighted mean of the updates, since ``w_s - w_c = Delta_s - sum_j alpha_cj Delta_j``;
        then every row sums to 0. False gives ``-alpha_cs <grad L(w_c), w_s>``, the paper's abbreviated form.
      models: a pytree whose leaves are ``[C, ...]``, the models BEFORE aggregation; needed if ``normalised`` is False.
      axis_name: a mapped axis over which the S rows of ``updates`` and the columns of ``weights`` are split; every
        device or lane holds all of ``gradients`` and ``models``, and gets its own columns. None: not split.

    Returns:
      ``[C, S]`` in the dtype of ``weights``, at least float32. NaN in an update whose weights are all zero is harmless.

    Raises:
      ValueError: if ``normalised`` is False and ``models`` is None, or ``weights`` has another shape.

    Source: IP-FL, appendix H, equations (34) and (37).
    """
    if not normalised and models is None:
        raise ValueError("expected models, those before aggregation, for values that are not normalised, got None")
    weights = wide(weights)
    check_shape("weights", weights, "C, S", *(jax.tree.leaves(tree)[0].shape[0] for tree in (gradients, updates)))
    used = jnp.any(weights != 0, axis=0)

    def product(gradient: Array, other: Array) -> Array:
        other, axes = readable(along_rows(used, other), other), tuple(range(1, other.ndim))
        products = jnp.tensordot(wide(gradient), wide(other), axes=(axes, axes), precision=jax.lax.Precision.HIGHEST)
        return products.astype(weights.dtype)

    slope = sum(jax.tree.leaves(jax.tree.map(product, gradients, updates)), jnp.zeros_like(weights))
    slope = readable(used[None], slope)  # a product with large numbers may be infinite
    if normalised:
        total = sum_over(jnp.sum(weights, axis=1, keepdims=True), axis_name)
        mean = sum_over(jnp.sum(weights * slope, axis=1, keepdims=True), axis_name) / jnp.where(total > 0, total, 1)
        return -weights * (slope - mean)
    at_models = [
        sum_rows(wide(gradient) * wide(model))
        for gradient, model in zip(jax.tree.leaves(gradients), jax.tree.leaves(models), strict=True)
    ]
    return -weights * (
        slope + sum(at_models, jnp.zeros(weights.shape[0], weights.dtype)).astype(weights.dtype)[:, None]
    )
