"""CGSV: a client's contribution is the cosine between its update and the aggregate; its reward is a sparse update.

Source: Xu et al., "Gradient driven rewards to guarantee fairness in collaborative machine learning" (NeurIPS 2021),
section 4 and Algorithm 1, as implemented in the code of IAFL's authors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import AxisName, along_rows, on_any_mesh, presence, sum_over, sum_rows
from fljax.aggregators.rewards import ceiling_of, columns_of
from fljax.core.trees import floating, root, set_rows, wide

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

# A term added to norms, the least product of norms, and the least reputation before normalisation.
_NORM, _PRODUCT, _REPUTATION = 1e-7, 1e-10, 1e-3


def cgsv_normalised(updates: PyTree, *, length: float | Array) -> PyTree:
    """``u_k = length * Delta_k / (||Delta_k|| + 1e-7)``: updates of equal norm.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``, each new minus old.
      length: the paper's Gamma; 0.5 for MNIST, 0.15 for CIFAR, 1 for SST.

    Returns:
      A pytree like ``updates``; an update of zero stays zero.
    """
    norm = root(_product(updates, updates))
    factor = jnp.asarray(length, norm.dtype) / (norm + _NORM)

    def scaled(leaf: Array) -> Array:
        rows = wide(leaf)  # the factor of a tiny update overflows float16
        return (rows * along_rows(factor.astype(rows.dtype), leaf)).astype(leaf.dtype)

    return jax.tree.map(scaled, updates)


@on_any_mesh
def cgsv_reputation(
    reputation: Float[Array, " N"],
    updates: PyTree,
    total: PyTree,
    *,
    ids: Int[Array, " S"] | None = None,
    present: Bool[Array, " S"] | None = None,
    alpha: float | Array = 0.95,
    members: Bool[Array, " N"] | None = None,
    weights: Float[Array, " S"] | None = None,
    axis_name: AxisName | None = None,
) -> Float[Array, " N"]:
    """``r_k <- max(alpha r_k + (1 - alpha) cos(u_k, u), 1e-3)``, then all ``r_k`` are divided by their sum.

    Args:
      reputation: ``[N]``, ``r_k`` by id; zeros before the first round.
      updates: a pytree whose leaves are ``[S, ...]``: ``u_k``; the cosine does not depend on their length.
      total: a pytree whose leaves are ``[...]``: ``u = sum_k a_k u_k`` over the clients present, a ``weighted_sum`` of
        ``updates``. ``a_k`` is the client's share of all samples in the first round, and its last reputation after it.
      ids: ``[S]`` client ids of the updates; None: 0..N-1, in this order.
      present: ``[S]``; None: all. An absent client has a cosine of 0.
      alpha: weight of the old reputation.
      members: ``[N]``, the clients that belong to the federation; None: all. Others have reputation 0.
      weights: ``[S]``, the ``a_k`` of ``total``. With them, a total that is 0 but for rounding has a cosine of 0.
      axis_name: a mapped axis over which the S rows of ``updates``, ``ids`` and so on are split; every device or lane
        holds all of ``reputation`` and ``total``, and gets the whole result. None: not split.

    Returns:
      ``[N]``, positive for members, of sum 1, in the dtype of ``reputation``.

    Raises:
      ValueError: if an array has another shape, or ``ids`` is None and the updates are not those of all clients.
    """
    dtype, reputation = floating(reputation).dtype, wide(reputation)
    count = jax.tree.leaves(updates)[0].shape[0]
    ids, present = columns_of(ids, count, reputation.shape[0], axis_name), presence(present, count)
    for leaf, whole in zip(jax.tree.leaves(updates), jax.tree.leaves(total), strict=True):
        if jnp.shape(whole) != leaf.shape[1:]:
            raise ValueError(f"expected a leaf of total of shape {list(leaf.shape[1:])}, got {list(jnp.shape(whole))}")
    updates = jax.tree.map(lambda leaf: jnp.where(along_rows(present, leaf), leaf, 0), updates)
    whole = jax.tree.map(lambda leaf: leaf[None], total)
    own, length = root(_product(updates, updates)), root(_product(whole, whole))
    cosine = (_product(updates, whole) / jnp.maximum(own * length, _PRODUCT)).astype(reputation.dtype)
    if weights is not None:  # updates that cancel each other leave a total of rounding, with a direction of its own
        terms = sum_over(jnp.sum(jnp.where(present, jnp.abs(weights), 0) * own), axis_name)
        # A length of 0 may be that of NaN, which stays visible.
        cosine = jnp.where((length > 0) & (length <= 8 * jnp.finfo(own.dtype).eps * terms), 0, cosine)
    aligned = sum_over(set_rows(jnp.zeros_like(reputation), ids, present, cosine), axis_name)
    alpha = jnp.asarray(alpha, reputation.dtype)
    moved = jnp.maximum(alpha * reputation + (1 - alpha) * aligned, _REPUTATION)
    if members is not None:
        moved = jnp.where(members, moved, 0)
        return (moved / jnp.maximum(jnp.sum(moved), _REPUTATION)).astype(dtype)
    return (moved / jnp.sum(moved)).astype(dtype)


def cgsv_shares(reputation: Float[Array, " N"], *, beta: float | Array = 1.0) -> Float[Array, " N"]:
    """``Q_k = tanh(beta r_k) / max_j tanh(beta r_j)``: the share of each layer that a client receives, in [0, 1].

    Args:
      reputation: ``[N]``, not negative.
      beta: altruism; as it tends to 0 the shares become proportional to reputations, as it grows they all tend to 1.

    Returns:
      ``[N]`` in the dtype of ``reputation`` (whole numbers become floats).
    """
    reputation = floating(reputation)
    height = jnp.tanh(jnp.asarray(beta, wide(reputation).dtype) * wide(reputation))
    top = jnp.max(height)
    return jnp.where(top > 0, height / jnp.where(top > 0, top, 1), 1).astype(reputation.dtype)


@on_any_mesh
def cgsv_rewards(
    total: PyTree, reputation: Float[Array, " N"], *, beta: float | Array = 1.0, quirk: bool = False
) -> PyTree:
    """Every client's reward: the ``ceil(Q_k n_l)`` largest entries of each layer of ``total``, zeros elsewhere.

    Args:
      total: a pytree whose leaves are ``[...]``: ``u``; a layer is a leaf, with ``n_l`` entries.
      reputation: ``[N]`` from ``cgsv_reputation``; ``Q`` is ``cgsv_shares``.
      beta: see ``cgsv_shares``.
      quirk: keep at most ``n_l - 1`` entries, as the authors' code does.

    Returns:
      A pytree whose leaves are ``[N, ...]``. Entries are ordered by absolute value; on a tie the earlier entry comes
      first. With ``quirk``, all entries that tie with the last kept entry are kept.
    """
    share = cgsv_shares(wide(reputation), beta=beta)

    def sparse(leaf: Array) -> Array:
        flat = leaf.reshape(-1)
        size = flat.shape[0]
        # Single precision cannot count the entries of a large layer, so a share of 1 is handled separately.
        count = jnp.where(share >= 1, size, ceiling_of(share * size))
        count = jnp.clip(count, 0, size - 1 if quirk else size)
        order = jnp.argsort(-jnp.abs(flat), stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(size, dtype=order.dtype)).reshape(1, *leaf.shape)
        chosen = place < along_rows(count, place)
        if quirk:
            last = jnp.abs(flat)[order][jnp.maximum(count - 1, 0)]
            chosen = (jnp.abs(leaf)[None] >= along_rows(last, place)) & along_rows(count > 0, place)
        return jnp.where(chosen, leaf[None], 0)

    return jax.tree.map(sparse, total)


def _product(a: PyTree, b: PyTree) -> Float[Array, " S"]:
    """Inner products of corresponding rows, summed over all leaves."""
    leaves = jax.tree.leaves(jax.tree.map(lambda x, y: sum_rows(wide(x) * wide(y)), a, b))
    return jnp.asarray(sum(leaves[1:], leaves[0]))
