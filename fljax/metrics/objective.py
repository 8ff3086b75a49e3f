"""How much clients are incentivised, not only how many: INCFL's margin, and the objective that INCFL minimises.

The last axis is the clients; see ``fljax.metrics.formulas`` for other axes and NaN.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float

from fljax.metrics.arrays import Array, aligned, mean_over, sum_over


def incentive_margin(
    loss: Float[Array, "*#batch client"], standalone_loss: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``sum_k max(f_k(what_k) - f_k(w), 0)``: by how much incentivised clients gain, in units of the loss.

    Args:
      loss: test loss ``f_k(w)`` of the model that the client would get. An infinite loss adds 0.
      standalone_loss: test loss of its standalone model; or what it requires, ``rho_k``.

    Source: INCFL, section 2, below equation (1).
    """
    xp, loss, standalone_loss = aligned(loss, standalone_loss)
    valid = ~(xp.isnan(loss) | xp.isnan(standalone_loss))
    better = valid & (loss < standalone_loss)
    gap = xp.where(better, standalone_loss, 0.0) - xp.where(better, loss, 0.0)
    return sum_over(xp, gap, valid)


def surrogate_objective(
    loss: Float[Array, "*#batch client"], threshold: Float[Array, "*#batch client"]
) -> Float[Array, "*batch"]:
    """``F~(w) = (1/M) sum_k sigma(F_k(w) - rho_k)`` in [0, 1], which INCFL and MaxFL minimise.

    Args:
      loss: training loss ``F_k(w)`` of the global model.
      threshold: ``rho_k``, what the client requires: ``F_k(what_k)`` in INCFL.

    Source: INCFL, equation (3); MaxFL, equation (3).
    """
    xp, loss, threshold = aligned(loss, threshold)
    valid = ~(xp.isnan(loss) | xp.isnan(threshold))
    apart = valid & (loss != threshold)  # equal ones may both be infinite
    gap = xp.where(apart, loss, 0.0) - xp.where(apart, threshold, 0.0)
    return mean_over(xp, _sigmoid(xp, gap), valid)


def _sigmoid(xp: Any, gap: Any) -> Any:
    """Without overflow: the exponential is of a number that is not positive."""
    small = xp.exp(-xp.abs(gap))
    return xp.where(gap >= 0, 1.0, small) / (1.0 + small)
