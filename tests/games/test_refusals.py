"""Tables of payoffs and of coalitions that solutions refuse."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fljax import games
from fljax.games import CoalitionTable, PayoffTable
from tests.games.known import THREE_SEEDS, among, table_of
from tests.games.played import GAINS, effort, full, two_clients, uniform_federation, unilateral
from tests.refusals import refusals, refuses

EFFORT, TABLE, WHOLE = full(effort, (1, 0), 3), unilateral(GAINS), uniform_federation()
ONE, PAIR = np.zeros((1, 2), int), two_clients([[3, 0], [5, 1]], [[3, 5], [0, 1]])
PAIRS = PAIR._replace(payoffs=np.repeat(PAIR.payoffs, 6, axis=0), seeds=tuple(range(6)))
SOME = among(WHOLE, [0, 1, 2, 3, 7])


def profiles(table: PayoffTable, rows: Any) -> PayoffTable:
    """The table of some of its profiles."""
    return table._replace(payoffs=table.payoffs[:, rows], choices=table.choices[rows])


def changed(table: Any, place: Any, value: float) -> Any:
    payoffs = table.payoffs.copy()
    payoffs[place] = value
    return table._replace(payoffs=payoffs)


certified = functools.partial(games.certificate, tolerance=0.1)
pairs = functools.partial(games.pair_certificate, tolerance=0.1)
pure = functools.partial(games.pure_equilibria, half_width=0)
compared = games.compare_algorithms
nobody: CoalitionTable = changed(SOME, np.s_[:, :4, 2], np.nan)  # as a table has it that lacks {2}


@refusals(
    (lambda: pure(profiles(EFFORT, np.arange(7))), "a table of all 2^3 = 8 profiles", "got 7"),
    (lambda: pure(profiles(EFFORT, [*range(7), 0])), "a table of all 2^3 = 8 profiles", "got 7"),
    (lambda: pure(EFFORT, half_width=-1), "a half_width of at least 0", "got -1"),
    (lambda: pure(EFFORT, tolerance=np.nan), "a tolerance of at least 0", "got nan"),
    (lambda: games.pure_equilibria(EFFORT), "at least 5 seeds for bounds", "got 1"),
    (lambda: games.exact_potential(PayoffTable(np.zeros((1, 1, 2)), ONE, ("honest",), (0,))), "2 strategies", "got 1"),
    (lambda: games.best_response_graph(EFFORT, margin=-1), "a margin of at least 0", "got -1"),
    (lambda: games.mixed_equilibria(EFFORT), "two clients for mixed equilibria", "got 3"),
    (lambda: games.mixed_regret(EFFORT, np.full((3, 2), 0.4)), "probabilities of shape (3, 2) with sums of 1"),
    (lambda: certified(unilateral(GAINS[:4])), "at least 5 seeds for bounds", "got 4"),
    (lambda: certified(TABLE, tolerance=-1), "a tolerance of at least 0", "got -1"),
    (lambda: certified(TABLE, method="max"), "methods bonferroni, max_t, hoeffding", "got 'max'"),
    (lambda: certified(changed(TABLE, np.s_[:, :, 2], np.nan)), "a finite payoff", "got none of client 2"),
    (lambda: certified(changed(TABLE, (0, 0, 0), -np.inf)), "finite payoffs, or NaN of diverged runs"),
    (lambda: games.unilateral_gains(profiles(TABLE, [0])), "profiles in which one client deviates"),
    (lambda: games.unilateral_gains(profiles(TABLE, [1, 2, 3])), "everybody is honest"),
    (lambda: games.unilateral_gains(TABLE._replace(strategies=("honest",))), "choices from 0 to 0"),
    (lambda: games.unilateral_gains(TABLE._replace(choices=TABLE.choices[:2])), "by profile and client, got shapes"),
    (lambda: games.unilateral_gains(TABLE._replace(outside=np.full((5, 3), np.nan))), "outside", "none of client 0"),
    (lambda: games.unilateral_gains(TABLE._replace(outside=np.zeros((5, 1)))), "outside options by seed and client"),
    (lambda: games.ex_post(certified(TABLE), ()), "levels between 0 and 1"),
    (lambda: games.ex_post(certified(TABLE), (1.5,)), "levels between 0 and 1", "1.5"),
    (lambda: games.ex_post(certified(TABLE), (-0.1, 0.5)), "levels between 0 and 1", "-0.1"),
    (lambda: pairs(profiles(PAIRS, [0, 1, 2])), "profiles in which two clients play one strategy"),
    (lambda: pairs(PAIRS, tolerance=-1), "a tolerance of at least 0", "got -1"),
    (lambda: pairs(PAIRS._replace(payoffs=PAIRS.payoffs[:4], seeds=(0, 1, 2, 3))), "at least 5 seeds", "got 4"),
    (lambda: games.core_stable_partitions(SOME), "all coalitions of at most 8 clients for partitions", "got 5"),
    (lambda: games.core_stable_partitions(WHOLE, margin=np.nan), "a margin of at least 0", "got nan"),
    (lambda: games.blocking_coalitions(among(WHOLE, [0, 1, 2])), "a table with the coalition of all clients"),
    (lambda: games.blocking_coalitions(WHOLE, margin=np.nan), "a margin of at least 0", "got nan"),
    (lambda: games.join_or_leave(nobody), "payoffs of clients that stay away", "without the coalition {2}"),
    (lambda: compared({"a": table_of(THREE_SEEDS)}), "tables of at least two algorithms", "got 1"),
    (
        lambda: compared({"a": table_of(THREE_SEEDS), "b": table_of(THREE_SEEDS, metric="-average_loss")}),
        "the same metric, got average_accuracy of a and -average_loss of b",
    ),
    (
        lambda: compared({"a": table_of(THREE_SEEDS), "b": table_of(THREE_SEEDS[:2])}),
        "the same seeds, got (0, 1, 2) of a and (0, 1) of b",
    ),
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)


def test_some_coalitions_are_enough_to_join_or_leave() -> None:
    assert games.join_or_leave(SOME).outside is None
