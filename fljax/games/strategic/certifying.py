"""The certificate of a mechanism: every client deviates in turn, one attacks, and controls show that lies are seen.

The draws of the search depend only on its seed. It changes fields of tried deviations, so the algorithm reads them, and
the runs have a program of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fljax.contributions.over_seeds import LEAST_SEEDS
from fljax.core.names import unknown
from fljax.core.signatures import is_whole
from fljax.engine import Plan, plan_of
from fljax.engine.rounds.keys import Seeds, seeds_of
from fljax.games.costs import estimate, in_words
from fljax.games.strategic.controls import FEE, fee_for_honesty, known_mechanisms
from fljax.games.strategic.deviations import check_deviations, functions_of, messages_of, numbers_of, usual_deviations
from fljax.games.strategic.gains import (
    Attack,
    Certificate,
    Gains,
    certificate,
    check_tolerance,
    concluded,
    confirm,
    unilateral_gains,
)
from fljax.games.strategic.playing import Outside, Stages, checked_outside, kind_of, payoffs, runs_outside
from fljax.games.strategic.splitting import check_names, check_splits, split_payoffs, with_splits
from fljax.games.strategic.utilities import Utility, UtilityFunction
from fljax.games.tables import Cost
from fljax.games.values import algorithm_of
from fljax.protocol import Algorithm, Federation
from fljax.scenarios import ByReport, Deviation, Strategy
from fljax.scenarios.strategic import HONEST
from fljax.training import Local

METHODS = ("bonferroni", "max_t")
_HONEST = numbers_of(HONEST)
_SHARES = ("effort", "flip")
_LEVELS = ("noise", "noise_decay")
_WITHOUT_EFFECT = {"noise_decay"}  # alone
_FLIPPED = 0.15  # how often an update is flipped


def certify(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    tolerance: float,
    seeds: Seeds = 20,
    deviations: Mapping[str, Strategy | Deviation] | None = None,
    deviators: Sequence[int] | None = None,
    utility: Utility | UtilityFunction | None = None,
    confidence: float = 0.95,
    method: str = "bonferroni",
    outside: Outside = "standalone",
    standalone: Local | None = None,
    identities: int = 1,
    candidates: int = 50,
    controls: bool = True,
    max_runs: int = 20_000,
    **of_runs: Any,
) -> Certificate:
    """Whether a client gains more than ``tolerance`` by lying to a mechanism, training less or sending another update.

    Every client plays each deviation in turn while the others are honest. Then the client that gains most with the
    first half of the seeds tries ``candidates`` other strategies, and the best of them is reported with the other half.

    Args:
      plan: an ``Algorithm``, or a ``Plan`` whose floats change without recompiling.
      federation: of N clients, shared by all seeds or one per seed (``fljax.data.stack``).
      rounds: of every run.
      tolerance: gains up to it do not count, at least 0, in units of the utility.
      seeds: integers that key all randomness of a run; 20 means the seeds 0 to 19. At least 5.
      deviations: strategies of one client, or functions, by name, as for ``payoffs``; None: ``usual_deviations`` in
        what the algorithm reads. The attack varies numbers of strategies.
      deviators: ids of the clients that deviate; None: each in turn.
      utility: the payoff of a client, as for ``payoffs``.
      confidence: of the bounds, for all cells at once.
      method: "bonferroni", or "max_t", which takes the correlation of cells into account.
      outside: payoffs of clients that do not join, for individual rationality, as for ``payoffs``; None: they are not
        known.
      standalone: as for ``payoffs``.
      identities: as how many each deviator also joins, as for ``split_payoffs``; 1: no client splits.
      candidates: strategies that the attacker tries; 0: there is no attack.
      controls: whether mechanisms with known gains are certified beside it.
      max_runs: more runs are refused.
      **of_runs: further arguments of ``fljax.runs``, as for ``coalitions``.

    Returns:
      The certificate. Read ``rationality`` first, then ``controls``: where one has not passed, the verdict says little.

    Raises:
      ValueError: for fewer than 5 seeds, or a number that is out of range, before anything runs; or as ``payoffs``.

    Source: Balcan, Sandholm and Vitercik, "Estimating approximate incentive compatibility" (EC 2019); Duetting et al.,
    "Optimal auctions through deep learning" (ICML 2019), for regret.
    """
    chosen, numbers = plan_of(plan), seeds_of(seeds)
    check_tolerance(tolerance)
    _check(len(numbers), confidence, method, candidates)
    if not is_whole(identities) or identities < 1:
        raise ValueError(f"expected identities to be a whole number of at least 1, got {identities!r}")
    messages = messages_of(chosen, federation)
    tried = usual_deviations(messages) if deviations is None else deviations
    check_deviations(tried, messages, algorithm_of(chosen))
    check_names(tried, identities)
    if identities > 1:
        check_splits(chosen, federation, identities)
    deviating = federation.clients.id.shape[-1] if deviators is None else len(deviators)
    candidates = candidates if len(functions_of(tried)) < len(tried) else 0  # functions have no numbers to search among
    clients = federation.clients.id.shape[-1]
    outside = checked_outside(outside, clients, len(numbers), Utility() if utility is None else utility)
    sizes = {"rounds": rounds, "seeds": len(numbers), "cells": len(tried) * deviating, "candidates": candidates}
    cost = cost_of(chosen, federation, outside=outside, splits=deviating * (identities > 1), **sizes)
    check_number(cost, max_runs)
    stages = Stages(of_runs, cost.runs)
    same: dict[str, Any] = {"rounds": rounds, "seeds": numbers, "utility": utility, "max_runs": max_runs}
    first = stages.arguments("deviations", 0)
    with stages.counted(0):
        alone = {"outside": outside, "standalone": standalone}
        table = payoffs(chosen, federation, deviations=tried, deviators=deviators, **alone, **same, **first)
    played_alone = unilateral_gains(table)
    before = len(numbers) * (len(table.choices) + runs_outside(outside, clients))
    if identities > 1:
        with stages.counted(before):
            others = {"deviators": deviators, "outside": None, **stages.arguments("splits", before)}
            splits = split_payoffs(chosen, federation, identities=identities, **same, **others)
        before += len(numbers) * len(splits.choices)
        table = with_splits(table, splits)
    result = certificate(table, tolerance=tolerance, confidence=confidence, method=method)
    attack = None
    if candidates:
        place = confirm(played_alone.gains, confidence).cell  # a split has no numbers to search around
        strategies = candidate_strategies(tried, played_alone.deviations[place], candidates)
        attacker = [int(played_alone.clients[place])]
        same["deviations"] = strategies
        second = stages.arguments("attack", before)
        with stages.counted(before):
            played = payoffs(chosen, federation, deviators=attacker, outside=None, **same, **second)
        # A run that diverged counts the same in both.
        attack = best_attack(unilateral_gains(played, worst=table.smallest), strategies, confidence)
    return judged(result, tolerance, attack=attack, known=controls)


def cost_of(
    plan: Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: int,
    cells: int,
    outside: Outside = "standalone",
    candidates: int = 0,
    splits: int = 0,
) -> Cost:
    """The cost of a certificate, without its controls, whose programs are small; nothing is computed."""
    clients = federation.clients.id.shape[-1]
    together = 1 + cells + (1 + candidates if candidates else 0) + (1 + splits if splits else 0)
    alone = runs_outside(outside, clients)
    lonely, together = (alone, together) if kind_of(outside) == "mechanism" else (0, together + alone)
    members = np.concatenate([np.ones((together, clients), bool), np.eye(clients, dtype=bool)[:lonely]])
    return estimate(plan, federation, members, rounds, seeds)


def check_number(cost: Cost, max_runs: int) -> None:
    """Raises a ValueError if there are more runs than ``max_runs``."""
    if cost.runs > max_runs:
        raise ValueError(
            f"expected at most {max_runs:,} runs, got {in_words(cost)}; max_runs allows more, and fewer seeds, "
            "deviations or candidates need fewer"
        )


def judged(result: Certificate, tolerance: float, *, attack: Attack | None = None, known: bool = False) -> Certificate:
    """The certificate at another tolerance, with ``attack`` or its own; nothing of the mechanism runs again."""
    # With ``known``, mechanisms with known gains are certified now. Otherwise the mechanisms of ``result`` stay.
    check_tolerance(tolerance)
    controls = known_mechanisms() if known else tuple(entry for entry in result.controls if entry.name != FEE)
    if controls:
        controls += (fee_for_honesty(result.gains, tolerance, result.confidence, result.method),)
    again = concluded(
        result.gains,
        result.bounds,
        tolerance=tolerance,
        confidence=result.confidence,
        method=result.method,
        attack=result.attack if attack is None else attack,
        controls=controls,
    )
    return again._replace(left_out=result.left_out)


def best_attack(gains: Gains, strategies: Mapping[str, Strategy], confidence: float) -> Attack:
    """The strategy that gains most with the first half of the seeds, and its gain with the other half."""
    chosen = confirm(gains.gains, confidence)
    strategy = differing(numbers_of(strategies[gains.deviations[chosen.cell]]))
    searched = float(gains.gains[: len(gains.seeds) // 2, chosen.cell].mean())
    client = int(gains.clients[chosen.cell])
    return Attack(client, tuple(strategy.items()), len(strategies), searched, chosen.mean, chosen.low, chosen.high)


def _check(seeds: int, confidence: float, method: str, candidates: int) -> None:
    """Raises a ValueError for a setting with which there would be no certificate at the end of all runs."""
    if seeds < LEAST_SEEDS:
        raise ValueError(f"expected at least {LEAST_SEEDS} seeds for a certificate, got {seeds}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    if not is_whole(candidates) or candidates < 0:
        raise ValueError(f"expected candidates to be a whole number of at least 0, got {candidates!r}")


def candidate_strategies(
    deviations: Mapping[str, Strategy | Deviation], start: str, count: int, seed: int = 0
) -> dict[str, Strategy]:
    """Strategies by name, none honest: half of them around ``start``, the others drawn among all fields."""
    # Around it, each number that is not honest is ``v 2^z + z' / 4`` with normal z and z', and other fields deviate now
    # and then. Elsewhere about half of the fields deviate: shares are uniform, the coefficient of the update is
    # ``2^U(-2, 3)`` and sometimes negative, factors of reports are ``10^U(-1.5, 1.5)``, and shifts ``U(-1, 2)``.
    # Source: ours; random search as in Bergstra and Bengio, "Random search for hyper-parameter optimization" (2012).
    drawn = np.random.default_rng(seed)
    fields = [name for name in _HONEST if any(name in numbers_of(strategy) for strategy in deviations.values())]
    origin = numbers_of(deviations[start])
    candidates: list[dict[str, float]] = []
    while len(candidates) < count:
        near = 2 * len(candidates) < count
        numbers = _around(origin, fields, drawn) if near else _anywhere(fields, drawn)
        if differing(numbers).keys() - _WITHOUT_EFFECT:
            candidates.append(numbers)
    return {f"candidate {place}": strategy_of(numbers) for place, numbers in enumerate(candidates)}


def differing(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers by dotted name that are not honest."""
    return {field: value for field, value in numbers.items() if value != _HONEST[field]}


