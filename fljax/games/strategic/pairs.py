"""Whether two clients gain by deviating together, where a mechanism may be truthful for each client alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.contributions import Bounds, simultaneous_bounds
from fljax.games.strategic.gains import (
    Confirmed,
    check_tolerance,
    confirm,
    replace_diverged,
    verdict_of_all,
    verdicts_of,
)
from fljax.games.strategic.payoff_tables import PayoffTable, rounding_of


class PairCertificate(NamedTuple):
    """Whether some pair gains more than a tolerance, of K pairs and deviations with R seeds.

    Attributes:
      pairs: ``[K, 2]``, who deviates.
      deviations: the K names of the strategies that both play.
      gains: ``[R, K]``, the mean gain of the two.
      least: ``[R, K]``, the smaller gain of the two.
      losses: ``[R, K]``, the mean loss of another client; 0 where there is none.
      bounds: of the means of ``gains``, for all cells at once.
      bounds_of_least: of the means of ``least``, for all cells at once.
      verdict: of all cells, as in a ``Certificate``, for pairs that share their gains.
      verdict_of_least: the same for pairs that cannot.
      worst: the place of the cell with the largest mean of ``gains``.
      confirmed: the worst cell of the first half of the seeds, with its gain in the other half.
      tolerance: gains up to it do not count.
      seeds: the R seeds.
    """

    pairs: Int[np.ndarray, "cell 2"]
    deviations: tuple[str, ...]
    gains: Float[np.ndarray, "seed cell"]
    least: Float[np.ndarray, "seed cell"]
    losses: Float[np.ndarray, "seed cell"]
    bounds: Bounds
    bounds_of_least: Bounds
    verdict: str
    verdict_of_least: str
    worst: int
    confirmed: Confirmed
    tolerance: float
    seeds: tuple[int, ...]


def pair_certificate(
    table: PayoffTable,
    *,
    tolerance: float,
    confidence: float = 0.95,
    method: str = "bonferroni",
    worst: float | None = None,
) -> PairCertificate:
    """Whether two clients gain more than ``tolerance`` by the same deviation, while the others are honest.

    ``g_{k,r} = (g_i + g_j) / 2`` for the pair (i, j) of cell k and seed r, with ``g_i = u_i(k; r) - u_i(honest; r)``,
    and ``min(g_i, g_j)`` for pairs that cannot share.

    Args:
      table: of ``payoffs(shape="pairs")``, or another one with the honest profile; at least 5 seeds. Profiles are
        ignored unless exactly two clients play one strategy.
      tolerance: gains up to it do not count, at least 0, in units of payoffs.
      confidence: of the bounds.
      method: "bonferroni" or "max_t".
      worst: the utility of a diverged run; None: the smallest payoff of the table.

    Raises:
      ValueError: if the table has no such profile, for fewer than 5 seeds, or if ``tolerance`` is negative.

    Source: Laffont and Martimort, "Collusion under asymmetric information" (1997), for side payments in a coalition
    that lies together.
    """
    check_tolerance(tolerance)
    complete = replace_diverged(table, worst)
    deviating = table.choices != 0
    alike = table.choices.max(axis=1) * deviating.sum(axis=1) == table.choices.sum(axis=1)
    rows = np.flatnonzero((deviating.sum(axis=1) == 2) & alike)
    if not len(rows):
        raise ValueError("expected profiles in which two clients play one strategy, got a table without them")
    pairs = np.argsort(~deviating[rows], axis=1, kind="stable")[:, :2]
    changes = complete.payoffs[:, rows] - complete.payoffs[:, [complete.honest]]
    of_pair = np.take_along_axis(changes, pairs[None], axis=2)
    gains, least = of_pair.mean(axis=2), of_pair.min(axis=2)
    losses = (of_pair.sum(axis=2) - changes.sum(axis=2)) / max(changes.shape[2] - 2, 1)
    bounds, bounds_of_least = (simultaneous_bounds(values, confidence, method=method) for values in (gains, least))
    rounding = rounding_of(complete.payoffs)
    shared, separate = (verdict_of_all(verdicts_of(each, tolerance, rounding)) for each in (bounds, bounds_of_least))
    return PairCertificate(
        pairs,
        tuple(table.strategies[choice] for choice in table.choices[rows].max(axis=1)),
        gains,
        least,
        losses,
        bounds,
        bounds_of_least,
        shared,
        separate,
        int(bounds.mean.argmax()),
        confirm(gains, confidence),
        float(tolerance),
        table.seeds,
    )
