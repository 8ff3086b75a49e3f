"""The search of one mechanism: its generations, and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.engine import Plan
from fljax.games.mechanisms.judging import Cells, Judged, Objective, judged, objectives_of, scores
from fljax.games.mechanisms.playing import Game, Payoffs, Places
from fljax.games.mechanisms.searching import Kind, Points, Space

_ACTIVE, _POOLED, _ALL_EVERY = 4, 12, 8  # cells that are played, with roles and without; all are in some generations
_MOVED, _SMOOTH = 1e-3, 1e-3  # of payoffs and points, for slopes; and regret within which the penalty sets in
_KEPT, _FINALISTS = 6, 2  # candidates of each search that validation plays honestly, and with all lies


class Found(NamedTuple):
    """A candidate on some federations, as in ``Judged``; ``lie`` is what gains most, and who tells it."""

    objective: float
    regret: float
    error: float
    worse_off: float
    lie: str


class Candidate(NamedTuple):
    """A point that a search took, how its own generation judged it, and validation."""

    point: Float[np.ndarray, " number"]
    searched: Found
    validated: Found


class Asked(NamedTuple):
    """What is the same for a mechanism and its baselines, as for ``design``."""

    objective: Objective
    tolerance: tuple[float, ...]
    worse_off: float
    penalty: float
    roles: bool
    deviators: tuple[int, ...]
    search: Kind
    population: int | None
    pool: int
    resample: int
    validation: int
    fresh: int
    seed: int

    @property
    def validated(self) -> Places:
        """The federations by which a candidate is chosen."""
        return np.arange(self.pool, self.pool + self.validation)

    @property
    def unseen(self) -> Places:
        """The fresh ones."""
        return np.arange(self.pool + self.validation, self.pool + self.validation + self.fresh)


class Mechanism(NamedTuple):
    """What is designed, or a baseline of it.

    Attributes:
      label: its name.
      name: that of its folder.
      plan: None: a function.
      game: how it is played.
      space: what is searched; empty: nothing.
      before: the numbers that are not searched for, by name.
      budget: runs for all tolerances.
      asked: of all mechanisms.
    """

    label: str
    name: str
    plan: Plan | None
    game: Game
    space: Space
    before: Mapping[str, Any]
    budget: int
    asked: Asked

    @property
    def cells(self) -> Cells:
        """All lies."""
        return Cells.of(self.game, np.array(self.asked.deviators), self.asked.roles)

    @property
    def population(self) -> int:
        """Candidates of a generation."""
        usual = max(8, 4 + int(3 * np.log(max(len(self.space.bounds), 1))))
        return usual * self.asked.search.times if self.asked.population is None else self.asked.population

    def judge(self, points: Points, lies: Cells, places: Places, name: str) -> Judged:
        """Candidates, by the payoffs of this name."""
        profiles = lies.profiles(self.game.clients)
        payoffs = self.game.play(self.space.arguments(points), profiles, places, f"{self.name}/{name}")
        return self.judged(payoffs, lies, places)

    def judged(self, payoffs: Payoffs, lies: Cells, places: Places) -> Judged:
        """Candidates, by payoffs on these federations."""
        outside = None if self.game.outside is None else self.game.outside[places]
        return judged(payoffs, lies, self.cells.groups, self.asked.objective, outside)

    def slopes(self, points: Points, judged: Judged, places: Places, tolerance: float) -> Points:
        """Derivatives of ``objective - penalty softplus(regret - tolerance)`` in points, the first that were judged."""
        judged = Judged(*(leaf[: len(points)] for leaf in judged))
        asked, cells, each, many = self.asked, self.cells, np.eye(self.game.clients), len(places)
        outside = None if self.game.outside is None else self.game.outside[places]
        moves = _MOVED * np.concatenate([each, -each])
        ends = [[objectives_of(asked.objective, one + move, outside) for one in judged.honest] for move in moves]
        slope = np.subtract(*np.split(np.array(ends), 2)).transpose(1, 2, 0) / (2 * _MOVED * many)
        lies = np.stack([np.flatnonzero(cells.group == group) for group in judged.group])
        own = each[cells.client[lies]][:, :, None]  # [candidate, lie, 1, client]
        pressed = asked.penalty * (0.5 + 0.5 * np.tanh((judged.regret - tolerance) / (2 * _SMOOTH)))
        gained = np.repeat(pressed[:, None, None, None] * own / (own.shape[1] * many), many, axis=2)
        weights = np.concatenate([(slope + gained.sum(axis=1))[:, None], -gained], axis=1)
        profiles = np.concatenate([0 * own[:, :1], own * cells.strategy[lies][..., None, None]], axis=1)[:, :, 0]
        found = self.game.slopes(self.space.arguments(points), profiles.astype(int), places, weights)
        # Each argument depends on its own numbers alone.
        low, high = (self.space.arguments(points + move) for move in (-_MOVED, _MOVED))
        parts = [(found[name] * (high[name] - low[name])).reshape(len(points), -1) for name in low]
        return np.nan_to_num(np.concatenate(parts, axis=1) / (2 * _MOVED))

    def found(self, judged: Judged, place: int) -> Found:
        """One of several candidates."""
        cells, group, lie = self.cells, int(judged.group[place]), ""
        if group >= 0:
            members = np.flatnonzero(cells.group == group)
            lie = list(self.game.deviations)[cells.strategy[members[0]] - 1]
            lie += f" of client {cells.client[members[0]]}" if self.asked.roles else ""
        numbers = {name: float(getattr(judged, name)[place]) for name in Found._fields[:-1]}
        return Found(**numbers, lie=lie)


def runs_of_search(mechanism: Mechanism) -> int:
    """Runs of the search for one tolerance.

    Raises:
      ValueError: if the budget does not suffice for two generations of each tolerance, and for validation.
    """
    if not mechanism.space.over:
        return 0
    asked, lies = mechanism.asked, len(mechanism.cells.client)
    if asked.search.slopes and (mechanism.game.slopes is None or asked.objective == "participation"):
        raise ValueError(
            'expected an objective and payoffs with a gradient for search="gradient", such as "mean" and '
            'Utility(metric="test_loss"), got "participation", accuracies or a function as mechanism'
        )
    judging = len(asked.tolerance) * asked.validation * (_KEPT + _FINALISTS * (1 + lies))
    least = judging + 2 * len(asked.tolerance) * runs_of_generation(mechanism, lies)
    if mechanism.budget < least:
        raise ValueError(
            f"expected a budget of at least {least:,} runs for {mechanism.label}, for two generations of each of "
            f"{len(asked.tolerance)} tolerances and validation, got {mechanism.budget:,}; fewer deviations or "
            "tolerances need fewer"
        )
    return (mechanism.budget - judging) // len(asked.tolerance)


def runs_of_generation(mechanism: Mechanism, lies: int, kept: bool = True) -> int:
    """Runs of a generation in which so many lies are played; of slopes those of honesty and of the worst group."""
    search, cells = mechanism.asked.search, mechanism.cells
    first = (mechanism.population + kept) * (search.staged > 1)
    slopes = mechanism.population * (1 + len(cells.client) // cells.groups) if search.slopes else 0
    return mechanism.asked.resample * (first + (kept + _tried(mechanism)) * (1 + lies) + slopes)


def _tried(mechanism: Mechanism) -> int:
    """How many points of a generation are played with lies: the best ones, and the first, which was the best before."""
    return min(mechanism.population, 1 + -(-mechanism.population // mechanism.asked.search.staged))


def searched(mechanism: Mechanism, place: int) -> tuple[list[Candidate], int]:
    """The candidates of the search for the tolerance at ``place``, and its runs."""
    unknown = Found(np.nan, np.nan, np.nan, np.nan, "")
    if not mechanism.space.over:
        return [Candidate(np.zeros(0), unknown, unknown)] * (place == 0), 0
    asked, cells, budget = mechanism.asked, mechanism.cells, runs_of_search(mechanism)
    keys = np.random.SeedSequence((asked.seed, place)).generate_state(2)
    generator = np.random.default_rng(keys[0])
    search = asked.search.of(mechanism.space, int(keys[1]), mechanism.population)
    proposal, kept, spent, generation = next(search), list[Candidate](), 0, 0
    groups = _ACTIVE if asked.roles else max(1, _POOLED // len(asked.deviators))
    gained = np.full(cells.groups, np.inf)  # by each lie in the generation that played it last
    while True:
        places, name = np.sort(generator.choice(asked.pool, asked.resample, replace=False)), f"{place}-{generation}"
        active = cells.of_groups(np.argsort(-gained, kind="stable")[:groups]) if generation % _ALL_EVERY else cells
        if spent + (cost := runs_of_generation(mechanism, len(active.client))) > budget:
            return kept, spent
        ends = spent + cost + runs_of_generation(mechanism, len(cells.client)) > budget
        best = proposal.best if ends or spent >= len(kept) * budget / _KEPT else None
        points = proposal.points if best is None else np.concatenate([proposal.points, best[None]])
        tried, rest = np.arange(len(points)), np.arange(0)
        if asked.search.staged > 1:
            first = mechanism.judge(points, cells.of_groups(rest), places, f"{name}-honest").objective
            order = 1 + np.argsort(-first[1 : mechanism.population], kind="stable")
            chosen, rest = np.split(order, [_tried(mechanism) - 1])
            tried = np.concatenate([[0], np.sort(chosen), np.arange(mechanism.population, len(points))])
        found = mechanism.judge(points[tried], active, places, name)
        values = np.full(len(points), -np.inf)
        values[tried] = scores(found, asked.tolerance[place], asked.worse_off, asked.penalty)
        values[rest] = values[tried].min(initial=0, where=np.isfinite(values[tried])) - 1 - np.arange(len(rest))
        lies = np.isfinite(found.gains[0])
        gained[lies] = found.gains[:, lies].mean(axis=0)
        if best is not None and np.isfinite(values[-1]):
            kept = [*kept[: _KEPT - 1], Candidate(points[-1], mechanism.found(found, -1), unknown)]
        spent += runs_of_generation(mechanism, len(active.client), best is not None)
        points = points[: mechanism.population]
        slopes = mechanism.slopes(points, found, places, asked.tolerance[place]) if asked.search.slopes else None
        proposal, generation = search.send((values[: len(points)], slopes)), generation + 1


def validated(mechanism: Mechanism, kept: Sequence[Candidate]) -> tuple[list[Candidate], int]:
    """The best of the candidates for each tolerance by federations that no search had, and the runs of this."""
    asked, cells = mechanism.asked, mechanism.cells
    if not kept:
        raise ValueError("expected candidates of which some run stays finite, got a search that found none")
    points, finalists = np.stack([entry.point for entry in kept]), list[int]()
    honest = mechanism.judge(points, cells.of_groups(np.arange(0)), asked.validated, "validation-honest")
    regret = np.nan_to_num([entry.searched.regret for entry in kept])
    for tolerance in asked.tolerance:
        values = scores(honest._replace(regret=regret), tolerance, asked.worse_off, asked.penalty)
        finalists += np.argsort(-values, kind="stable")[:_FINALISTS].tolist()
    finalists = sorted(set(finalists))
    found, best = mechanism.judge(points[finalists], cells, asked.validated, "validation"), list[Candidate]()
    for tolerance in asked.tolerance:
        place = int(scores(found, tolerance, asked.worse_off, asked.penalty).argmax())
        best.append(kept[finalists[place]]._replace(validated=mechanism.found(found, place)))
    return best, asked.validation * (len(kept) + len(finalists) * (1 + len(cells.client)))
