"""``design``: searches the numbers of a mechanism, and judges what it finds on federations that it never saw."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from fljax.contributions import ErrorBars, error_bars
from fljax.core.names import unknown
from fljax.core.values import argument_of, as_number, check_arguments, is_whole, parameters_of, takes_anything
from fljax.data import choose, stack
from fljax.engine import Plan
from fljax.engine.checkpoints import Checkpoint
from fljax.games.mechanisms.judging import Objective, check_objective, objectives_of
from fljax.games.mechanisms.playing import ROWS, Game, Rule, of_places, of_plan, of_rule
from fljax.games.mechanisms.searching import SEARCHES, Around, Interval, Space, check_space
from fljax.games.mechanisms.steps import Asked, Candidate, Found, Mechanism, runs_of_search, searched, validated
from fljax.games.strategic.certificates import LEAST_SEEDS, certify, judged
from fljax.games.strategic.gains import Certificate
from fljax.games.strategic.playing import Outside, check_deviators, check_shared, checked_outside, outside_options
from fljax.games.strategic.utilities import Utility, UtilityFunction
from fljax.protocol import Federation
from fljax.scenarios import Deviation, Strategy
from fljax.training import Local

DESIGNED = "designed"  # the label of the mechanism beside its baselines


class Baseline(NamedTuple):
    """A mechanism beside which the designed one is judged, tuned in the same way.

    Attributes:
      plan: of the mechanism.
      over: what is tuned, as for ``design``; empty: nothing.
      budget: runs of its search, for all tolerances; None: as many as ``design`` has.
    """

    plan: Plan
    over: Mapping[str, Interval | Around] = {}
    budget: int | None = None


class Chosen(NamedTuple):
    """The candidate of one tolerance.

    Attributes:
      tolerance: the regret that it may have.
      arguments: its numbers by name.
      searched: on the federations of its last generation, by the lies that were played there.
      validated: on federations by which it was chosen among others.
      fresh: on federations that had no part in it.
      objective: ``[place]``, on each fresh federation.
      worth: of each argument: the fresh objective beyond that with this argument as it was before the search, paired by
        federation, with its 95 % interval. What lies gain then is another matter.
      before: the arguments before the search: those of the plan or its builder, or else where the search begins.
      certificate: on the fresh federations, with an attack; None for a function.
    """

    tolerance: float
    arguments: dict[str, Float[np.ndarray, ...]]
    searched: Found
    validated: Found
    fresh: Found
    objective: Float[np.ndarray, " place"]
    worth: dict[str, ErrorBars]
    before: dict[str, Float[np.ndarray, ...]]
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
          ValueError: for another label or tolerance than those that were asked, or a function.
        """
        chosen, plan = self._chosen(tolerance, label), self.plans[label]
        if plan is None:
            raise ValueError("expected a plan as mechanism, got a function, whose numbers are in chosen")
        return plan._replace(arguments={**plan.arguments, **chosen.arguments})

    def price(self, tolerance: float, baseline: str) -> ErrorBars:
        """The fresh objective beyond that of a baseline, paired by federation, with its 95 % interval.

        Raises:
          ValueError: for another label or tolerance than those that were asked.
        """
        own, other = (self._chosen(tolerance, label) for label in (DESIGNED, baseline))
        return _beyond(own.objective, other.objective)

    def _chosen(self, tolerance: float, label: str) -> Chosen:
        if label not in self.chosen:
            raise ValueError(unknown("mechanism", label, self.chosen))
        by_tolerance = {chosen.tolerance: chosen for chosen in self.chosen[label]}
        if tolerance not in by_tolerance:
            known = ", ".join(f"{each:g}" for each in by_tolerance)
            raise ValueError(f"expected one of the tolerances {known}, got {tolerance!r}")
        return by_tolerance[tolerance]

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
    rounds: int | None = None,
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
    standalone: Local | None = None,
    search: Literal["cma", "random", "gradient"] = "cma",
    budget: int = 50_000,
    population: int | None = None,
    pool: int = 40,
    resample: int = 5,
    validation: int = 10,
    fresh: int = 40,
    baselines: Mapping[str, Baseline] | None = None,
    candidates: int = 20,
    checkpoint: str | pathlib.Path | Checkpoint | None = None,
    seed: int = 0,
    **of_runs: Any,
) -> Design:
    """The numbers of a mechanism with the best objective under which no lie gains more than a tolerance.

    For each tolerance a search maximises ``objective - penalty max(0, regret - tolerance) - max(0, worse -
    worse_off)`` with the share "worse" of clients that have less than outside. The regret is the largest mean gain of a
    client that lies alone. Every generation draws ``resample`` federations of the pool. It plays the four lies (without
    roles up to twelve) that gained most so far, and every eighth generation plays all. Candidates of all searches are
    judged on ``validation`` federations, and the best for each tolerance with all lies. It is certified on ``fresh``
    ones, which had no part in the search.

    Args:
      mechanism: a plan, or a function ``(numbers, profile [N], seed) -> payoffs [N]``: ``numbers`` are those searched,
        by name, and a profile has 0 for an honest client, i for one that plays the i-th deviation.
      federations: a function ``seed -> Federation``, for the seeds from 0, or a stack (``fljax.data.stack``). A
        function as mechanism has none.
      over: what is searched, by the name of the argument.
      rounds: of a run; a function as mechanism has none.
      clients: N, for a function as mechanism.
      objective: "mean" of honest payoffs, "participation", "worst_decile" or "nash", as
        ``fljax.games.mechanisms.judging.objectives_of`` says, or a function of the honest payoffs ``[N]`` on one
        federation. It is averaged over federations.
      tolerance: what lies may gain, each with a search of its own.
      worse_off: the share of clients that may have less than outside.
      penalty: of a unit of regret. A tolerance holds if it is above what a unit of regret adds to the objective.
      deviations: as for ``fljax.games.payoffs``; names for a function as mechanism.
      deviators: as for ``fljax.games.payoffs``.
      roles: whether a client is the same one in all federations; else regrets are of gains that are means over
        clients. Certificates bound the gains of each client in both cases.
      utility: as for ``fljax.games.payoffs``.
      outside: as for ``fljax.games.payoffs``, for all federations, but not "mechanism". A function as mechanism has
        numbers, or else none.
      standalone: as for ``fljax.games.payoffs``.
      search: "cma" (CMA-ES), "random", or "gradient" (Adam from several starts), for many numbers and payoffs with a
        gradient, such as ``Utility(metric="test_loss")``. Slopes do not see ``worse_off``.
      budget: runs of all searches and of validation. The gradient of a run counts as one more; checkpoints do not have
        it, so it is computed again.
      population: candidates of a generation, at least 4; None: ``4 + 3 log(numbers)``, at least 8, and six times as
        many for "random", of which the sixth with the best honest runs is played with lies.
      pool: how many federations are searched.
      resample: how many of them a generation draws.
      validation: how many federations choose among candidates.
      fresh: how many federations judge.
      baselines: mechanisms to compare with, by label. They do not play deviations that they never read.
      candidates: strategies that the attacker of certificates tries.
      checkpoint: a folder of what was played; the same call goes on with it, to the same bits.
      seed: of the search.
      **of_runs: further arguments of ``fljax.runs``.

    Raises:
      ValueError: for an argument that is out of its range, a budget below two generations, or as
        ``fljax.games.payoffs``, before anything runs.

    Source: Conitzer and Sandholm, "Complexity of mechanism design" (UAI 2002), for mechanisms found by computation;
    Duetting et al., "Optimal auctions through deep learning" (ICML 2019), for regret as a constraint.
    """
    if "seeds" in of_runs or not (isinstance(mechanism, Plan) or callable(mechanism)):
        raise ValueError(
            "expected a fljax.Plan or a function as mechanism, and federations as seeds, got something else"
        )
    sizes = {"pool": pool, "resample": resample, "validation": validation, "fresh": fresh, "seed": seed}
    _check_numbers(tolerance, worse_off, penalty, search, population, budget=budget, candidates=candidates, **sizes)
    settings: dict[str, Any] = {"rounds": rounds, "utility": utility, **of_runs}
    places, folder = pool + validation + fresh, Checkpoint.of(checkpoint)
    entries = {DESIGNED: Baseline(mechanism, over, budget)} if isinstance(mechanism, Plan) else {}
    if isinstance(mechanism, Plan):
        entries, settings["max_runs"] = entries | _checked_baselines(baselines), 10**9  # the budget bounds them
        before = {label: _before(entry) for label, entry in entries.items()}
        stacked = _stacked(federations, places, roles)
        games = _games_of_plans(entries, stacked, deviations, folder, settings)
        known = _checked_outside(outside, stacked, settings)
    else:
        unused = {"federations": federations, "baselines": baselines, "checkpoint": checkpoint, **settings}
        if some := [name for name, value in unused.items() if value is not None]:
            raise ValueError(f"expected no {some[0]} for a function as mechanism, got some")
        games, stacked, before = {DESIGNED: of_rule(mechanism, clients, deviations)}, None, {}
        given = None if isinstance(outside, str) else outside
        known = checked_outside(given, games[DESIGNED].clients, places, Utility())
    count = games[DESIGNED].clients
    check_objective(objective, count, outside=known is not None)
    if deviators is not None:
        check_deviators(deviators, count)
    who = tuple(range(count)) if deviators is None else tuple(map(int, deviators))
    tolerances = tuple(map(float, tolerance))
    asked = Asked(objective, tolerances, worse_off, penalty, roles, who, SEARCHES[search], population, **sizes)
    found = list[Mechanism]()
    for place, (label, game) in enumerate(games.items()):
        plan, tuned, runs = entries.get(label, Baseline(None, over))  # pyright: ignore[reportArgumentType]
        space, runs = check_space(tuned) if tuned else Space({}), budget if runs is None else runs
        found.append(Mechanism(label, f"{place}", plan, game, space, before.get(label, {}), runs, asked))
        runs_of_search(found[-1])
    if stacked is not None:
        own = {**settings, "utility": utility or Utility(), "checkpoint": folder and folder.below("outside")}
        first = next(iter(entries.values())).plan
        known = outside_options(known, standalone, first, stacked, seeds=range(places), **own)
    chosen, total = dict[str, tuple[Chosen, ...]](), 0
    for each in reversed(found):  # a baseline that fails does so before the long search
        with _about(each.label):
            each = each._replace(game=each.game._replace(outside=known))
            searches = [searched(each, place) for place in range(len(tolerances))]
            best, runs = validated(each, [candidate for kept, _ in searches for candidate in kept])
            total += runs + sum(runs for _, runs in searches)
            chosen[each.label] = _judged_fresh(each, stacked, best, candidates, folder, settings)
    return Design(dict(reversed(chosen.items())), {each.label: each.plan for each in found}, total)


