"""How well contributions agree with the truth, and how stable they are: Kendall's tau-b, with ties, and Spearman's rho.

A row that is constant, or has one client only, has no ranks: the result is NaN, never 0.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.contributions.coalitions import Numbers
from fljax.core.labels import plain

# A sum below this share of the sizes of its terms is rounding, as of values that add up to 0 by their equation.
_ROUNDING = 1e-5


class Agreement(NamedTuple):
    """Estimates beside the truth; each is ``[...]`` unless said otherwise.

    Attributes:
      kendall: tau-b over clients.
      spearman: rho over clients, with mean ranks of ties.
      share_error: ``||estimate / sum estimate - truth / sum truth||_1``, NaN of less than two clients, or
        where a sum is not positive, or is rounding alone.
      deviation: ``[..., N]``, ``estimate sum truth / sum estimate - truth``, NaN as before. Its mean over seeds is the
        bias after the total is matched, and its root mean square the error.
      best_found: whether the client with the largest estimate is the one with the largest true value, 0 or 1. With
        ties, the probability for one of the largest, drawn at random. NaN for a constant row.
      worst_found: the same for the smallest.
      compared: number of clients that were compared; a client with a NaN on either side is left out.
    """

    kendall: Float[np.ndarray, "*batch"]
    spearman: Float[np.ndarray, "*batch"]
    share_error: Float[np.ndarray, "*batch"]
    deviation: Float[np.ndarray, "*batch N"]
    best_found: Float[np.ndarray, "*batch"]
    worst_found: Float[np.ndarray, "*batch"]
    compared: Int[np.ndarray, "*batch"]


def agreement(estimate: Numbers, truth: Numbers) -> Agreement:
    """Compares contributions with true ones, client by client; leading axes (seeds) are kept.

    Args:
      estimate: ``[..., N]``, larger for larger contributions.
      truth: ``[..., N]``, values from retraining with the same seeds.

    Returns:
      ``Agreement``.

    Raises:
      ValueError: if the shapes do not fit, or there is no client.

    Source: Kendall, "The treatment of ties in ranking problems" (1945); Spearman, "The proof and measurement of
    association between two things" (1904).
    """
    first, second = np.asarray(plain(estimate), float), np.asarray(plain(truth), float)
    if not first.ndim or not second.ndim or first.shape[-1] != second.shape[-1] or not first.shape[-1]:
        raise ValueError(
            f"expected estimate and truth of the same clients, got shapes {first.shape} and {second.shape}"
        )
    first, second = np.broadcast_arrays(first, second)
    clients = first.shape[-1]
    rows = [_row(a, b) for a, b in zip(first.reshape(-1, clients), second.reshape(-1, clients), strict=True)]
    lead = first.shape[:-1]
    found = [np.array([row[place] for row in rows]) for place in range(len(Agreement._fields))]
    found[3] = found[3].reshape(-1, clients)
    return Agreement(*(each.reshape((*lead, *each.shape[1:])) for each in found))


def stability(values: Numbers) -> float:
    """The mean of tau-b over all pairs of rows: how well seeds, or aggregators, agree on the order of the clients.

    Args:
      values: ``[R, N]``.

    Returns:
      NaN with fewer than two rows, and if a pair has no tau-b.

    Raises:
      ValueError: if ``values`` has not two axes.
    """
    table = np.asarray(plain(values), float)
    if table.ndim != 2:
        raise ValueError(f"expected one row of clients for each seed, got shape {table.shape}")
    taus = [_row(a, b)[0] for a, b in itertools.combinations(table, 2)]
    return float(np.mean(taus)) if taus else np.nan


def _row(estimate: np.ndarray, truth: np.ndarray) -> tuple[float, float, float, np.ndarray, float, float, int]:
    """The numbers of one row, in the order of ``Agreement``."""
    from scipy.stats import kendalltau, rankdata  # late: it takes a quarter of a second

    known = ~(np.isnan(estimate) | np.isnan(truth))
    a, b = estimate[known], truth[known]
    deviation = np.full(len(known), np.nan)
    share_error = np.nan
    if len(a) > 1 and _has_total(a) and _has_total(b):
        share_error = float(np.abs(a / a.sum() - b / b.sum()).sum())
        deviation[known] = a * (b.sum() / a.sum()) - b
    if len(a) < 2 or np.ptp(rankdata(a)) == 0 or np.ptp(rankdata(b)) == 0:
        return np.nan, np.nan, share_error, deviation, np.nan, np.nan, len(a)
    found: Any = kendalltau(a, b, variant="b")
    tau = float(found.statistic)
    rho = float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
    best, worst = _found(a, b), _found(-a, -b)
    return tau, rho, share_error, deviation, best, worst, len(a)


def _has_total(values: np.ndarray) -> bool:
    """Whether the sum is finite and positive, beyond rounding."""
    total = values.sum()
    return bool(np.isfinite(total) and total > _ROUNDING * np.abs(values).sum())


def _found(estimate: np.ndarray, truth: np.ndarray) -> float:
    """The probability that one of the largest estimates, drawn at random, has the largest true value."""
    return float(np.mean((truth == truth.max())[estimate == estimate.max()]))
