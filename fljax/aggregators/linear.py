"""Linear combinations of updates: the primitive on which all aggregation rules are built.

``fljax.contributions.coalition_value`` does not use ``mix``, whose mask would make each coalition copy all updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fljax.aggregators.arrays import AxisName, axes_of, on_any_mesh, sum_over
from fljax.core.trees import combine, ratio, wide

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree


def _placed(matrix: Array, updates: PyTree, *, axis_name: AxisName | None = None) -> PyTree:
    """The sharding of the result: rows as in ``matrix``, other axes as in ``updates``, each mesh axis at most once."""

    def spec(leaf: Array) -> PartitionSpec:
        taken: set[str] = set()
        free = []
        for axis in (axes_of(matrix)[0], *axes_of(leaf)[1:]):
            names = set(axis) if isinstance(axis, tuple) else {axis} - {None}
            free.append(None if names & taken else axis)
            taken |= names
        return PartitionSpec(*free)

    return jax.tree.map(spec, updates)


def mix(matrix: Float[Array, "R S"], updates: PyTree, *, axis_name: AxisName | None = None) -> PyTree:
    """R combinations of S updates: ``result[r] = sum_s matrix[r, s] * updates[s]``.

    R = 1 gives FedAvg, R = C one model per cluster, and R = N one reward per client.

    Args:
      matrix: ``[R, S]`` weights. Products are computed in the dtype of each leaf, at least float32.
      updates: a pytree whose leaves are ``[S, ...]``.
      axis_name: a mapped axis (of ``shard_map`` or ``vmap``) over which the S updates and the columns of ``matrix`` are
        split: every device or lane holds ``[R, S/d]`` and ``[S/d, ...]``, and gets the whole result. None: not split.

    Returns:
      A pytree whose leaves are ``[R, ...]``, in the dtypes of ``updates``. Products are computed at highest precision.
      NaN and infinities in an update whose weights are all zero are harmless.

    Raises:
      ValueError: if a leaf has no leading axis of length S, or holds integers.
    """
    matrix = jnp.asarray(matrix)
    if matrix.ndim != 2:
        raise ValueError(f"expected a matrix [R, S], got shape {matrix.shape}")
    updates = jax.tree.map(jnp.asarray, updates)
    for leaf in jax.tree.leaves(updates):
        if leaf.ndim == 0 or leaf.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"expected updates with a leading axis of {matrix.shape[1]} (columns of matrix), "
                f"got a leaf of shape {leaf.shape}"
            )
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(f"expected updates of floating dtype, got a leaf of dtype {leaf.dtype}")
    return _mixed(matrix, updates, axis_name=axis_name)


@on_any_mesh(result=_placed)
def _mixed(matrix: Array, updates: PyTree, *, axis_name: AxisName | None) -> PyTree:
    def mixed(leaf: Array) -> Array:
        return sum_over(combine(matrix.astype(wide(leaf).dtype), leaf), axis_name).astype(leaf.dtype)

    return jax.tree.map(mixed, updates)


def weighted_sum(updates: PyTree, weights: Float[Array, " S"], *, axis_name: AxisName | None = None) -> PyTree:
    """``sum_s weights[s] * updates[s]``: ``mix`` with one row, without its leading axis."""
    mixed = mix(jnp.asarray(weights)[None, :], updates, axis_name=axis_name)
    return jax.tree.map(lambda leaf: leaf[0], mixed)


def weighted_mean(updates: PyTree, weights: Float[Array, " S"], *, axis_name: AxisName | None = None) -> PyTree:
    """``sum_s weights[s] * updates[s] / sum_s weights[s]``; the zero tree if all weights are zero.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``.
      weights: ``[S]``, non-negative, of any dtype; multiply by ``present`` first. NaN of weight 0 is harmless.
      axis_name: a mapped axis over which the S rows are split, as for ``mix``; None: not split.

    Returns:
      A pytree whose leaves are ``[...]``, in the dtypes of ``updates``.
    """
    weights = wide(weights)
    total = sum_over(jnp.sum(weights), axis_name)
    return weighted_sum(updates, ratio(weights, total), axis_name=axis_name)
