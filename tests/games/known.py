"""Tables of games with known solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from fljax.contributions import Estimate
from fljax.contributions.estimators import Cost as EstimatorCost
from fljax.contributions.solutions import members_of
from fljax.games import CoalitionTable, Cost, shapley
from fljax.games.comparing import _dataset
from tests.contributions.games import THREE

NOISE = np.array(
    [[0.0] * 8, [0.01, -0.01, 0.0, 0.01, 0.0, 0.02, -0.01, 0.0], [0.0, 0.01, 0.01, 0.0, -0.02, 0.0, 0.0, 0.01]]
)
THREE_SEEDS = THREE + NOISE


def table_of(values: Any, **changes: Any) -> CoalitionTable:
    """A table ``[R, 2^N]`` by code, in which each member has the value of its coalition."""
    rows = np.atleast_2d(np.asarray(values, float))
    clients = rows.shape[1].bit_length() - 1
    members = members_of(clients)
    payoffs = np.where(members[None], rows[:, :, None], rows[:, 1 << np.arange(clients)][:, None, :])
    whole = CoalitionTable(
        rows,
        members,
        payoffs,
        np.zeros(rows.shape, bool),
        metric="average_accuracy",
        payoff="test_accuracy",
        baseline="initial",
        seeds=tuple(range(len(rows))),
        names=tuple("abcdefghij"[:clients]),
        cost=Cost(rows.size, 100.0 * rows.size, rows.nbytes, 1.5),
    )
    return whole._replace(**changes)


def among(table: CoalitionTable, rows: Any) -> CoalitionTable:
    """The table of some of its coalitions, in this order."""
    return table._replace(
        values=table.values[:, rows],
        members=table.members[rows],
        payoffs=table.payoffs[:, rows],
        diverged=table.diverged[:, rows],
    )


def comparison_of(table: CoalitionTable, **worths: Any) -> xr.Dataset:
    """What ``compare_estimators`` says of these values ``[R, N]``; each took all trainings and 0.25 s."""
    count = table.values.shape[1]
    cost = EstimatorCost(trainings=count - 1, evaluations=count)
    estimates = {name: [Estimate(row, cost=cost) for row in rows] for name, rows in worths.items()}
    return _dataset(estimates, dict.fromkeys(worths, 0.25), shapley(table), table)
