"""Games that a search plays: payoffs of many candidates of a mechanism in many profiles, on some of its federations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from fljax.core import users, values
from fljax.core.values import is_whole
from fljax.data import choose
from fljax.engine import Over, Plan, runs
from fljax.games.strategic.playing import (
    Outside,
    check_deviations,
    checked_messages,
    checked_outside,
    functions_of,
    outside_options,
    places_of,
    played_by,
    strategies_played,
    usual_deviations,
)
from fljax.games.strategic.utilities import (
    Utility,
    UtilityFunction,
    earnings_of,
    efforts_of,
    rounds_trained,
    steps_of_round,
    utilities_of_runs,
)
from fljax.games.values import algorithm_of
from fljax.protocol import Federation
from fljax.scenarios import Deviation, Strategy

Candidates = Mapping[str, Float[np.ndarray, "candidate ..."]]
Payoffs = Float[np.ndarray, "candidate profile place client"]
Places = Int[np.ndarray, " place"]  # of federations
# ``(numbers, profile [N], seed) -> [N]``: the payoff of each client, if it plays the strategy with this place.
Rule = Callable[[dict[str, Any], Int[np.ndarray, " N"], int], Any]
ROWS = 128  # of the one program of runs


class Game(NamedTuple):
    """A mechanism with numbers in it, and the federations on which it is played.

    Attributes:
      play: ``(candidates, profiles [P, N], places, name) -> payoffs``; NaN where a run diverged. The name is that of a
        checkpoint.
      clients: N.
      deviations: names of the strategies 1, 2, ... of a profile; 0 is honest.
      outside: ``[place, N]``, what clients get if they do not join; None: it is not known.
    """

    play: Callable[[Candidates, Int[np.ndarray, "profile client"], Places, str], Payoffs]
    clients: int
    deviations: tuple[str, ...]
    outside: Float[np.ndarray, "place client"] | None


def of_plan(
    plan: Plan,
    pool: Federation,
    places: int,
    *,
    rounds: int,
    deviations: Mapping[str, Strategy | Deviation] | None,
    utility: Utility | UtilityFunction | None,
    outside: Outside,
    checkpoint: pathlib.Path | None = None,
    **of_runs: Any,
) -> Game:
    """The game of a plan on a stack of ``places`` federations; the run on each has the seed of its place.

    Raises:
      ValueError: as ``fljax.games.payoffs``.
    """
    values.check_arguments(plan.build, plan.arguments, plan.by_seed)
    asked: Utility | UtilityFunction = Utility() if utility is None else utility
    messages = checked_messages(plan, pool, asked)
    tried = usual_deviations(messages) if deviations is None else deviations
    check_deviations(tried, messages, algorithm_of(plan))
    clients = pool.clients.id.shape[-1]
    known = checked_outside(outside, clients, places, asked)
    alone = outside_options(known, None, plan, pool, asked, rounds=rounds, seeds=range(places), **of_runs)

    def play(candidates: Candidates, profiles: Int[np.ndarray, "profile client"], at: Places, name: str) -> Payoffs:
        count, chosen = _count(candidates), choose(pool, at)
        played = strategies_played(tried, profiles)
        arguments: dict[str, Any] = {name: np.repeat(rows, len(profiles), axis=0) for name, rows in candidates.items()}
        own = {"played": played} if jax.tree.leaves(played) else {}
        own |= {"chosen": places_of(tried)[profiles]} if functions_of(tried) else {}
        arguments |= jax.tree.map(lambda rows: np.tile(rows, (count, 1)), own)
        first = {"played": played, **jax.tree.map(lambda rows: rows[0], arguments)}
        strategic = played_by(plan, tried, {name: first[name] for name in first if name not in candidates})
        measured = runs(
            strategic,
            chosen,
            Over(arguments),
            rounds=rounds,
            seeds=at.tolist(),
            measure=earnings_of(asked),
            block=ROWS,
            checkpoint=None if checkpoint is None else checkpoint / name,
            **of_runs,
        )
        steps = np.tile(steps_of_round(plan, chosen, played, messages.own_models), (1, count, 1))
        found = utilities_of_runs(measured, efforts_of(rounds_trained(measured) * steps, plan, chosen, rounds), asked)
        return found.reshape(len(at), count, len(profiles), clients).transpose(1, 2, 0, 3)

    return Game(play, clients, tuple(tried), alone)


def of_rule(rule: Rule, clients: Any, deviations: Any, outside: Any, places: int) -> Game:
    """The game of a function of one's own.

    Raises:
      ValueError: without the number of clients, names of deviations, or numbers outside.
    """
    if not is_whole(clients) or clients < 1:
        raise ValueError(f"expected clients, the number of them, for a function as mechanism, got {clients!r}")
    if deviations is None or isinstance(deviations, str) or not len(deviations):
        raise ValueError(f"expected names of deviations for a function as mechanism, got {deviations!r}")
    known = checked_outside(outside, clients, places, Utility())
    if not isinstance(known, np.ndarray | None):
        raise ValueError(f"expected numbers or None outside for a function as mechanism, got {outside!r}")

    def play(candidates: Candidates, profiles: Int[np.ndarray, "profile client"], at: Places, name: str) -> Payoffs:
        def one(numbers: dict[str, Any], profile: Int[np.ndarray, " N"], place: int) -> Any:
            found = users.call("the rule", "(numbers, profile, seed)", rule, numbers, profile, place)
            return users.numbers(
                "the rule", rule, f"one number of each client [{clients}]", found, (clients,), np.asarray
            )

        rows = [{name: values[place] for name, values in candidates.items()} for place in range(_count(candidates))]
        return np.array([[[one(row, profile, place) for place in at.tolist()] for profile in profiles] for row in rows])

    return Game(play, clients, tuple(deviations), known)


def _count(candidates: Candidates) -> int:
    """How many there are; one of a mechanism without numbers."""
    return max(map(len, candidates.values()), default=1)
