"""The costs for all clients if each looks after itself: prices, by the welfare ``W = sum_i u_i`` if it is positive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fljax.core.labels import plain
from fljax.games.strategic.gains import Certificate, name_of_cell, replace_diverged
from fljax.games.strategic.payoff_tables import PayoffTable


class Prices(NamedTuple):
    """Prices of a table.

    Attributes:
      anarchy: ``max W / min_{equilibria} W``; NaN without equilibria.
      stability: ``max W / max_{equilibria} W``; NaN without equilibria.
      gaming: ``(W(honest) - W(gaming)) / W(honest)``; NaN if the table has no honest profile.
      gaming_of: what "gaming" is: "the worst equilibrium", or the worst cell of a certificate; "" if there is neither.
    """

    anarchy: float
    stability: float
    gaming: float
    gaming_of: str


def welfare(table: PayoffTable) -> Float[np.ndarray, "seed profile"]:
    """``[R, P]``: ``sum_i u_i`` of each run; a diverged run counts as the worst utility (``replace_diverged``)."""
    return replace_diverged(table).payoffs.sum(axis=2)


def price_of_anarchy(total: Float[np.ndarray, " profile"], equilibria: Bool[np.ndarray, " profile"]) -> float:
    """``max W / min_{equilibria} W``: how much better than the worst equilibrium the best profile is.

    Args:
      total: ``[P]``, the welfare W of each profile.
      equilibria: ``[P]``, which profiles are equilibria.

    Returns:
      At least 1; NaN without an equilibrium, if some W is negative, or if that of the equilibrium is 0.

    Source: Koutsoupias and Papadimitriou, "Worst-case equilibria" (STACS 1999).
    """
    return _ratio(plain(total), total[plain(equilibria)].min(initial=np.inf))


def price_of_stability(total: Float[np.ndarray, " profile"], equilibria: Bool[np.ndarray, " profile"]) -> float:
    """``max W / max_{equilibria} W``: how much better than the best equilibrium the best profile is.

    Args:
      total: ``[P]``, the welfare W of each profile.
      equilibria: ``[P]``, which profiles are equilibria.

    Returns:
      At least 1; NaN without an equilibrium, if some W is negative, or if that of the equilibrium is 0.

    Source: Anshelevich et al., "The price of stability for network design with fair cost allocation" (FOCS 2004).
    """
    return _ratio(plain(total), total[plain(equilibria)].max(initial=-np.inf))


def price_of_gaming(honest: float, gaming: float) -> float:
    """``(W(honest) - W(gaming)) / W(honest)``: the share of welfare that strategic clients cost; NaN if W(honest) <= 0.

    It is negative if gaming helps all clients together.
    """
    return (honest - gaming) / honest if honest > 0 else float("nan")


def _ratio(total: np.ndarray, welfare_of_equilibrium: float) -> float:
    """The largest welfare over that of an equilibrium, which is infinite if there is none."""
    known = np.isfinite(welfare_of_equilibrium) and welfare_of_equilibrium > 0 and total.min() >= 0
    return float(total.max() / welfare_of_equilibrium) if known else float("nan")


def prices_of(
    table: PayoffTable, equilibria: Bool[np.ndarray, " profile"], *, certificate: Certificate | None = None
) -> Prices:
    """The prices of the mean welfare over seeds.

    Args:
      table: of payoffs.
      equilibria: ``[P]``, which profiles are equilibria, for example ``pure_equilibria(table).possible``.
      certificate: "gaming" is its worst cell, where no profile is an equilibrium.

    Raises:
      ValueError: as ``replace_diverged``, or if ``equilibria`` has another length.
    """
    total = welfare(table).mean(axis=0)
    if equilibria.shape != total.shape:
        raise ValueError(f"expected equilibria by profile, {len(total)} of them, got shape {equilibria.shape}")
    rows = np.flatnonzero((table.choices == 0).all(axis=1))
    honest, gaming, words = float(total[rows[0]]) if len(rows) else float("nan"), float("nan"), ""
    if equilibria.any():
        gaming, words = float(total[equilibria].min()), "the worst equilibrium"
    elif certificate is not None:
        gains, cell = certificate.gains, certificate.worst
        honest, change = float(gains.honest.sum(axis=1).mean()), float(gains.welfare[:, cell].mean())
        gaming, words = honest + change, name_of_cell(gains, cell)
    return Prices(
        price_of_anarchy(total, equilibria),
        price_of_stability(total, equilibria),
        price_of_gaming(honest, gaming),
        words,
    )
