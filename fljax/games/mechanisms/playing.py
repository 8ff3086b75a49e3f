"""Games that a search plays: payoffs of many candidates of a mechanism in many profiles, on some of its federations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.core import users
from fljax.core.values import is_whole
from fljax.data import choose
from fljax.engine import Over, Plan
from fljax.games.strategic.playing import checked_plan, tables_of
from fljax.games.strategic.utilities import Utility, UtilityFunction
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
      deviations: the strategies 1, 2, ... of a profile by name, those of a function without any; 0 is honest.
      outside: ``[place, N]``, what clients get if they do not join; None: it is not known.
    """

    play: Callable[[Candidates, Int[np.ndarray, "profile client"], Places, str], Payoffs]
    clients: int
    deviations: Mapping[str, Strategy | Deviation | None]
    outside: Float[np.ndarray, "place client"] | None = None


def of_plan(
    plan: Plan,
    pool: Federation,
    deviations: Mapping[str, Strategy | Deviation] | None,
    *,
    beside: bool = False,
    utility: Utility | UtilityFunction | None = None,
    checkpoint: pathlib.Path | None = None,
    **settings: Any,
) -> Game:
    """The game of a plan on stacked federations; the run on each has the seed of its place.

    A mechanism ``beside`` another one does not play the deviations that it never reads.

    Raises:
      ValueError: as ``fljax.games.payoffs``, or for a plan with arguments by seed.
    """
    if plan.by_seed:
        raise ValueError(f"expected a plan without arguments by seed, got {', '.join(plan.by_seed)}")
    game = checked_plan(plan, pool, deviations, utility, beside=beside)
    assert game.deviations is not None

    def play(candidates: Candidates, profiles: Int[np.ndarray, "profile client"], at: Places, name: str) -> Payoffs:
        over, same = Over(candidates) if candidates else None, {"block": ROWS, **settings, "seeds": at.tolist()}
        same["checkpoint"] = None if checkpoint is None else checkpoint / name
        tables = tables_of(game, choose(pool, at), profiles, over, **same)
        return np.stack([table.payoffs.transpose(1, 0, 2) for table in tables])

    return Game(play, pool.clients.id.shape[-1], game.deviations)


def of_rule(rule: Rule, clients: Any, deviations: Any) -> Game:
    """The game of a function of one's own.

    Raises:
      ValueError: without the number of clients, or names of deviations.
    """
    if not is_whole(clients) or clients < 1:
        raise ValueError(f"expected clients, the number of them, for a function as mechanism, got {clients!r}")
    named = isinstance(deviations, Sequence) and all(isinstance(name, str) for name in deviations)
    if not named or isinstance(deviations, str) or not deviations or len(set(deviations)) < len(deviations):
        raise ValueError(f"expected different names of deviations for a function as mechanism, got {deviations!r}")

    def play(candidates: Candidates, profiles: Int[np.ndarray, "profile client"], at: Places, name: str) -> Payoffs:
        def one(numbers: dict[str, Any], profile: Int[np.ndarray, " N"], place: int) -> Any:
            found = users.call("the rule", "(numbers, profile, seed)", rule, numbers, profile, place)
            return users.numbers(
                "the rule", rule, f"one number of each client [{clients}]", found, (clients,), np.asarray
            )

        rows = [{name: values[place] for name, values in candidates.items()} for place in range(_count(candidates))]
        return np.array([[[one(row, profile, place) for place in at.tolist()] for profile in profiles] for row in rows])

    return Game(play, clients, dict.fromkeys(deviations))


def _count(candidates: Candidates) -> int:
    """How many there are; one of a mechanism without numbers."""
    return max(map(len, candidates.values()), default=1)
