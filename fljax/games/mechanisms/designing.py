"""``design``: searches the numbers of a mechanism, and judges what it finds on federations that it never saw."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.contributions import ErrorBars, error_bars
from fljax.core.names import unknown
from fljax.core.values import as_number, check_arguments, is_whole, parameters_of, takes_anything
from fljax.data import choose, stack
from fljax.engine import Plan
from fljax.games.mechanisms.judging import Objective, check_objective, objective_of
from fljax.games.mechanisms.playing import Game, Rule, of_plan, of_rule
from fljax.games.mechanisms.searching import SEARCHES, Around, Interval, Space, check_space
from fljax.games.mechanisms.steps import Asked, Candidate, Found, Mechanism, runs_of_search, searched, validated
from fljax.games.strategic.certificates import LEAST_SEEDS, certify
from fljax.games.strategic.gains import Certificate
from fljax.games.strategic.playing import Outside, check_deviators
from fljax.games.strategic.utilities import Utility, UtilityFunction
from fljax.protocol import Federation
from fljax.scenarios import Deviation, Strategy

DESIGNED = "designed"  # the label of the mechanism beside its baselines


class Baseline(NamedTuple):
    """A mechanism beside which the designed one is judged, tuned in the same way.

    Attributes:
      plan: of the mechanism.
      over: what is tuned, as for ``design``; empty: nothing.
      budget: runs of its search, for all tolerances.
    """

    plan: Plan
    over: Mapping[str, Interval | Around] = {}
    budget: int = 2_000


class Chosen(NamedTuple):
    """The candidate of one tolerance.

    Attributes:
      tolerance: the regret that it may have.
      arguments: its numbers by name.
      searched: on the federations of its last generation, by the lies that were played there.
      validated: on federations by which it was chosen among others.
      fresh: on federations that had no part in it.
      objective: ``[place]``, on each fresh federation.
      certificate: on the fresh federations, with an attack; None for a function.
    """

    tolerance: float
    arguments: dict[str, Float[np.ndarray, ...]]
    searched: Found
    validated: Found
    fresh: Found
    objective: Float[np.ndarray, " place"]
    certificate: Certificate | None = None


class Design(NamedTuple):
    """What a search found.

    Attributes:
      chosen: for each tolerance, by label: "designed", and the baselines.
      plans: with the arguments that are not searched; None for a function.
      runs: whole runs of search and validation.
    """

    chosen: dict[str, tuple[Chosen, ...]]
    plans: dict[str, Plan | None]
    runs: int

    def plan(self, tolerance: float, label: str = DESIGNED) -> Plan:
        """The plan of the candidate for a tolerance.

        Raises:
          ValueError: for a tolerance that was not asked, or a function.
        """
        plan = self.plans[label]
        for chosen in self.chosen[label]:
            if chosen.tolerance == tolerance and plan is not None:
                return plan._replace(arguments={**plan.arguments, **chosen.arguments})
        known = ", ".join(f"{chosen.tolerance:g}" for chosen in self.chosen[label])
        raise ValueError(f"expected a plan and one of its tolerances {known}, got {tolerance}")

    def price(self, tolerance: float, baseline: str) -> ErrorBars:
        """The fresh objective beyond that of a baseline, paired by federation, with its 95 % interval."""
        place = [chosen.tolerance for chosen in self.chosen[DESIGNED]].index(tolerance)
        return error_bars(self.chosen[DESIGNED][place].objective - self.chosen[baseline][place].objective)

    def __repr__(self) -> str:
        """A line for each tolerance and mechanism."""
        lines = [f"Design of {self.runs:,} runs"]
        for label, row in self.chosen.items():
            for chosen in row:
                fresh, ends = chosen.fresh, chosen.certificate
                told = "" if ends is None else f", {ends.verdict} ({ends.epsilon_low:.3g} to {ends.epsilon_high:.3g})"
                optimism = chosen.validated.objective - fresh.objective
                lines.append(
                    f"{label} at {chosen.tolerance:g}: objective {fresh.objective:.4g}, regret {fresh.regret:.3g} by "
                    f"{fresh.lie}{told}; {optimism:+.2g} at validation"
                )
        return "\n".join(lines)


def design(
    mechanism: Plan | Rule,
    federations: Callable[[int], Federation] | Federation | None = None,
    *,
    over: Mapping[str, Interval | Around],
    rounds: int = 1,
    clients: int | None = None,
    objective: Objective = "mean",
    tolerance: Sequence[float] = (0.01, 0.03, 0.06),
    worse_off: float = 0.1,
    penalty: float = 5.0,
    deviations: Mapping[str, Strategy | Deviation] | Sequence[str] | None = None,
    deviators: Sequence[int] | None = None,
    roles: bool = True,
    utility: Utility | UtilityFunction | None = None,
    outside: Outside = "standalone",
    search: Literal["cma", "random"] = "cma",
    budget: int = 20_000,
    population: int | None = None,
    pool: int = 40,
    resample: int = 5,
    validation: int = 10,
    fresh: int = 40,
    baselines: Mapping[str, Baseline] | None = None,
    candidates: int = 20,
    checkpoint: str | pathlib.Path | None = None,
    seed: int = 0,
    **of_runs: Any,
) -> Design:
    """The numbers of a mechanism with the best objective under which no lie gains more than a tolerance.

    For each tolerance a search maximises ``objective - penalty max(0, regret - tolerance) - max(0, worse -
    worse_off)`` with the share "worse" of clients that have less than outside. The regret is the largest mean gain of a
    client that lies alone. Every generation draws ``resample`` federations of the pool. It plays the 12 lies that
    gained most so far, and every fourth generation plays all. Candidates of all searches are judged on ``validation``
    federations, and the best for each tolerance with all lies. It is certified on ``fresh`` ones, which had no part in
    the search.

    Args:
      mechanism: a plan, or a function ``(numbers, profile [N], seed) -> payoffs [N]``: ``numbers`` are those searched,
        by name, and a profile has 0 for an honest client, i for one that plays the i-th deviation.
      federations: a function ``seed -> Federation``, for the seeds from 0, or a stack (``fljax.data.stack``). A
        function as mechanism has none.
      over: what is searched, by the name of the argument.
      rounds: of a run.
      clients: N, for a function as mechanism.
      objective: "mean" of honest payoffs, "participation", "worst_decile", "nash", or a function of the honest payoffs
        ``[place, N]``, as ``fljax.games.mechanisms.judging.objective_of`` says.
      tolerance: what lies may gain, each with a search of its own.
      worse_off: the share of clients that may have less than outside.
      penalty: of a unit of regret. A tolerance holds if it is above what a unit of regret adds to the objective.
      deviations: as for ``fljax.games.payoffs``; names for a function as mechanism.
      deviators: as for ``fljax.games.payoffs``.
      roles: whether a client is the same one in all federations; else gains are means over clients.
      utility: as for ``fljax.games.payoffs``.
      outside: as for ``fljax.games.payoffs``, for all federations; a function as mechanism has numbers or none.
      search: "cma" (CMA-ES) or "random".
      budget: runs of all searches and of validation.
      population: candidates of a generation; None: ``4 + 3 log(numbers)``, at least 8.
      pool: how many federations are searched.
      resample: how many of them a generation draws.
      validation: how many federations choose among candidates.
      fresh: how many federations judge.
      baselines: mechanisms to compare with, by label.
      candidates: strategies that the attacker of certificates tries.
      checkpoint: a folder of what was played; the same call goes on with it, to the same bits.
      seed: of the search.
      **of_runs: further arguments of ``fljax.runs``.

    Raises:
      ValueError: for an argument that is out of its range, a budget below one generation, or as
        ``fljax.games.payoffs``, before anything runs.

    Source: Conitzer and Sandholm, "Complexity of mechanism design" (UAI 2002), for mechanisms found by computation;
    Duetting et al., "Optimal auctions through deep learning" (ICML 2019), for regret as a constraint.
    """
    tolerances = tuple(map(float, tolerance))
    sizes = {"pool": pool, "resample": resample, "validation": validation, "fresh": fresh, "seed": seed}
    _check_numbers(tolerances, worse_off, penalty, search, budget=budget, candidates=candidates, **sizes)
    space, places, stacked = check_space(over), pool + validation + fresh, None
    same: dict[str, Any] = {"deviations": deviations, "utility": utility, "rounds": rounds, **of_runs}
    same |= {"checkpoint": None if checkpoint is None else pathlib.Path(checkpoint)}
    games: dict[str, tuple[Plan | None, Game, Space, int]] = {}
    if isinstance(mechanism, Plan):
        stacked = _stacked(federations, places)
        game = of_plan(mechanism, stacked, places, outside=outside, **same)
        for label, (plan, tuned, runs) in (baselines or {}).items():
            beside = of_plan(plan, stacked, places, outside=game.outside, **same)
            games[label] = plan, beside, check_space(tuned) if tuned else Space({}), runs
    else:
        for name, value in {"federations": federations, "baselines": baselines, "checkpoint": checkpoint}.items():
            if value is not None:
                raise ValueError(f"expected no {name} for a function as mechanism, got some")
        game = of_rule(mechanism, clients, deviations, outside, places)
    check_objective(objective, game.outside)
    if deviators is not None:
        check_deviators(deviators, game.clients)
    who = tuple(range(game.clients)) if deviators is None else tuple(map(int, deviators))
    asked = Asked(objective, tolerances, worse_off, penalty, roles, who, search, population, **sizes)
    games = {DESIGNED: (mechanism if isinstance(mechanism, Plan) else None, game, space, budget)} | games
    found = [Mechanism(label, *of_label, asked) for label, of_label in games.items()]
    for each in found:
        runs_of_search(each)
        _check_ends(each.plan, each.space)
    chosen, total = dict[str, tuple[Chosen, ...]](), 0
    for each in found:
        searches = [searched(each, place) for place in range(len(tolerances))]
        best, runs = validated(each, [candidate for kept, _ in searches for candidate in kept])
        total += runs + sum(runs for _, runs in searches)
        chosen[each.label] = tuple(
            _judged_fresh(each, stacked, *one, candidates=candidates, **same)
            for one in zip(tolerances, best, strict=True)
        )
    return Design(chosen, {each.label: each.plan for each in found}, total)


def _check_numbers(tolerance: Sequence[float], worse_off: float, penalty: float, search: str, **counts: int) -> None:
    """Raises a ValueError for a number that is out of its range."""
    if not tolerance or not all(0 <= value < np.inf for value in tolerance) or len(set(tolerance)) < len(tolerance):
        raise ValueError(f"expected different tolerances of at least 0, got {list(tolerance)}")
    if as_number(worse_off) is None or not 0 <= worse_off <= 1:
        raise ValueError(f"expected worse_off to be a share of clients, got {worse_off!r}")
    if as_number(penalty) is None or not 0 <= penalty < np.inf:
        raise ValueError(f"expected penalty to be a number of at least 0, got {penalty!r}")
    if search not in SEARCHES:
        raise ValueError(unknown("search", search, SEARCHES))
    least = {"seed": 0, "candidates": 0, "fresh": LEAST_SEEDS}
    for name, value in counts.items():
        if not is_whole(value) or value < least.get(name, 1):
            raise ValueError(f"expected {name} to be a whole number of at least {least.get(name, 1)}, got {value!r}")
    if counts["resample"] > counts["pool"]:
        raise ValueError(
            f"expected at most the {counts['pool']} federations of pool for resample, got {counts['resample']}"
        )


def _check_ends(plan: Plan | None, space: Space) -> None:
    """Raises a ValueError if the builder does not have an argument, or refuses an end of its interval."""
    if plan is None:
        return
    for row in np.nan_to_num(space.bounds.T, posinf=0, neginf=0):
        numbers = {name: values[0] for name, values in space.arguments(row[None]).items()}
        if not takes_anything(plan.build) and (more := numbers.keys() - parameters_of(plan.build)):
            raise ValueError(unknown("argument", min(more), parameters_of(plan.build)))
        floats = {name: value if value.ndim else float(value) for name, value in numbers.items()}
        check_arguments(plan.build, {**plan.arguments, **floats}, {})


def _stacked(federations: Callable[[int], Federation] | Federation | None, places: int) -> Federation:
    """All federations as one stack; raises a ValueError unless there are so many."""
    if not isinstance(federations, Federation) and callable(federations):
        return stack([federations(seed) for seed in range(places)])
    shape = np.shape(federations.clients.id) if isinstance(federations, Federation) else ()
    if not isinstance(federations, Federation) or len(shape) != 2 or shape[0] != places:
        got = f"{shape[0]} of them" if len(shape) == 2 else type(federations).__name__
        raise ValueError(
            f"expected a function seed -> Federation, or a stack of {places} federations (pool, validation and fresh), "
            f"got {got}"
        )
    return federations


def _judged_fresh(
    mechanism: Mechanism, stacked: Federation | None, tolerance: float, candidate: Candidate, **options: Any
) -> Chosen:
    """The candidate on federations that it never saw, with a certificate if it is a plan."""
    game, asked, point = mechanism.game, mechanism.asked, candidate.point[None]
    arguments, at = {name: row[0] for name, row in mechanism.space.arguments(point).items()}, asked.unseen
    outside = None if game.outside is None else game.outside[at]
    certificate = None
    if mechanism.plan is None or stacked is None:
        profiles = mechanism.cells.profiles(game.clients)
        payoffs = game.play(mechanism.space.arguments(point), profiles, at, "")
    else:
        plan = mechanism.plan._replace(arguments={**mechanism.plan.arguments, **arguments})
        same = {"seeds": at.tolist(), "deviators": asked.deviators, "outside": outside, "controls": False}
        if options["checkpoint"] is not None:
            same["checkpoint"] = options["checkpoint"] / mechanism.label / f"fresh-{tolerance:g}"
        certificate = certify(plan, choose(stacked, at), tolerance=tolerance, max_runs=10**9, **{**options, **same})
        gains = certificate.gains
        payoffs = np.concatenate([gains.honest[:, None], gains.payoffs], axis=1).transpose(1, 0, 2)[None]
    fresh = mechanism.found(mechanism.judged(payoffs, mechanism.cells, at), 0)
    alone = [None] * len(at) if outside is None else outside[:, None]
    by_place = [objective_of(asked.objective, u[None], o) for u, o in zip(payoffs[0, 0], alone, strict=True)]
    return Chosen(tolerance, arguments, candidate.searched, candidate.validated, fresh, np.array(by_place), certificate)
