"""The unifying primitive of aggregation: linear combinations of updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree


def mix(matrix: Float[Array, "R S"], updates: PyTree) -> PyTree:
    """R combinations of S updates: ``result[r] = sum_s matrix[r, s] * updates[s]``.

    R = 1 is FedAvg, R = C cluster models, R = N rewards of one model per client.

    Args:
      matrix: ``[R, S]`` weights; it is cast to the dtype of each leaf.
      updates: a pytree whose leaves are ``[S, ...]``.

    Returns:
      A pytree whose leaves are ``[R, ...]``, in the dtypes of ``updates``. Products are taken at highest precision.
      An update whose weights are all zero is never read: NaN there is harmless.

    Raises:
      ValueError: if a leaf has no leading axis of length S, or holds integers.
    """
    if matrix.ndim != 2:
        raise ValueError(f"expected a matrix [R, S], got shape {matrix.shape}")
    used = jnp.any(matrix != 0, axis=0)

    def combine(leaf: Array) -> Array:
        if leaf.ndim == 0 or leaf.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"expected updates with a leading axis of {matrix.shape[1]} (columns of matrix), "
                f"got a leaf of shape {leaf.shape}"
            )
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(f"expected updates of floating dtype, got a leaf of dtype {leaf.dtype}")
        rows = leaf.reshape(leaf.shape[0], -1)
        rows = jnp.where(used[:, None], rows, jnp.zeros((), rows.dtype))
        mixed = jnp.matmul(matrix.astype(rows.dtype), rows, precision=jax.lax.Precision.HIGHEST)
        return mixed.reshape(matrix.shape[0], *leaf.shape[1:])

    return jax.tree.map(combine, updates)


def weighted_sum(updates: PyTree, weights: Float[Array, " S"]) -> PyTree:
    """``sum_s weights[s] * updates[s]``: ``mix`` with one row, without its leading axis."""
    return jax.tree.map(lambda leaf: leaf[0], mix(weights[None, :], updates))


def weighted_mean(updates: PyTree, weights: Float[Array, " S"]) -> PyTree:
    """``sum_s weights[s] * updates[s] / sum_s weights[s]``; the zero tree where no weight is left.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``.
      weights: ``[S]``, non-negative; multiply by ``present`` first. Entries of weight 0 are never read.

    Returns:
      A pytree whose leaves are ``[...]``, in the dtypes of ``updates``.
    """
    total = jnp.sum(weights)
    # Asked as "is zero", so that a NaN among the weights shows in the result instead of emptying it.
    normalised = jnp.where(total == 0, jnp.zeros_like(weights), weights / jnp.where(total == 0, 1, total))
    return weighted_sum(updates, normalised)
