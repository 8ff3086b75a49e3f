"""Matches cluster models to source distributions.

The numbers of clusters have no meaning, so comparisons match them to distributions first.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def align_clusters(
    accuracy: Float[np.ndarray, "*batch evaluated_round C D"],
) -> Float[np.ndarray, "*batch evaluated_round C D"]:
    """Numbers the clusters by the source distributions that their models fit.

    The distribution in which a cluster model specialises is random, so clusters of two seeds cannot be compared by
    number. Here cluster g becomes the cluster matched with distribution g, in the one-to-one matching with the largest
    sum of accuracies at the run's last evaluation (Hungarian method). All evaluations have the same permutation.

    Args:
      accuracy: of every cluster model on every distribution, as in ``cluster_accuracy``. NaN (a cluster that an
        algorithm does not have) is matched last.

    Returns:
      The permuted accuracies. Unmatched clusters follow in their old order. With fewer clusters than distributions,
      clusters are in the order of their matched distributions.
    """
    from scipy.optimize import linear_sum_assignment  # late: it takes a quarter of a second

    accuracy = np.asarray(accuracy)
    known = np.asarray(np.isfinite(accuracy).any(axis=(-2, -1)))
    place = known.shape[-1] - 1 - np.argmax(known[..., ::-1], axis=-1)  # after the end of a run there is NaN
    last = np.take_along_axis(accuracy, place[..., None, None, None], axis=-3)[..., 0, :, :]
    last = np.nan_to_num(last, nan=-1.0)
    found = accuracy.copy()
    for run in np.ndindex(last.shape[:-2]):
        cluster, distribution = linear_sum_assignment(last[run], maximize=True)
        matched = cluster[np.argsort(distribution)]
        rest = np.setdiff1d(np.arange(last.shape[-2]), matched)
        found[run] = accuracy[run][:, [*matched, *rest]]
    return found
