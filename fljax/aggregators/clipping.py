"""Clipping: no update of a round is longer than a bound, a number or a multiple of the median norm.

Source: Sun et al., "Can you really backdoor federated learning?" (2019), norm thresholding of updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import AxisName, along_rows, check_positive, gather_over, on_any_mesh, presence, row_norms
from fljax.core.trees import wide

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree


@on_any_mesh
def _lower_median(norms: Array, present: Array) -> Float[Array, ""]:
    """The lower median of the norms that are present; infinity if there are none."""
    middle = (jnp.sum(present, dtype=jnp.int32) - 1) // 2
    return jnp.sort(jnp.where(present, norms, jnp.inf))[jnp.maximum(middle, 0)]


def clip_to_median(
    updates: PyTree,
    *,
    present: Bool[Array, " S"] | None = None,
    times: float | Array = 1.0,
    axis_name: AxisName | None = None,
) -> PyTree:
    """``updates_k min(1, times median / ||updates_k||)`` with the median of the norms of the updates that are present.

    Of two medians it takes the lower one. So as long as at most half of the updates are of attackers, the bound is at
    most ``times`` the largest honest norm. The directions of updates stay, and so do those of attackers. An update
    with a NaN or infinity counts as the longest of all, and is not made finite.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``; the norm of a row is over all leaves.
      present: ``[S]`` clients that count; None: all. Rows of absent clients are returned as they are.
      times: the bound as a multiple of the median, a number above 0.
      axis_name: a mapped axis (of ``shard_map`` or ``vmap``) over which the S rows are split: every device or lane
        holds ``[S/d, ...]`` and gets its own rows. None: not split.

    Returns:
      The updates, in their shapes and dtypes.

    Raises:
      ValueError: if ``times`` is a number that is not finite and above 0, or ``present`` has another shape.
    """
    check_positive("times", times)

    def bounded(norms: Array, present: Array) -> tuple[Array, Array]:
        everyone, counted = norms, present
        if axis_name is not None:
            everyone, counted = gather_over(norms, axis_name), gather_over(present, axis_name)
        median = _lower_median(everyone, counted)
        known = jnp.isfinite(median)
        # The derivative of a product with infinity is NaN.
        return present & known, jnp.asarray(times, norms.dtype) * jnp.where(known, median, 0)

    return _clipped(updates, present, bounded)


def clip(updates: PyTree, bound: float | Array, *, present: Bool[Array, " S"] | None = None) -> PyTree:
    """``updates_k min(1, bound / ||updates_k||)``, as in differential privacy.

    An update with a NaN or infinity becomes NaN there and 0 elsewhere: it has no direction.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``; the norm of a row is over all leaves.
      bound: the largest norm, a number above 0, or ``[S]``, one for each client.
      present: ``[S]`` clients that count; None: all. Rows of absent clients are returned as they are.

    Returns:
      The updates, in their shapes and dtypes. ``axis_name`` is not needed: each row is clipped by itself.

    Raises:
      ValueError: if ``bound`` is known and not finite and above 0, or ``bound`` or ``present`` has another shape.

    Source: Abadi et al., "Deep learning with differential privacy" (2016); McMahan et al. (2018), of users.
    """
    check_positive("bound", bound)

    def bounded(norms: Array, present: Array) -> tuple[Array, Array]:
        if (shape := jnp.shape(bound)) not in ((), norms.shape):
            raise ValueError(f"expected bound to be a number or of shape {list(norms.shape)}, got {list(shape)}")
        return present, jnp.asarray(bound, norms.dtype)

    return _clipped(updates, present, bounded)


def _clipped(updates: PyTree, present: Any, bounded: Callable[[Array, Array], tuple[Array, Array]]) -> PyTree:
    """The updates; ``bounded`` says of norms and presence which updates have a bound, and the bound."""
    updates = jax.tree.map(jnp.asarray, updates)
    leaves = jax.tree.leaves(updates)
    if not leaves or not leaves[0].shape[0]:
        return updates
    present = presence(present, leaves[0].shape[0])
    read = [wide(jnp.where(along_rows(present, leaf), leaf, 0).astype(leaf.dtype)) for leaf in leaves]
    kind = jnp.result_type(*read)
    norms = row_norms([leaf.astype(kind) for leaf in read])
    chosen, bound = bounded(norms, present)
    is_long = chosen & (norms >= bound) & (norms > 0)
    factor = jnp.where(is_long, jnp.minimum(bound / jnp.where(is_long, norms, 1), 1), 1)

    def shorten(leaf: Array) -> Array:
        return (wide(leaf) * along_rows(factor, leaf).astype(wide(leaf).dtype)).astype(leaf.dtype)

    return jax.tree.map(shorten, updates)
