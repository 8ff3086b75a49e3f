"""Aggregation that weighs clients by their losses: q-FFL, AFL's mixture, MW-Fed's multiplicative weights, and INCFL.

Sources: Li et al., "Fair resource allocation in federated learning" (ICLR 2020), Algorithm 2; Mohri et al., "Agnostic
federated learning" (ICML 2019), section 4; Blum et al., "One for one, or all for all" (ICML 2021), section 5; "To
federate or not to federate: incentivizing client participation in federated learning" (INCFL), section 3 and Algorithm
1; "Maximizing global model appeal in federated learning" (MaxFL) is the same aggregation as INCFL. INCFL's Algorithm 1
prints q = sigma(gap) ("softplus"); the derivative of the stated objective, sigma(gap)(1 - sigma(gap)), is the default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from fljax.aggregators.arrays import (
    AxisName,
    along_rows,
    check_positive,
    check_shape,
    max_over,
    on_any_mesh,
    presence,
    sum_over,
    sum_rows,
)
from fljax.aggregators.linear import weighted_sum
from fljax.core.trees import floating, least_divisor, ratio, wide

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree


# Lower bounds of losses and weights; their powers and logarithms are finite.
LEAST_LOSS = 1e-10
LEAST_WEIGHT = 1e-12


def qffl_update(
    updates: PyTree,
    loss: Float[Array, " S"],
    *,
    q: float | Array,
    learning_rate: float | Array,
    present: Bool[Array, " S"] | None = None,
    axis_name: AxisName | None = None,
) -> PyTree:
    """The server's increment of q-FedAvg: ``-sum_k D_k / sum_k h_k``; ADD it to the model.

    ``g_k = -updates_k / learning_rate``, ``D_k = F_k^q g_k`` and ``h_k = q F_k^(q-1) ||g_k||^2 + F_k^q /
    learning_rate``. All powers are divided by the largest ``F_k^q``, which does not change the ratio.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``, each new minus old.
      loss: ``[S]``, ``F_k`` of the received model, before training; smaller values are raised to 1e-10.
      q: fairness; 0 gives the plain mean of the updates.
      learning_rate: rate of local training in this round; ``1 / learning_rate`` is the paper's Lipschitz constant L. At
        0, or near the least number of the dtype, nobody moved, and the increment is that of ``||g_k|| = 0``.
      present: ``[S]`` clients that count; None: all. Entries of absent clients are never read.
      axis_name: a mapped axis over which the S rows of all arrays are split; every device or lane gets the whole
        result. None: not split.

    Returns:
      A pytree whose leaves are ``[...]``, in the dtypes of ``updates``; zero if no client is present.
    """
    loss = wide(loss)
    present = presence(present, loss.shape[0])
    q, learning_rate = jnp.asarray(q, loss.dtype), jnp.asarray(learning_rate, loss.dtype)
    logarithm = jnp.log(jnp.clip(jnp.where(present, loss, 1), LEAST_LOSS, jnp.finfo(loss.dtype).max))
    # The common divisor of all powers changes neither the result nor its derivative.
    largest = max_over(jnp.max(jnp.where(present, q * logarithm, -jnp.inf)), axis_name)
    below = jnp.where(present, q * logarithm - jnp.where(largest > -jnp.inf, largest, 0), -jnp.inf)
    power = jnp.exp(below)  # unmasked, an absent client's power could overflow and give NaN gradients

    # A rate of zero moves nobody: the squares vanish in the limit, and the powers alone remain.
    moves = learning_rate >= least_divisor(loss.dtype)
    learning_rate = jnp.where(moves, learning_rate, 1)

    def squares(leaf: Array) -> Array:
        rows = wide(jnp.where(along_rows(present & moves, leaf), leaf, 0))
        return sum_rows(jnp.square(rows / learning_rate.astype(rows.dtype))).astype(loss.dtype)

    norm = sum(map(squares, jax.tree.leaves(updates)), jnp.zeros_like(loss))
    h = power * (q * jnp.exp(-logarithm) * norm + 1 / learning_rate)
    total = sum_over(jnp.sum(h), axis_name) * learning_rate
    share = ratio(power, total)
    return weighted_sum(updates, share, axis_name=axis_name)


@on_any_mesh
def simplex_projection(
    point: Float[Array, " N"], *, mass: float | Array = 1.0, mask: Bool[Array, " N"] | None = None
) -> Float[Array, " N"]:
    """The nearest point to ``point`` with entries of at least 0 whose sum is ``mass``.

    With entries sorted descending, ``u``, and ``r`` the largest ``i`` for which ``u_i + (mass - sum_{j<=i} u_j) / i >
    0``, every entry is moved by ``(mass - sum_{j<=r} u_j) / r`` and cut off at 0.

    Args:
      point: ``[N]`` finite.
      mass: the sum of the result.
      mask: ``[N]`` entries that take part; None: all. Other entries are never read, and are 0 in the result.

    Returns:
      ``[N]`` in the dtype of ``point`` (whole numbers become floats); zeros where ``mask`` is empty.

    Source: Duchi et al., "Efficient projections onto the l1-ball" (ICML 2008), Figure 1; AFL, section 4.
    """
    dtype = floating(point).dtype
    point = wide(point)
    mask = jnp.ones(point.shape, bool) if mask is None else jnp.asarray(mask)
    mass = jnp.asarray(mass, point.dtype)
    # Shifting all entries alike does not change the projection. Relative to the largest, rounding cannot lose the mass.
    largest = jax.lax.stop_gradient(jnp.max(jnp.where(mask, point, -jnp.inf)))
    point = jnp.where(mask, point - jnp.where(jnp.any(mask), largest, 0), 0)
    ordered = jnp.flip(jnp.sort(jnp.where(mask, point, -jnp.inf)))
    real = jnp.arange(point.shape[0]) < jnp.sum(mask)
    ordered = jnp.where(real, ordered, 0)
    count = jnp.arange(1, point.shape[0] + 1, dtype=point.dtype)
    shift = (mass - jnp.cumsum(ordered)) / count
    last = jnp.sum(real & (ordered + shift > 0)) - 1
    moved = point + shift[jnp.maximum(last, 0)]
    return jnp.where(mask & (moved > 0), moved, 0).astype(dtype)


def mw_weights(
    weights: Float[Array, " N"], unsatisfied: Bool[Array, " N"], *, factor: float | Array = 2.0
) -> Float[Array, " N"]:
    """Multiplicative weights: ``W_k factor`` where a client is unsatisfied, else ``W_k``, divided by their sum.

    Args:
      weights: ``[N]``, of sum 1; entries of 0 stay 0.
      unsatisfied: ``[N]``; False for clients that were not evaluated.
      factor: the paper's c.

    Returns:
      ``[N]`` of sum 1, in the dtype of ``weights``. Before normalisation, positive weights are raised to at least 1e-12
      of the largest weight, and to at least the smallest normal number of their dtype.
    """
    weights = floating(weights)
    dtype, least = weights.dtype, max(LEAST_WEIGHT, float(jnp.finfo(weights.dtype).tiny))
    weights = wide(weights)
    grown = jnp.where(jnp.asarray(unsatisfied), weights * jnp.asarray(factor, weights.dtype), weights)
    # Divide by the largest weight first, so that a large factor cannot make the sum overflow.
    grown = grown / jnp.maximum(jnp.max(grown), least)
    grown = jnp.where(weights > 0, jnp.maximum(grown, least), grown)  # 0 stays, with its derivative
    return ratio(grown, jnp.sum(grown), weights).astype(dtype)


def _sigmoid(gap: Array) -> Array:
    decay = jnp.exp(-jnp.abs(gap))  # numerically stable: at most 1, and 0 for infinite gaps
    return decay / jnp.square(1 + decay)


def _step(gap: Array) -> Array:
    # A comparison with NaN is false, which would leave the client out without a word.
    return jnp.where(jnp.isnan(gap), gap, (gap > 0).astype(gap.dtype))


# The derivatives of the surrogates, which are given in the comments.
SURROGATES = {
    "sigmoid": _sigmoid,  # sigma(gap)
    "softplus": jax.nn.sigmoid,  # log(1 + exp(gap))
    "relu": _step,  # max(0, gap)
    "hinge": lambda gap: _step(1 + gap),  # max(0, 1 + gap), the hinge loss of the margin -gap
    "exp": lambda gap: jnp.exp(jnp.minimum(gap, 20)),  # exp(gap), clipped
}
NORMALISERS = ("sum", "mean")


def incfl_weights(
    gap: Float[Array, " S"], *, surrogate: str = "sigmoid", gap_scale: float | Array = 1.0
) -> Float[Array, " S"]:
    """Incentive weights ``q = gap_scale * surrogate'(gap_scale * gap)`` with ``gap = F_k(w) - rho_k``.

    They are the derivatives of ``surrogate(gap_scale * gap)`` in ``gap``, the loss minus the threshold.

    Args:
      gap: ``[S]``, of any dtype.
      surrogate: "sigmoid" gives ``sigma(gap) (1 - sigma(gap))`` in [0, 1/4], even in gap and 0 for infinite gaps;
        "softplus" gives ``sigma(gap)``; "relu" gives 1 where gap > 0 and 0 elsewhere; "hinge", of which the surrogate
        is ``max(0, 1 + gap)``, gives 1 where gap > -1 and 0 elsewhere, so a satisfied client counts until its loss is
        1 below its threshold; "exp" gives ``exp(min(gap, 20))``. Here, gap means ``gap_scale * gap``.
      gap_scale: beta in ``sigma(beta gap)``, a number above 0 or a traced one; 1 in the papers. Losses and thresholds
        that are summed over b batches are means with ``gap_scale = b``.

    Returns:
      ``[S]`` weights in the dtype of ``gap``, at least float32: in float16 the weight of a gap of 12 has one correct
      digit, and "exp" overflows. A gap of NaN gives NaN.

    Raises:
      ValueError: if ``surrogate`` is not a valid name, or ``gap_scale`` is not a finite number above 0.
    """
    if surrogate not in SURROGATES:
        raise ValueError(f"expected a surrogate, got {surrogate!r}; valid names are {', '.join(SURROGATES)}")
    check_positive("gap_scale", gap_scale)
    gap = wide(gap)
    scale = jnp.asarray(gap_scale, gap.dtype)
    return scale * SURROGATES[surrogate](scale * gap)


def incfl_update(
    updates: PyTree,
    gap: Float[Array, " S"],
    *,
    present: Bool[Array, " S"] | None = None,
    surrogate: str = "sigmoid",
    gap_scale: float | Array = 1.0,
    normalise: str = "sum",
    server_lr: float | Array = 1.0,
    eps: float | Array = 1e-8,
    axis_name: AxisName | None = None,
) -> PyTree:
    """The server's increment of INCFL: ``server_lr / (sum_k q_k + eps) * sum_k q_k updates_k``; ADD it to the model.

    Args:
      updates: a pytree whose leaves are ``[S, ...]``, each new minus old.
      gap: ``[S]``, each client's loss of the received model minus its threshold.
      present: ``[S]`` clients that count; None: all. Entries of absent clients are never read.
      surrogate: see ``incfl_weights``.
      gap_scale: see ``incfl_weights``.
      normalise: "sum" divides as above; "mean" also multiplies by the number of clients present, as the proof for
        partial participation does (INCFL, appendix D).
      server_lr: the paper's eta_g.
      eps: added to the sum of weights. For "sigmoid" that sum is at most S/4, so an eps of order S shortens every step.
      axis_name: a mapped axis (of ``shard_map`` or ``vmap``) over which the S rows are split; every device or lane
        holds ``[S/d, ...]`` of the updates and ``[S/d]`` of the other arrays, and gets the whole result. None: not
        split.

    Returns:
      A pytree whose leaves are ``[...]``, in the dtypes of ``updates``; zero if all weights are zero (also with eps
      = 0). A NaN gap of a present client gives NaN.

    Raises:
      ValueError: if ``surrogate`` or ``normalise`` is not a valid name, ``gap_scale`` is not a finite number above 0,
        or ``gap`` or ``present`` has another shape.
    """
    if normalise not in NORMALISERS:
        raise ValueError(f"expected a normaliser, got {normalise!r}; valid names are {', '.join(NORMALISERS)}")
    gap = wide(gap)
    for leaf in jax.tree.leaves(updates)[:1]:
        check_shape("gap", gap, "S", *jnp.shape(leaf)[:1])
    present = presence(present, gap.shape[0])
    # An absent client's weight must be 0, although sigma'(0) = 1/4 and its gap may be NaN.
    weights = incfl_weights(jnp.where(present, gap, 0), surrogate=surrogate, gap_scale=gap_scale)
    weights = jnp.where(present, weights, 0)
    total = sum_over(jnp.sum(weights), axis_name) + jnp.asarray(eps, weights.dtype)
    # Divide before scaling: 1 / total overflows if all weights are tiny.
    share = ratio(weights, total)
    if normalise == "mean":
        share = share * sum_over(jnp.sum(present, dtype=share.dtype), axis_name)
    return weighted_sum(updates, jnp.asarray(server_lr, share.dtype) * share, axis_name=axis_name)