def _check_numbers(
    tolerance: Any, worse_off: float, penalty: float, search: str, population: int | None, **counts: int
) -> None:
    """Raises a ValueError for a number that is out of its range."""
    numbers = list(tolerance) if isinstance(tolerance, Sequence | np.ndarray) else []
    fits = all(as_number(value) is not None and 0 <= value < np.inf for value in numbers)
    if not numbers or not fits or len({f"{value:g}" for value in numbers}) < len(numbers):
        raise ValueError(f"expected different tolerances of at least 0, got {tolerance!r}")
    if as_number(worse_off) is None or not 0 <= worse_off <= 1:
        raise ValueError(f"expected worse_off to be a share of clients, got {worse_off!r}")
    if as_number(penalty) is None or not 0 <= penalty < np.inf:
        raise ValueError(f"expected penalty to be a number of at least 0, got {penalty!r}")
    if search not in SEARCHES:
        raise ValueError(unknown("kind of search", search, SEARCHES))
    least = {"seed": 0, "candidates": 0, "fresh": LEAST_SEEDS, "population": 4}
    counts |= {} if population is None else {"population": population}
    for name, value in counts.items():
        if not is_whole(value) or value < least.get(name, 1):
            raise ValueError(f"expected {name} to be a whole number of at least {least.get(name, 1)}, got {value!r}")
    if counts["resample"] > counts["pool"]:
        raise ValueError(
            f"expected at most the {counts['pool']} federations of pool for resample, got {counts['resample']}"
        )


