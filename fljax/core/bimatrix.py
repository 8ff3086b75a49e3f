"""Equilibria of two payoff matrices, by the vertices of the polytopes of best responses."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Bool, Float

_ROUNDING, _SINGULAR = 1e-12, 1e13


def extreme_equilibria(
    first: Float[np.ndarray, "K L"], second: Float[np.ndarray, "K L"], *, precision: float = 0.0
) -> tuple[Float[np.ndarray, "E K"], Float[np.ndarray, "E L"], Bool[np.ndarray, " E"]]:
    """All equilibria (x, y) of payoffs A, B that are no mixture of others, and whether each is degenerate."""
    # x is a vertex of ``{x >= 0, B'x <= 1}``, scaled to the sum 1, and y one of ``{y >= 0, A y <= 1}``, with payoffs in
    # [1, 2], as moving and scaling change no equilibrium. Each strategy is not played, or a best response. Degenerate:
    # more best responses to a mixture than it has strategies; without one of these, the number of equilibria is odd.
    # ``precision`` is relative to the largest payoff of a player; smaller differences are ties. Source: von Stengel,
    # "Equilibrium computation for two-player games in strategic and extensive form", Algorithmic Game Theory (2007),
    # chapter 3.
    rows, not_rows, columns_best = _vertices(second.T, precision)
    columns, not_columns, rows_best = _vertices(first, precision)
    missing = (~not_rows).astype(float) @ (~rows_best).T + (~columns_best).astype(float) @ (~not_columns).T
    one, other = np.nonzero(missing == 0)
    labels = np.concatenate([not_rows[one], columns_best[one], not_columns[other], rows_best[other]], axis=1)
    number = labels.sum(axis=1)
    # Who has all labels of another one, and more, is the same point but for rounding.
    double = ((labels.astype(int) @ ~labels.T == 0) & (number[:, None] < number)).any(axis=1)
    return rows[one][~double], columns[other][~double], number[~double] > sum(first.shape)


def _vertices(payoffs: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of payoffs ``[responses, strategies]``: mixtures ``[V, strategies]``, what is not played, and best responses."""
    (responses, strategies), spread = payoffs.shape, np.ptp(payoffs)
    rounding = max(_ROUNDING, precision * float(np.abs(payoffs).max() / spread)) if spread > 0 else 1.0
    if rounding < 1:
        unit = 1 + (payoffs - payoffs.min()) / spread
    else:  # all are the same
        unit, rounding = np.ones(payoffs.shape), _ROUNDING
    found: list[np.ndarray] = []
    for size in range(1, min(payoffs.shape) + 1):
        played = np.array(list(itertools.combinations(range(strategies), size)))
        best = np.array(list(itertools.combinations(range(responses), size)))
        square = unit[best[:, None, :, None], played[None, :, None, :]]
        regular = np.linalg.cond(square) < _SINGULAR
        weights = np.linalg.solve(square[regular], np.ones((size, 1)))[..., 0]
        play = np.zeros((len(weights), strategies))
        np.put_along_axis(play, played[np.nonzero(regular)[1]], weights, axis=1)
        found.append(play)
    play = np.concatenate(found)
    slack = 1 - play @ unit.T
    feasible = (play >= -rounding).all(axis=1) & (slack >= -rounding).all(axis=1)
    labels, place = np.unique(np.concatenate([play, slack], axis=1)[feasible] <= rounding, axis=0, return_index=True)
    unplayed, play = labels[:, :strategies], np.where(labels[:, :strategies], 0, play[feasible][place])
    return play / play.sum(axis=1, keepdims=True), unplayed, labels[:, strategies:]
