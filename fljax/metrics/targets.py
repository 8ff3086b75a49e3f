"""How many rounds a method takes until a metric reaches a target."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Real


def rounds_to_target(
    values: Float[np.ndarray, "*batch evaluated_round"],
    rounds: Real[np.ndarray, " evaluated_round"],
    target: float,
    *,
    lower: bool = False,
) -> Float[np.ndarray, "*batch"]:
    """``min {t_e : x_e >= target}``: the number of rounds done at the first evaluation that reaches the target.

    It is as exact as evaluations are frequent: the target may have been reached between two of them. Later evaluations
    below the target change nothing.

    Args:
      values: ``x_e``, the metric by evaluation; NaN reaches no target.
      rounds: ``t_e``, rounds done at the evaluations, ascending.
      target: the value to reach; equality reaches it.
      lower: whether lower is better: ``x_e <= target``.

    Returns:
      NaN where the target was not reached.

    Source: IP-FL, Figures 2 and 9 (speed of convergence).
    """
    with np.errstate(invalid="ignore"):
        reached: Bool[np.ndarray, "*batch evaluated_round"] = values <= target if lower else values >= target
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    first = np.asarray(rounds, float)[np.argmax(reached, axis=-1)]
    return np.where(np.any(reached, axis=-1), first, np.nan)