def _checked_baselines(baselines: Mapping[str, Baseline] | None) -> dict[str, Baseline]:
    """Raises a ValueError for a label that is taken, or anything but a ``Baseline``."""
    for label, baseline in (baselines or {}).items():
        is_plan = isinstance(baseline, Baseline) and isinstance(baseline.plan, Plan)
        if label == DESIGNED or not is_plan or (baseline.budget is not None and not is_whole(baseline.budget)):
            raise ValueError(
                f"expected a fljax.games.Baseline of a plan, with a label other than {DESIGNED!r}, got {label!r}: "
                f"{baseline!r:.80}"
            )
    return dict(baselines or {})


@contextlib.contextmanager
def _about(label: str) -> Iterator[None]:
    """Errors of a baseline begin with its label."""
    try:
        yield
    except ValueError as error:
        raise error if label == DESIGNED else ValueError(f"{label}: {error}") from error


def _games_of_plans(
    entries: dict[str, Baseline], stacked: Federation, deviations: Any, folder: Checkpoint | None, settings: Any
) -> dict[str, Game]:
    """The games by label. Plans in ``entries`` get the arguments that are searched, from the start of their space."""
    if not is_whole(settings["rounds"]) or settings["rounds"] < 1:
        raise ValueError(f"expected rounds to be a whole number of at least 1, got {settings['rounds']!r}")
    games = dict[str, Game]()
    for label, baseline in entries.items():
        with _about(label):
            space = check_space(baseline.over) if baseline.over or label == DESIGNED else Space({})
            plan = baseline.plan
            for row in [*np.nan_to_num(space.bounds.T, posinf=0, neginf=0), space.start]:
                numbers = {name: values[0] for name, values in space.arguments(row[None]).items()}
                floats = {name: value if value.ndim else float(value) for name, value in numbers.items()}
                _check_names(floats, plan)
                plan = plan._replace(arguments={**plan.arguments, **floats})
                check_arguments(plan.build, plan.arguments, {})
            entries[label] = baseline._replace(plan=plan)
            beside, rows = label != DESIGNED, {len(leaf) for leaf in jax.tree.leaves(plan.by_seed)}
            if rows - {len(stacked.clients.id)}:
                raise ValueError(f"expected arguments by seed of all {len(stacked.clients.id)} federations, got {rows}")
            games[label] = of_plan(plan, stacked, deviations, beside=beside, checkpoint=folder, **settings)
    return games


