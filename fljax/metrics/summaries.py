"""What tables and pictures show of metrics, with NumPy alone, since ``fljax watch`` and tables do without JAX."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.metrics.scores import heading_of

# --- Over seeds ---------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """A metric over the seeds that have a finite value; arrays without the axis of seeds, or one number each.

    Attributes:
      mean: NaN if no seed has a finite value.
      std: standard deviation with n - 1 in the denominator; NaN for fewer than two seeds with a finite value.
      count: the number of seeds with a finite value.
    """

    mean: Any
    std: Any
    count: Any


def over_seeds(values: Any, axis: int = 0) -> Summary:
    """Mean, standard deviation and number of the finite values along an axis.

    NaN (no value) and infinity (a diverged run) are left out alike. Single precision is summed in double precision.

    Args:
      values: numbers, one or several for each seed.
      axis: the axis of the seeds.

    Returns:
      Python's numbers for ``[seed]``, else arrays.
    """
    values = np.moveaxis(np.asarray(values, float), axis, -1)
    if values.ndim == 1:
        values = values[np.isfinite(values)]  # so that the sum of float64 is rounded as NumPy's is
    finite = np.isfinite(values)
    count = finite.sum(axis=-1)
    mean = np.where(count > 0, np.where(finite, values, 0).sum(axis=-1) / np.maximum(count, 1), np.nan)
    deviation = np.where(finite, values, mean[..., None]) - mean[..., None]
    variance = (deviation * deviation).sum(axis=-1) / np.maximum(count - 1, 1)
    std = np.where(count > 1, np.sqrt(variance), np.nan)
    return Summary(mean, std, count) if values.ndim > 1 else Summary(float(mean), float(std), int(count))


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are known; None if there are none.

    For values that are written as JSON, where None stands for NaN and infinity; they have seven digits already.
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# --- Clusters -----------------------------------------------------------------------------------------------


def align_clusters(
    accuracy: Float[np.ndarray, "*batch evaluated_round C D"],
) -> Float[np.ndarray, "*batch evaluated_round C D"]:
    """Numbers clusters by their distributions, in the one-to-one matching with the largest sum of last accuracies."""
    # The distribution in which a cluster specialises is random, so clusters of two seeds cannot be compared by number.
    # All evaluations have one permutation. Unmatched clusters follow in their old order; NaN is matched last.
    from scipy.optimize import linear_sum_assignment  # late: it takes a quarter of a second

    accuracy = np.asarray(accuracy)
    known = np.asarray(np.isfinite(accuracy).any(axis=(-2, -1)))
    place = known.shape[-1] - 1 - np.argmax(known[..., ::-1], axis=-1)  # after the end of a run there is NaN
    last = np.take_along_axis(accuracy, place[..., None, None, None], axis=-3)[..., 0, :, :]
    last = np.nan_to_num(last, nan=-1.0)
    aligned = accuracy.copy()
    for run in np.ndindex(last.shape[:-2]):
        cluster, distribution = linear_sum_assignment(last[run], maximize=True)
        matched = cluster[np.argsort(distribution)]
        rest = np.setdiff1d(np.arange(last.shape[-2]), matched)
        aligned[run] = accuracy[run][:, [*matched, *rest]]
    return aligned


# --- Headings -----------------------------------------------------------------------------------------------

# Headings of the metrics that tables on the terminal show, in their order.
_MAIN = {
    "incentivised_participation_rate": "IPR",
    "unseen_incentivised_participation_rate": "IPR unseen",
    "preferred_model_accuracy": "preferred",
    "average_accuracy": "average",
    "unseen_average_accuracy": "average unseen",
}
# Also those of a task without accuracies, and where messages that are not finite are dropped.
_LOSSES = {"average_loss": "average loss", "unseen_average_loss": "average loss unseen"}
_DROPPED = {"dropped_messages": "dropped"}


def main_columns(names: Collection[str]) -> dict[str, str]:
    """The headings of the main metrics among ``names``, by metric, and of all scores."""
    headings = (_MAIN if "average_accuracy" in names else _MAIN | _LOSSES) | _DROPPED
    of_scores = ((name, heading_of(name)) for name in sorted(names))
    headings |= {name: words for name, words in of_scores if words is not None}
    return {name: words for name, words in headings.items() if name in names}