def strategy_of(numbers: Mapping[str, float]) -> Strategy:
    """The strategy of numbers by dotted name, the inverse of ``numbers_of``."""

    def by_report(kind: str) -> ByReport:
        parts = {field.partition(".")[2]: value for field, value in numbers.items() if field.startswith(f"{kind}.")}
        return ByReport(**parts)

    rest = {field: value for field, value in numbers.items() if "." not in field}
    return Strategy(**rest, factor=by_report("factor"), shift=by_report("shift"))


def _around(origin: Mapping[str, float], fields: list[str], drawn: np.random.Generator) -> dict[str, float]:
    numbers = {field: origin.get(field, _HONEST[field]) for field in fields}
    further = 1 / (1 + len(fields))
    for field in fields:
        z, shift, other = drawn.normal(), drawn.normal(), drawn.uniform()
        if numbers[field] != _HONEST[field]:
            numbers[field] = _within(field, numbers[field] * 2**z + shift / 4)
        elif other < further:
            numbers[field] = _draw(field, drawn)
    return numbers


def _anywhere(fields: list[str], drawn: np.random.Generator) -> dict[str, float]:
    return {field: _draw(field, drawn) if drawn.uniform() < 0.5 else _HONEST[field] for field in fields}


def _draw(field: str, drawn: np.random.Generator) -> float:
    kind = field.partition(".")[0]
    if kind in _SHARES:
        return float(drawn.uniform())
    if kind == "factor":
        return float(10 ** drawn.uniform(-1.5, 1.5))
    if kind == "own":
        return float(2 ** drawn.uniform(-2, 3) * (-1 if drawn.uniform() < _FLIPPED else 1))
    return _within(field, float(drawn.uniform(-1, 2)))  # shifts, and terms that are added to the update


def _within(field: str, value: float) -> float:
    """The number in the range that the field allows."""
    if field in _SHARES:
        return float(np.clip(value, 0, 1))
    return abs(float(value)) if field in _LEVELS else float(value)
