"""Payoffs that no coalition has a reason to leave: least core and nucleolus, by scipy's linear programs (HiGHS).

With ``v0(S) = v(S) - v(empty)``, a payoff ``x`` shares ``v0(all)``, and the excess of a coalition is ``v0(S) - x(S)``:
the model before training may have a value. Nothing here works under ``jit``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fljax.contributions.coalitions import Numbers, clients_of, members_of
from fljax.core.labels import plain

# Relative to the largest |v0|.
_TIGHT, _FEASIBLE = 1e-7, 1e-9
_UNBOUNDED = 3  # the status of scipy's ``linprog``


class LeastCore(NamedTuple):
    """Payoffs whose largest excess is as small as possible.

    Attributes:
      excess: ``[...]``, the largest excess ``e*`` of proper coalitions; the core is not empty where it is at most 0, up
        to rounding. ``-inf`` for one client, and where the coalitions that are used bound nothing; NaN where a value is
        NaN.
      payoff: ``[..., N]``; NaN where nothing bounds the excess of several clients.
      slack: ``[..., 2^N]``, ``x(S) - v0(S) + e*``, at least 0 for coalitions that are used; 0 for nobody and for all
        clients.
      tight: ``[..., 2^N]``, the proper coalitions whose excess is ``e*``.
    """

    excess: Float[np.ndarray, "*seeds"]
    payoff: Float[np.ndarray, "*seeds N"]
    slack: Float[np.ndarray, "*seeds coalitions"]
    tight: Bool[np.ndarray, "*seeds coalitions"]


def least_core(values: Numbers, known: Numbers | None = None) -> LeastCore:
    """``e* = min e`` with ``x(S) >= v0(S) - e`` for all proper coalitions that are not empty, and ``x(all) = v0(all)``.

    Among the payoffs that attain ``e*``, the one with the least ``||x||_2`` is returned, the most equal one.

    Args:
      values: ``[..., 2^N]`` by code. For several seeds, the least core of the mean table is
        ``least_core(values.mean(axis=0))``; ``least_core(values).excess`` tells in how many seeds the core is empty.
      known: ``[2^N]``, the coalitions whose values are used; None: all. Nobody and all clients are always used. With
        fewer coalitions ``e*`` is a lower bound.

    Returns:
      ``LeastCore``. If a value that is used is NaN, its numbers are NaN.

    Raises:
      ValueError: if ``values`` has not 2^N entries.

    Source: Maschler, Peleg and Shapley, "Geometric properties of the kernel, nucleolus, and related solution concepts"
    (1979); Yan and Procaccia, "If you like Shapley then you'll love the core" (AAAI 2021).
    """
    table, used, clients = _table(values, known)
    members = members_of(clients).astype(float)
    rows = np.flatnonzero(used)
    found = [_least_core(row, rows, members) for row in table.reshape(-1, table.shape[-1])]
    lead = table.shape[:-1]
    excess, payoff = np.array([each[0] for each in found]), np.stack([each[1] for each in found])
    gap = payoff @ members.T - (table - table[..., :1]).reshape(-1, table.shape[-1])
    proper = _proper(clients)
    slack = np.where(proper[None], gap + np.where(np.isinf(excess), 0, excess)[:, None], 0)
    sizes = _sizes(np.where(used | ~proper, table, table[..., :1]))  # what is not known may be NaN
    tight = proper[None] & used[None] & (slack <= 10 * _TIGHT * sizes[:, None])
    return LeastCore(
        excess.reshape(lead), payoff.reshape(*lead, clients), slack.reshape(table.shape), tight.reshape(table.shape)
    )


def nucleolus(values: Numbers) -> Float[np.ndarray, "*seeds N"]:
    """The payoff that minimises the largest excess, among these the second largest one, and so on; it is unique.

    Linear programs one after another: each fixes the coalitions that have the largest excess in every optimum (those
    with a positive multiplier), until these coalitions determine the payoff. At most N - 1 programs of 2^N rows.

    Args:
      values: ``[..., 2^N]`` by code.

    Returns:
      ``[..., N]``, of sum ``v(all) - v(empty)``; NaN where a value is NaN.

    Raises:
      ValueError: if ``values`` has not 2^N entries.

    Source: Schmeidler, "The nucleolus of a characteristic function game" (1969).
    """
    table, _, clients = _table(values, None)
    members = members_of(clients).astype(float)
    found = [_nucleolus(row, members) for row in table.reshape(-1, table.shape[-1])]
    return np.stack(found).reshape(*table.shape[:-1], clients)


def _table(values: Numbers, known: Numbers | None) -> tuple[np.ndarray, np.ndarray, int]:
    table = np.asarray(plain(values), float)
    clients = clients_of(table)
    proper = _proper(clients)
    return table, proper if known is None else proper & np.asarray(plain(known), bool), clients


def _proper(clients: int) -> np.ndarray:
    codes = np.arange(2**clients)
    return (codes > 0) & (codes < 2**clients - 1)


def _sizes(table: np.ndarray) -> np.ndarray:
    """The largest |v0| of each row, by which programs are scaled; 1 for a table of one value."""
    rows = table.reshape(-1, table.shape[-1])
    largest = np.abs(rows - rows[:, :1]).max(axis=1)
    return np.where(largest > 0, largest, 1.0)


def _least_core(row: np.ndarray, rows: np.ndarray, members: np.ndarray) -> tuple[float, np.ndarray]:
    """``e*`` and the payoff, of one table."""
    from scipy.optimize import nnls  # late: it takes a quarter of a second

    clients = members.shape[1]
    if not np.isfinite(row[[0, *rows, -1]]).all():
        return np.nan, np.full(clients, np.nan)
    if not len(rows):
        return -np.inf, np.full(clients, (row[-1] - row[0]) / clients)
    size = _sizes(row[[0, *rows, -1]])[0]
    game = (row - row[0]) / size
    excess, payoff, _ = _program(game, rows, members, [], [])
    if np.isinf(excess):
        return excess, payoff
    # Optimal payoffs are e + y with e equal shares, y of sum 0 and G y >= h; the least y is a least distance program.
    equal = np.full(clients, game[-1] / clients)
    basis = np.linalg.svd(np.ones((1, clients)))[2][1:].T
    left, right = members[rows] @ basis, game[rows] - excess - _FEASIBLE - members[rows] @ equal
    least, _ = nnls(np.vstack([left.T, right[None]]), np.eye(clients)[-1], maxiter=100 * len(rows))
    rest = np.vstack([left.T, right[None]]) @ least - np.eye(clients)[-1]
    nearest = equal - basis @ (rest[:-1] / rest[-1]) if abs(rest[-1]) > 1e-12 else payoff
    if (members[rows] @ nearest - game[rows] + excess).min() < -_TIGHT:  # rounding was too large
        nearest = payoff
    return excess * size, nearest * size


def _nucleolus(row: np.ndarray, members: np.ndarray) -> np.ndarray:
    clients = members.shape[1]
    if not np.isfinite(row).all():
        return np.full(clients, np.nan)
    size = _sizes(row)[0]
    game = (row - row[0]) / size
    free = np.arange(1, len(row) - 1)
    fixed, sums = [members[-1]], [game[-1]]
    while True:
        basis = np.linalg.qr(np.array(fixed).T)[0]
        if basis.shape[1] == clients:
            return np.linalg.solve(np.array(fixed), np.array(sums)) * size
        # A coalition that the fixed ones determine has a constant excess.
        rest = members[free] - members[free] @ basis @ basis.T
        free = free[np.linalg.norm(rest, axis=1) > 1e-9]
        excess, _, multipliers = _program(game, free, members, fixed, sums)
        for code in free[np.argsort(-multipliers, kind="stable")]:
            new = np.array([*fixed, members[code]])
            if multipliers[free == code][0] > 1e-7 and np.linalg.matrix_rank(new) == len(new):
                fixed.append(members[code])
                sums.append(game[code] - excess)


def _program(
    game: np.ndarray, rows: np.ndarray, members: np.ndarray, fixed: list[np.ndarray], sums: list[float]
) -> tuple[float, np.ndarray, np.ndarray]:
    """``min e`` with ``x(S) + e >= game(S)`` for ``rows`` and given sums of payoffs: e, x and the multipliers."""
    from scipy.optimize import linprog  # late: it takes a quarter of a second

    clients = members.shape[1]
    fixed, sums = fixed or [members[-1]], sums or [game[-1]]
    found = linprog(
        np.append(np.zeros(clients), 1.0),
        A_ub=-np.hstack([members[rows], np.ones((len(rows), 1))]),
        b_ub=-game[rows],
        A_eq=np.hstack([np.array(fixed), np.zeros((len(fixed), 1))]),
        b_eq=np.array(sums),
        bounds=(None, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.status == _UNBOUNDED:  # a client that is in none of the coalitions pays for all others
        return -np.inf, np.full(clients, np.nan), np.zeros(len(rows))
    if not found.success:
        raise RuntimeError(f"expected the linear program of a least core to be solved, got: {found.message}")
    return float(found.x[-1]), found.x[:-1], -found.ineqlin.marginals