def _check_names(numbers: Mapping[str, Any], plan: Plan) -> None:
    """Raises a ValueError for arguments that the builder does not have, or that games have, or that are by seed."""
    for name in numbers:
        if name in plan.by_seed:
            raise ValueError(f"expected arguments that are not by seed to search, got {name}")
        if name in ("played", "chosen") or not (takes_anything(plan.build) or name in parameters_of(plan.build)):
            raise ValueError(unknown("argument", name, set(parameters_of(plan.build)) - {"played", "chosen"}))


def _checked_outside(outside: Outside, stacked: Federation, settings: Mapping[str, Any]) -> Outside:
    """What is outside; raises a ValueError for what mechanisms do not share."""
    seeds, clients = np.shape(stacked.clients.id)
    known = checked_outside(outside, clients, seeds, settings["utility"] or Utility())
    check_shared(known, None, {})
    return known


def _stacked(federations: Any, places: int, roles: bool) -> Federation:
    """All federations as one stack; raises a ValueError unless there are so many, or if roles differ by name."""
    if not isinstance(federations, Federation) and callable(federations):
        call: Any = federations
        made: list[Federation] = [call(seed) for seed in range(places)]
        names = list(dict.fromkeys(str(list(one.names.clients or ())) for one in made))
        if roles and len(names) > 1:
            raise ValueError(
                f"expected the same clients in all federations for roles=True, got {names[0]:.60} and {names[1]:.60}"
            )
        return stack(made)
    shape = np.shape(federations.clients.id) if isinstance(federations, Federation) else ()
    if not isinstance(federations, Federation) or len(shape) != 2 or shape[0] != places:
        got = f"{shape[0]} of them" if len(shape) == 2 else type(federations).__name__
        raise ValueError(
            f"expected a function seed -> Federation, or a stack of {places} federations (pool, validation and fresh), "
            f"got {got}"
        )
    return federations


