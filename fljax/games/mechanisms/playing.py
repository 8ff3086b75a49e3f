"""Games that a search plays: payoffs of many candidates of a mechanism in many profiles, on some of its federations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.core import users, values
from fljax.core.values import is_whole
from fljax.data import choose
from fljax.engine import Over, Plan
from fljax.games.strategic.gains import PayoffTable
from fljax.games.strategic.playing import (
    Outside,
    check_deviations,
    checked_messages,
    checked_outside,
    outside_options,
    payoffs,
    usual_deviations,
)
from fljax.games.strategic.utilities import (
    Utility,
    UtilityFunction,
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
        over = Over(candidates) if candidates else None
        settings: dict[str, Any] = {"utility": asked, "outside": None, "max_runs": 10**9, "block": ROWS, **of_runs}
        settings["checkpoint"] = None if checkpoint is None else checkpoint / name
        settings |= {"rounds": rounds, "seeds": at.tolist(), "deviations": tried, "shape": profiles}
        found = payoffs(plan, choose(pool, at), over=over, **settings)
        tables = [found] if isinstance(found, PayoffTable) else found
        return np.stack([table.payoffs.transpose(1, 0, 2) for table in tables])

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
