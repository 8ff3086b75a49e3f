"""How good a mechanism is for clients, and how much a lie gains: the numbers that a search compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.core import users
from fljax.core.names import unknown
from fljax.games.mechanisms.playing import Game, Payoffs

Objective = Literal["mean", "participation", "worst_decile", "nash"] | Callable[[Any], Any]
OBJECTIVES = ("mean", "participation", "worst_decile", "nash")
_OF_OUTSIDE = ("participation", "nash")
_LEAST = 1e-3  # of a surplus whose logarithm counts


class Cells(NamedTuple):
    """Unilateral deviations. A group has the cells whose gains are pooled: one cell where clients have roles."""

    client: Int[np.ndarray, " cell"]
    strategy: Int[np.ndarray, " cell"]  # from 1
    group: Int[np.ndarray, " cell"]

    @classmethod
    def of(cls, game: Game, deviators: Int[np.ndarray, " deviator"], roles: bool) -> Cells:
        """All cells of a game."""
        client = np.repeat(deviators, len(game.deviations))
        strategy = np.tile(np.arange(1, len(game.deviations) + 1), len(deviators))
        return cls(client, strategy, np.arange(len(client)) if roles else strategy - 1)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return int(self.group.max(initial=-1)) + 1

    def of_groups(self, groups: Int[np.ndarray, " some"]) -> Cells:
        """The cells of some groups, which keep their numbers."""
        keep = np.isin(self.group, groups)
        return Cells(self.client[keep], self.strategy[keep], self.group[keep])

    def profiles(self, clients: int) -> Int[np.ndarray, "profile client"]:
        """The honest profile, and that of each cell."""
        rows = np.zeros((1 + len(self.client), clients), int)
        rows[1 + np.arange(len(self.client)), self.client] = self.strategy
        return rows


class Judged(NamedTuple):
    """C candidates on some federations.

    Attributes:
      objective: ``[C]``, the mean over federations.
      regret: ``[C]``, the largest mean gain of a group of cells; 0 if no lie was played.
      error: ``[C]``, the standard error over federations of this gain; NaN of one federation.
      group: ``[C]``, the group that has it; -1 if no lie was played.
      worse_off: ``[C]``, the share of clients with less than outside; NaN if that is not known.
      gains: ``[C, group]``, mean gains; minus infinity of groups that were not played.
      honest: ``[C, place, N]``, payoffs.
    """

    objective: Float[np.ndarray, " C"]
    regret: Float[np.ndarray, " C"]
    error: Float[np.ndarray, " C"]
    group: Int[np.ndarray, " C"]
    worse_off: Float[np.ndarray, " C"]
    gains: Float[np.ndarray, "C group"]
    honest: Float[np.ndarray, "C place N"]


def check_objective(objective: Objective, clients: int, *, outside: bool) -> None:
    """Raises a ValueError for an objective that is none, or that needs to know what clients have ``outside``."""
    if isinstance(objective, str):
        if objective not in OBJECTIVES:
            raise ValueError(unknown("objective", objective, OBJECTIVES))
        if objective in _OF_OUTSIDE and not outside:
            raise ValueError(f"expected payoffs outside for the objective {objective!r}, got outside=None")
    elif not callable(objective):
        raise ValueError(f"expected an objective by name or a function of payoffs [N], got {objective!r}")
    objectives_of(objective, np.zeros((1, clients)), np.zeros((1, clients)))


def objectives_of(
    objective: Objective, honest: Float[np.ndarray, "place N"], outside: Float[np.ndarray, "place N"] | None
) -> Float[np.ndarray, " place"]:
    """The objective on each federation: the mean, the share above outside, the mean of the least tenth, or Nash's.

    "nash" is the mean of ``log(max(u_i - outside_i, 0.001))``.
    """
    if not isinstance(objective, str):
        found = [users.call("the objective", "(payoffs [N])", objective, payoffs) for payoffs in honest]
        numbers = [users.numbers("the objective", objective, "one number", one, (), np.asarray) for one in found]
        return np.array(numbers, float)
    if objective == "participation":
        return (honest > outside).mean(axis=1)
    if objective == "nash":
        return np.log(np.maximum(honest - np.asarray(outside), _LEAST)).mean(axis=1)
    fewest = max(1, honest.shape[1] // 10) if objective == "worst_decile" else honest.shape[1]
    return np.sort(honest, axis=1)[:, :fewest].mean(axis=1)


def judged(payoffs: Payoffs, cells: Cells, groups: int, objective: Objective, outside: Any) -> Judged:
    """Judges payoffs of the honest profile and of ``cells``. A run that diverged has the smallest payoff of all.

    A candidate whose honest runs all diverge has the objective minus infinity.
    """
    finite = np.isfinite(payoffs)
    lost = ~finite[:, 0].any(axis=(1, 2))
    smallest = payoffs[finite].min() if finite.any() else 0.0
    if outside is not None:
        smallest = min(smallest, float(np.min(outside)))
    payoffs = np.where(finite, payoffs, smallest)
    honest, count = payoffs[:, 0], len(payoffs)
    own = np.take_along_axis(payoffs[:, 1:], cells.client[None, :, None, None], axis=3)[..., 0]
    gains = own - honest[:, :, cells.client].transpose(0, 2, 1)  # [C, cell, place]
    by_group = np.full((count, groups, gains.shape[2]), -np.inf)
    for group in np.unique(cells.group):
        by_group[:, group] = gains[:, cells.group == group].mean(axis=1)
    mean = by_group.mean(axis=2)
    place = mean.argmax(axis=1) if groups and len(cells.client) else np.full(count, -1)
    best = by_group[np.arange(count), place] if len(cells.client) else np.zeros((count, gains.shape[2]))
    many = best.shape[1]
    error = best.std(axis=1, ddof=1) / np.sqrt(many) if many > 1 else np.full(count, np.nan)
    worse = np.full(count, np.nan) if outside is None else (honest < outside).mean(axis=(1, 2))
    found = np.array([objectives_of(objective, each, outside).mean() for each in honest])
    return Judged(np.where(lost, -np.inf, found), best.mean(axis=1), error, place, worse, mean, honest)


def scores(judged: Judged, tolerance: float, worse_off: float, penalty: float) -> Float[np.ndarray, " C"]:
    """``objective - penalty max(0, regret - tolerance) - max(0, worse off - worse_off)``."""
    worse = np.nan_to_num(np.maximum(judged.worse_off - worse_off, 0))
    return judged.objective - penalty * np.maximum(judged.regret - tolerance, 0) - worse
