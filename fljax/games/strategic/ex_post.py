"""Gains ex post: of a client that knows the draw of data, initial weights and batches, and not only their mean.

A mechanism may be truthful in the mean over seeds and not with single ones. Quantiles over seeds say how often and by
how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.games.strategic.gains import Certificate, with_rounding

LEVELS = (0.5, 0.9, 1.0)


class ExPost(NamedTuple):
    """Quantiles over R seeds of the gains of K cells.

    Attributes:
      levels: the Q levels.
      quantiles: ``[Q, K]``, of each cell.
      largest: ``[Q]``, of the largest gain of a cell with each seed, ``max_k g_{k,r}``.
      above: ``[K]``, the share of seeds in which the cell gains more than the tolerance.
      violated: the share of seeds in which some cell does.
      violated_high: an upper bound of this share among all seeds that could be drawn (Clopper and Pearson).
    """

    levels: tuple[float, ...]
    quantiles: Float[np.ndarray, "level cell"]
    largest: Float[np.ndarray, " level"]
    above: Float[np.ndarray, " cell"]
    violated: float
    violated_high: float


def ex_post(certificate: Certificate, levels: Sequence[float] = LEVELS) -> ExPost:
    """``quantile_r g_{k,r}`` of each cell k, and ``quantile_r max_k g_{k,r}``, over the seeds r of a certificate.

    A quantile is a gain that occurred: the smallest one with at least this share of seeds at or below it; 1.0 is the
    largest. The upper bound of the share of violated seeds holds with the confidence of the certificate.

    Args:
      certificate: of any mechanism.
      levels: between 0 and 1.

    Raises:
      ValueError: if a level is not between 0 and 1, or there is none.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial"
    (1934), for the bound.
    """
    chosen = np.asarray(levels, float)
    if chosen.ndim != 1 or not chosen.size or not ((chosen >= 0) & (chosen <= 1)).all():
        raise ValueError(f"expected levels between 0 and 1, got {levels!r}")
    gains = certificate.gains.gains
    is_above = gains > with_rounding(certificate.tolerance, certificate.gains)
    seeds, violated = len(gains), int(is_above.any(axis=1).sum())
    return ExPost(
        tuple(chosen.tolist()),
        np.quantile(gains, chosen, axis=0, method="inverted_cdf"),
        np.quantile(gains.max(axis=1), chosen, method="inverted_cdf"),
        is_above.mean(axis=0),
        violated / seeds,
        share_at_most(violated, seeds, certificate.confidence),
    )


def share_at_most(count: int, seeds: int, confidence: float) -> float:
    """The largest p with which at most ``count`` of ``seeds`` draws are hits with probability ``1 - confidence``."""
    if count == seeds:
        return 1.0
    from scipy.stats import beta  # late: it takes a quarter of a second

    return float(beta.ppf(confidence, count + 1, seeds - count))
