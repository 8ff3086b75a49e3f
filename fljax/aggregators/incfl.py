"""INCFL / MaxFL: weigh each client by the derivative of a surrogate of "the model is good enough for me".

Source: "To federate or not to federate: incentivizing client participation in federated learning" (INCFL), section 3
and Algorithm 1; "Maximizing global model appeal in federated learning" (MaxFL) is the same aggregation.
Algorithm 1 of INCFL prints q = sigma(gap); the derivative of the stated objective is sigma(gap)(1 - sigma(gap)), which
is the default here ("softplus" gives the other).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from fljax.aggregators.arrays import AxisName, check_shape, presence, ratio, sum_over, wide
from fljax.aggregators.linear import weighted_sum

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree


def _sigmoid(gap: Array) -> Array:
    decay = jnp.exp(-jnp.abs(gap))  # numerically stable: at most 1, and 0 for infinite gaps
    return decay / jnp.square(1 + decay)


# The derivatives of the surrogates, which are given in the comments.
SURROGATES = {
    "sigmoid": _sigmoid,  # sigma(gap)
    "softplus": jax.nn.sigmoid,  # log(1 + exp(gap))
    "relu": lambda gap: (gap > 0).astype(gap.dtype),  # max(0, gap)
    "exp": lambda gap: jnp.exp(jnp.minimum(gap, 20)),  # exp(gap), clipped
}
NORMALISERS = ("sum", "mean")


def check_names(surrogate: str, normalise: str = "sum") -> None:
    """Raises a ValueError unless ``surrogate`` and ``normalise`` are valid names."""
    if surrogate not in SURROGATES:
        raise ValueError(f"expected a surrogate, got {surrogate!r}; valid names are {', '.join(SURROGATES)}")
    if normalise not in NORMALISERS:
        raise ValueError(f"expected a normaliser, got {normalise!r}; valid names are {', '.join(NORMALISERS)}")


def check_gap_scale(gap_scale: object) -> None:
    """Raises a ValueError if ``gap_scale`` is a number that is not above 0 or not finite; arrays are not checked."""
    if isinstance(gap_scale, int | float | np.number) and not 0 < gap_scale < math.inf:
        raise ValueError(f"expected gap_scale to be a finite number above 0, got {gap_scale}")


def incfl_weights(
    gap: Float[Array, " S"], *, surrogate: str = "sigmoid", gap_scale: float | Array = 1.0
) -> Float[Array, " S"]:
    """Incentive weights ``q = gap_scale * surrogate'(gap_scale * gap)`` with ``gap = F_k(w) - rho_k``.

    They are the derivatives of ``surrogate(gap_scale * gap)`` in ``gap``, the loss minus the threshold.

    Args:
      gap: ``[S]``, of any dtype.
      surrogate: "sigmoid" gives ``sigma(gap) (1 - sigma(gap))`` in [0, 1/4], even in gap and 0 for infinite gaps;
        "softplus" gives ``sigma(gap)``; "relu" gives 1 where gap > 0 and 0 elsewhere; "exp" gives
        ``exp(min(gap, 20))``. In these expressions, gap means ``gap_scale * gap``.
      gap_scale: beta in ``sigma(beta gap)``, a number above 0 or a traced one; 1 in the papers. Losses and thresholds
        that are summed over b batches are means with ``gap_scale = b``.

    Returns:
      ``[S]`` weights in the dtype of ``gap``, at least float32: in float16 the weight of a gap of 12 has one correct
      digit, and "exp" overflows. A gap of NaN gives NaN.

    Raises:
      ValueError: if ``surrogate`` is not a valid name, or ``gap_scale`` is not a finite number above 0.
    """
    check_names(surrogate)
    check_gap_scale(gap_scale)
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
    check_names(surrogate, normalise)
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