def _judged_fresh(
    mechanism: Mechanism,
    stacked: Federation | None,
    best: Sequence[Candidate],
    candidates: int,
    folder: Checkpoint | None,
    settings: Mapping[str, Any],
) -> tuple[Chosen, ...]:
    """The candidates on federations that they never saw, with certificates if they are of a plan."""
    game, asked, cells, at = mechanism.game, mechanism.asked, mechanism.cells, mechanism.asked.unseen
    outside, certified, found = None if game.outside is None else game.outside[at], dict[bytes, Any](), list[Chosen]()
    for tolerance, candidate in zip(asked.tolerance, best, strict=True):
        point, name = candidate.point[None], f"{mechanism.name}/fresh-{tolerance:g}"
        certificate, arguments = certified.get(point.tobytes()), mechanism.space.arguments(point)
        own = {name: values[0] for name, values in arguments.items()}
        payoffs = game.play(arguments, cells.profiles(game.clients)[:1], at, f"{name}-honest")
        honest_alone = stacked is None or not game.deviations or not np.isfinite(payoffs).all()
        if mechanism.plan is None or stacked is None or honest_alone:
            payoffs = game.play(arguments, cells.profiles(game.clients), at, name)
        else:
            if certificate is None:
                certificate = certify(
                    of_places(mechanism.plan, at)._replace(arguments={**mechanism.plan.arguments, **own}),
                    choose(stacked, at),
                    tolerance=tolerance,
                    seeds=at.tolist(),
                    deviations=game.deviations,  # pyright: ignore[reportArgumentType] - of a plan
                    deviators=asked.deviators,
                    outside=outside,
                    candidates=candidates,
                    controls=False,
                    **{"block": ROWS, **settings, "utility": game.utility, "checkpoint": folder and folder.below(name)},
                )
            certified[point.tobytes()] = certificate = judged(certificate, tolerance)
            gains = certificate.gains
            payoffs = np.concatenate([gains.honest[:, None], gains.payoffs], axis=1).transpose(1, 0, 2)[None]
        fresh = mechanism.judged(payoffs, cells, at)
        by_place = objectives_of(asked.objective, np.nan_to_num(payoffs[0, 0], nan=-np.inf), outside)
        before = _numbers_before(mechanism)
        worth = _worth(mechanism, own, before, by_place, f"fresh-{tolerance:g}-worth")
        parts = candidate.searched, candidate.validated, mechanism.found(fresh, 0)
        found.append(Chosen(tolerance, own, *parts, by_place, worth, before, certificate))
    return tuple(found)


def _before(baseline: Baseline) -> dict[str, Any]:
    """The arguments that are searched, of the plan or as its builder has them; None: there is none."""
    plan = baseline.plan
    return {name: argument_of(plan.build, plan.arguments, name, None) for name in baseline.over}


def _numbers_before(mechanism: Mechanism) -> dict[str, Any]:
    """The arguments before the search."""
    found = dict[str, Any]()
    for name, first in mechanism.space.arguments(mechanism.space.start[None]).items():
        given = np.asarray(mechanism.before.get(name))  # of an object, if there is none
        fits = given.shape == first.shape[1:] and given.dtype.kind in "iuf"
        found[name] = np.asarray(given if fits else first[0], np.float32)
    return found


def _worth(
    mechanism: Mechanism, own: Mapping[str, Any], before: Mapping[str, Any], best: Any, name: str
) -> dict[str, ErrorBars]:
    """What each argument adds to the objective ``best`` on fresh federations, beside what it was before."""
    asked, game = mechanism.asked, mechanism.game
    if not own:
        return {}
    rows = [{**own, argument: before[argument]} for argument in own]
    candidates = {argument: np.stack([row[argument] for row in rows]) for argument in own}
    outside = None if game.outside is None else game.outside[asked.unseen]
    honest = game.play(candidates, np.zeros((1, game.clients), int), asked.unseen, f"{mechanism.name}/{name}")[:, 0]
    others = [objectives_of(asked.objective, np.nan_to_num(each, nan=-np.inf), outside) for each in honest]
    return {argument: _beyond(best, other) for argument, other in zip(own, others, strict=True)}


def _beyond(best: Float[np.ndarray, " place"], other: Float[np.ndarray, " place"]) -> ErrorBars:
    """By how much one objective is beyond another, paired by federation; NaN if an honest run diverged."""
    finite = np.isfinite(best) & np.isfinite(other)
    return error_bars(np.where(finite, best, np.nan) - np.where(finite, other, 0))
