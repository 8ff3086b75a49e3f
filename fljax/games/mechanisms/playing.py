"""Games that a search plays: payoffs of many candidates of a mechanism in many profiles, on some of its federations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fljax.core import trees, users
from fljax.core.values import is_whole
from fljax.data import choose
from fljax.engine import Over, Plan, evaluate_clients, rollout
from fljax.engine.checkpoints import Checkpoint, Stopped
from fljax.engine.rounds.states import by_id
from fljax.games.strategic.playing import checked_plan, places_of, played_by, strategies_played, tables_of
from fljax.games.strategic.utilities import Utility, UtilityFunction, tokens_of
from fljax.games.values import algorithm_of
from fljax.protocol import Federation, Labelled
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
      slopes: ``(candidates, profiles [C, P, N], places, weights [C, P, place, N])`` -> derivatives of weighted sums of
        payoffs in the numbers of candidates; None: payoffs have none.
      utility: of a plan; one beside another, whose server keeps no tokens, pays none.
    """

    play: Callable[[Candidates, Int[np.ndarray, "profile client"], Places, str], Payoffs]
    clients: int
    deviations: Mapping[str, Strategy | Deviation | None]
    outside: Float[np.ndarray, "place client"] | None = None
    slopes: Any = None
    utility: Utility | UtilityFunction | None = None


def of_plan(
    plan: Plan,
    pool: Federation,
    deviations: Mapping[str, Strategy | Deviation] | None,
    *,
    beside: bool = False,
    utility: Utility | UtilityFunction | None = None,
    checkpoint: Checkpoint | None = None,
    **settings: Any,
) -> Game:
    """The game of a plan on stacked federations; the run on each has the seed of its place.

    A mechanism ``beside`` another one does not play the deviations that it never reads.

    Raises:
      ValueError: as ``fljax.games.payoffs``.
    """
    game = checked_plan(plan, pool, deviations, utility, beside=beside)
    asked, tried = game.utility, game.deviations
    assert tried is not None

    def play(candidates: Candidates, profiles: Int[np.ndarray, "profile client"], at: Places, name: str) -> Payoffs:
        over, same = Over(candidates) if candidates else None, {"block": ROWS, **settings, "seeds": at.tolist()}
        same["checkpoint"] = checkpoint and checkpoint.below(name)
        if checkpoint is not None and checkpoint.stop is not None and checkpoint.stop.made:  # in a call of one block
            raise Stopped(0, len(at) * len(profiles), 0, "runs")
        tables = tables_of(game._replace(plan=of_places(plan, at)), choose(pool, at), profiles, over, **same)
        return np.stack([table.payoffs.transpose(1, 0, 2) for table in tables])

    metric, budget = (asked.metric, asked.budget) if isinstance(asked, Utility) else ("test_loss", None)
    smooth = budget is None and (metric == "test_loss" or algorithm_of(plan).task.score is None)
    slopes = _slopes_of(plan, pool, tried, asked, settings["rounds"]) if smooth else None
    return Game(play, pool.clients.id.shape[-1], tried, slopes=slopes, utility=asked)


def _slopes_of(plan: Plan, pool: Federation, tried: Any, utility: Any, rounds: int) -> Any:
    """``Game.slopes`` through the runs of ``play``, one after another. Efforts are counts, which have none."""

    def weighted(numbers: Any, lie: Any, place: Any, weights: Any, pool: Any) -> Any:
        strategic = played_by(plan, tried, {**lie, **numbers, **trees.take(plan.by_seed, place)})
        algorithm, federation = strategic.build(**strategic.arguments), choose(pool, place)
        state, _ = rollout(algorithm, federation, rounds=rounds, seed=place)
        scores = evaluate_clients(algorithm, federation, state)
        if not isinstance(utility, Utility):
            told = {name: Labelled(values, ("client",)) for name, values in scores.items()}
            return jnp.vdot(utility(algorithm, state, told), weights)
        tokens = utility.price * tokens_of(state.server) if utility.price else 0.0
        return jnp.vdot(tokens - scores["test_loss"], weights)

    stored = by_id(pool)  # without names
    gradients = jax.jit(lambda rows, pool: jax.lax.map(lambda row: jax.grad(weighted)(*row, pool), rows))

    def slopes(candidates: Candidates, profiles: Any, at: Places, weights: Payoffs) -> Candidates:
        candidate, profile, place = np.indices(weights.shape[:3]).reshape(3, -1)
        choices = profiles[candidate, profile]
        lies = {"played": strategies_played(tried, choices), "chosen": places_of(tried)[choices]}
        numbers = {name: values[candidate] for name, values in candidates.items()}
        rows = numbers, lies, at[place], weights[candidate, profile, place]
        found = gradients(jax.tree.map(jnp.asarray, rows), stored)
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(weights), -1, *leaf.shape[1:]).sum(1), found)

    return slopes


def of_places(plan: Plan, places: Places) -> Plan:
    """The plan whose arguments by seed are those of some federations."""
    return plan._replace(by_seed=jax.tree.map(lambda rows: rows[places], plan.by_seed))


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
