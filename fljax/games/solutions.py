"""What a table of coalitions says, without further runs: worths, stable payoffs, violated laws, and groups that leave.

Such a group of clients would rather train without the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from fljax import contributions
from fljax.contributions import LeastCore, Violations, simultaneous_bounds
from fljax.contributions.solutions import members_of
from fljax.contributions.tables import LEAST_SEEDS
from fljax.games.strategic.gains import PayoffTable, as_precise_as
from fljax.games.tables import CoalitionTable, by_code, codes_of, is_complete

MOST_PARTITIONED = 8  # 4,140 partitions
_SLACK = 1e-12  # relative to the largest payoff


class Blocking(NamedTuple):
    """Which of M proper coalitions block the federation of all clients.

    Without transfers S blocks if every member gains, ``u_i(S) > u_i(all)``. With transfers it blocks if its members
    gain together, ``sum_S u_i(S) > sum_S u_i(all)``.

    Attributes:
      members: ``[M, N]``, coalitions that are neither empty nor all clients, in the order of the table.
      least: ``[M]``, the smallest mean gain of a member; NaN if the coalition's run diverged with some seed, else
        infinite if the run of all clients did.
      total: ``[M]``, the sum of the mean gains of members, likewise.
      blocks: ``[M]``, without transfers.
      blocks_with_transfers: ``[M]``.
      certain: ``[M]``, whether bounds over seeds, of all members of all coalitions at once, exclude that some member
        gains nothing. None for fewer than 5 seeds.
      certain_with_transfers: ``[M]``, the same for the sum of gains.
    """

    members: Bool[np.ndarray, "coalition client"]
    least: Float[np.ndarray, " coalition"]
    total: Float[np.ndarray, " coalition"]
    blocks: Bool[np.ndarray, " coalition"]
    blocks_with_transfers: Bool[np.ndarray, " coalition"]
    certain: Bool[np.ndarray, " coalition"] | None
    certain_with_transfers: Bool[np.ndarray, " coalition"] | None


def blocking_coalitions(table: CoalitionTable, *, margin: float = 0.0, confidence: float = 0.95) -> Blocking:
    """Coalitions whose members gain more than ``margin`` by leaving the federation of all clients together.

    Args:
      table: with the coalition of all clients.
      margin: gains up to it do not count, of a member or of the sum; at least 0.
      confidence: of the bounds over seeds.

    Raises:
      ValueError: if the table lacks the coalition of all clients, or ``margin`` is negative.
    """
    _check_margin(margin)
    sizes, clients = table.members.sum(axis=1), table.members.shape[1]
    whole = np.flatnonzero(sizes == clients)
    if not len(whole):
        raise ValueError("expected a table with the coalition of all clients, got one without it")
    proper = np.flatnonzero((sizes > 0) & (sizes < clients))
    members = table.members[proper]
    gains = table.payoffs[:, proper] - table.payoffs[:, whole]
    total = np.where(members, gains, 0.0).sum(axis=2)
    # Where the run of all clients has diverged, a member with a payoff of its own is better off.
    known = ~np.isnan(table.payoffs[:, proper]).any(axis=0)
    freed = np.isnan(table.payoffs[:, whole]).any(axis=0) & known
    mean = np.where(members, np.where(freed, np.inf, gains.mean(axis=0)), np.inf)
    least = mean.min(axis=1, initial=np.inf)
    sums = np.where(members, mean, 0.0).sum(axis=1)
    beyond = margin + _rounding(table)
    certain = certain_with_transfers = None
    if len(table.seeds) >= LEAST_SEEDS:
        low = np.full(members.shape, np.inf)
        low[members] = _low(gains[:, members], confidence)
        certain = low.min(axis=1, initial=np.inf) > beyond
        certain_with_transfers = _low(total, confidence) > beyond
    return Blocking(members, least, sums, least > beyond, sums > beyond, certain, certain_with_transfers)


def core_stable_partitions(table: CoalitionTable, *, margin: float = 0.0) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Partitions of clients into federations that no coalition blocks: in none do all members gain over ``margin``.

    Args:
      table: of all coalitions of at most 8 clients.
      margin: gains up to it do not count, at least 0.

    Returns:
      Stable partitions, those of few federations first; each is a tuple of tuples of ids. There may be none.

    Raises:
      ValueError: if the table lacks a coalition, has more than 8 clients, or ``margin`` is negative.

    Source: Donahue and Kleinberg, "Model-sharing games: analyzing federated learning under voluntary participation"
    (AAAI 2021); Banerjee, Konishi and Sonmez, "Core in a simple coalition formation game" (2001).
    """
    _check_margin(margin)
    clients = table.members.shape[1]
    if clients > MOST_PARTITIONED or not is_complete(table):
        raise ValueError(
            f"expected a table with all coalitions of at most {MOST_PARTITIONED} clients for partitions, "
            f"got {len(table.members):,} coalitions of {clients}"
        )
    payoffs, mean = np.empty((2**clients, clients)), table.payoffs.mean(axis=0)
    payoffs[codes_of(table.members)] = np.where(np.isnan(mean), -np.inf, mean)
    labels = np.array(list(_partitions(clients)))
    together = labels[:, :, None] == labels[:, None, :]
    received = payoffs[together @ (1 << np.arange(clients)), np.arange(clients)[None]]
    stable, beyond = np.ones(len(labels), bool), margin + _rounding(table)
    for row, inside in zip(payoffs[1:], members_of(clients)[1:], strict=True):
        stable &= ~np.all(row[inside] > received[:, inside] + beyond, axis=1)
    chosen = sorted(labels[stable].tolist(), key=lambda label: (max(label), label))
    return tuple(
        tuple(tuple(i for i, mine in enumerate(label) if mine == block) for block in range(max(label) + 1))
        for label in chosen
    )


def join_or_leave(table: CoalitionTable, *, cost: float = 0.0) -> PayoffTable:
    """The game in which every client joins or leaves: strategy 0 joins, strategy 1 leaves.

    ``pure_equilibria`` of it are the coalitions that no single client wants to join or to leave, and ``certificate`` of
    it says whether it pays to leave the federation of all clients.

    Args:
      table: of coalitions; a payoff outside a coalition is the payoff of a client that stays away.
      cost: of joining, in units of payoffs.

    Returns:
      The payoffs by seed, profile and client. The outside option is ``u_i({i})`` without the cost; None if the table
      lacks the coalition of a client alone.

    Raises:
      ValueError: if a client has no payoff outside a coalition, since the table lacks its coalition.
    """
    clients = table.members.shape[1]
    alone = [np.flatnonzero((table.members == row).all(axis=1)) for row in np.eye(clients, dtype=bool)]
    for client, places in enumerate(alone):
        away = table.payoffs[:, ~table.members[:, client], client]
        if not len(places) and np.isnan(away[~table.diverged[:, ~table.members[:, client]]]).any():
            raise ValueError(
                f"expected payoffs of clients that stay away, got a table without the coalition {{{client}}}"
            )
    outside = None
    if all(map(len, alone)):
        outside = np.stack([table.payoffs[:, places[0], client] for client, places in enumerate(alone)], axis=1)
    payoffs = as_precise_as(table.payoffs - cost * table.members, table.payoffs)
    return PayoffTable(payoffs, (~table.members).astype(int), ("join", "leave"), table.seeds, outside)


def coalitions_of(choices: Int[np.ndarray, "profile client"]) -> tuple[tuple[int, ...], ...]:
    """The clients that join in each profile of ``join_or_leave``, as ids."""
    return tuple(tuple(np.flatnonzero(row == 0).tolist()) for row in choices)


def _low(values: np.ndarray, confidence: float) -> np.ndarray:
    """Lower bounds over seeds of the columns; ``-inf`` where a value is NaN."""
    low, known = np.full(values.shape[1], -np.inf), np.all(np.isfinite(values), axis=0)
    if known.any():
        # Columns that are not known count among those of which bounds hold at once.
        filled = np.where(known[None], values, 0.0)
        low[known] = simultaneous_bounds(filled, confidence).low[known]
    return low


def _rounding(table: CoalitionTable) -> float:
    known = np.abs(table.payoffs[np.isfinite(table.payoffs)])
    return _SLACK * float(known.max()) if known.size else 0.0


def _partitions(clients: int) -> Iterator[list[int]]:
    """All partitions, as the number of each client's federation: that of a client before it, or a new one."""

    def further(labels: list[int]) -> Iterator[list[int]]:
        if len(labels) == clients:
            yield labels
            return
        for label in range(max(labels, default=-1) + 2):
            yield from further([*labels, label])

    return further([])


def _check_margin(margin: float) -> None:
    if not 0 <= margin < np.inf:
        raise ValueError(f"expected a margin of at least 0, got {margin}")


_ROUNDING = 1e-9
ALPHA, BETA = 4.0, 1.0  # of Beta Shapley values in ``worth``


def shapley(table: CoalitionTable) -> Float[np.ndarray, "seeds N"]:
    """``[R, N]``: Shapley values of every seed; each row adds up to ``v(all) - v(empty)``.

    Raises:
      ValueError: if the table lacks a coalition.
    """
    return np.asarray(contributions.shapley(_complete(table, "Shapley values")))


def banzhaf(table: CoalitionTable) -> Float[np.ndarray, "seeds N"]:
    """``[R, N]``: Banzhaf values of every seed.

    Raises:
      ValueError: if the table lacks a coalition.
    """
    return np.asarray(contributions.banzhaf(_complete(table, "Banzhaf values")))


def beta_shapley(table: CoalitionTable, alpha: float = ALPHA, beta: float = BETA) -> Float[np.ndarray, "seeds N"]:
    """``[R, N]``: Beta Shapley values of every seed; with ``alpha > beta`` small coalitions weigh more.

    Raises:
      ValueError: if the table lacks a coalition, or a parameter is not positive.
    """
    return np.asarray(contributions.beta_shapley(_complete(table, "Beta Shapley values"), alpha, beta))


def leave_one_out(table: CoalitionTable) -> Float[np.ndarray, "seeds N"]:
    """``[R, N]``: ``v(all) - v(all - i)`` of every seed, for any number of clients.

    Raises:
      ValueError: if the table lacks the coalition of all clients, or a coalition of all but one.
    """
    left_out = _all_but_one(table)
    if left_out is None:
        raise ValueError(
            "expected a table with the coalition of all clients and those of all but one for leave-one-out values, "
            f"got {len(table.members)} other coalitions"
        )
    whole, without = left_out
    return table.values[:, [whole]] - table.values[:, without]


def least_core(table: CoalitionTable) -> LeastCore:
    """The least core of the mean table over seeds.

    If the table lacks some coalitions, the excess is a lower bound.

    Raises:
      ValueError: if there are more than 16 clients, or the table lacks the coalition of none or of all clients.
    """
    values = by_code(table).mean(axis=0)
    known = np.zeros(len(values), bool)
    known[codes_of(table.members)] = True
    if not (known[0] and known[-1]):
        raise ValueError("expected a table with nobody and with all clients for a least core, got one without them")
    return contributions.least_core(values, known)


def superadditivity(table: CoalitionTable, *, level: float = 0.95) -> Violations:
    """Violations of ``v0(S + T) >= v0(S) + v0(T)`` for disjoint coalitions, with ``v0 = v - v(empty)``.

    With several seeds, a violation counts if its t-interval excludes 0.

    Raises:
      ValueError: if the table lacks a coalition.
    """
    return contributions.superadditivity(_complete(table, "superadditivity"), level=level)


def monotonicity(table: CoalitionTable, *, level: float = 0.95) -> Violations:
    """Violations of ``v(S + i) >= v(S)``, as for ``superadditivity``."""
    return contributions.monotonicity(_complete(table, "monotonicity"), level=level)


def convexity(table: CoalitionTable, *, level: float = 0.95) -> Violations:
    """Violations of ``v(S + i + j) - v(S + i) >= v(S + j) - v(S)``, as for ``superadditivity``."""
    return contributions.convexity(_complete(table, "convexity"), level=level)


def worth(table: CoalitionTable, *, level: float = 0.95) -> xr.Dataset:
    """All measures of clients that the coalitions of a table allow.

    Args:
      table: of any coalitions.
      level: of the t-intervals over seeds.

    Returns:
      Over ``measure, client``: ``worth`` by ``seed``; its ``mean``, and the ends ``low`` and ``high`` of its interval,
      NaN with one seed. The measures are "shapley", "banzhaf", "beta_shapley" (4, 1), "leave_one_out" and "least_core".
      The mean of "least_core" is the least core of the mean table, and has no interval.
      Over ``law``: ``violations``, ``share``, ``largest`` and ``unknown`` of superadditivity, monotonicity and
      convexity.
      Single numbers: ``excess`` of the least core of the mean table, ``stable``, the share of the seeds whose core is
      not empty; ``everybody`` and ``nobody``, the values of all clients and of none. Numbers that need other coalitions
      are absent, or NaN.

    Raises:
      ValueError: if ``level`` is not between 0 and 1.
    """
    rows, core = dict[str, np.ndarray](), {"excess": np.nan, "stable": np.nan}
    complete, shape = is_complete(table), (len(table.seeds), table.members.shape[1])
    if complete:
        rows = {"shapley": shapley(table), "banzhaf": banzhaf(table), "beta_shapley": beta_shapley(table)}
    if _all_but_one(table) is not None:
        rows["leave_one_out"] = leave_one_out(table)
    of_mean = least_core(table) if complete else None
    if of_mean is not None:
        of_seeds = contributions.least_core(by_code(table))
        rows["least_core"], core = of_seeds.payoff, _excess(table, of_mean, of_seeds)
    by_seed = np.array(list(rows.values()), float).reshape(-1, *shape)
    bars = contributions.error_bars(np.swapaxes(by_seed, 0, 1), level)
    if of_mean is not None:
        bars.mean[-1], bars.low[-1], bars.high[-1] = of_mean.payoff, np.nan, np.nan
    measures = {"mean": bars.mean, "low": bars.low, "high": bars.high}
    ends = {name: _end(table, everybody) for name, everybody in (("everybody", True), ("nobody", False))}
    dataset = xr.Dataset(
        {
            "worth": (("measure", "seed", "client"), by_seed),
            **{name: (("measure", "client"), numbers) for name, numbers in measures.items()},
            **{name: ((), number) for name, number in {**core, **ends}.items()},
        },
        {
            "measure": np.array(list(rows), dtype=str),
            "seed": list(table.seeds),
            "client": np.arange(shape[1]),
            "name": ("client", np.asarray(table.names, dtype=str)),
        },
        {"level": level, "metric": table.metric},
    )
    if not complete:
        return dataset
    laws = {"superadditivity": superadditivity, "monotonicity": monotonicity, "convexity": convexity}
    broken = [law(table, level=level) for law in laws.values()]
    columns = {"violations": "count", "share": "share", "largest": "largest", "unknown": "unknown"}
    numbers = {name: ("law", [getattr(law, field) for law in broken]) for name, field in columns.items()}
    return dataset.assign_coords(law=list(laws)).assign(numbers)


def _excess(table: CoalitionTable, of_mean: LeastCore, of_seeds: LeastCore) -> dict[str, float]:
    """The excess of the mean table, and the share of the seeds, of those that are known, whose core is not empty."""
    values, by_seed = by_code(table), of_seeds.excess
    size = np.abs(values - values[:, :1]).max(axis=1)
    stable = np.where(np.isnan(by_seed), np.nan, by_seed <= _ROUNDING * np.maximum(size, 1))
    known = stable[~np.isnan(stable)]
    return {"excess": float(of_mean.excess), "stable": float(known.mean()) if len(known) else np.nan}


def _end(table: CoalitionTable, everybody: bool) -> float:
    """The mean value over seeds of all clients, or of nobody; NaN if the table lacks it."""
    place = np.flatnonzero((table.members == everybody).all(axis=1))
    return float(table.values[:, place[0]].mean()) if len(place) else np.nan


def _complete(table: CoalitionTable, what: str) -> np.ndarray:
    """The values by code of a table that has all of them."""
    if not is_complete(table):
        count, clients = table.members.shape
        of_all = f"all {2**clients:,} coalitions" if clients <= 40 else f"all 2^{clients} coalitions"
        raise ValueError(f"expected a table with {of_all} of {clients} clients for {what}, got {count:,}")
    return by_code(table)


def _all_but_one(table: CoalitionTable) -> tuple[int, np.ndarray] | None:
    """The place of the coalition of all, and ``[N]`` those of all but client i; None if one is absent."""
    clients = table.members.shape[1]
    sizes = table.members.sum(axis=1)
    whole = np.flatnonzero(sizes == clients)
    places = np.flatnonzero(sizes == clients - 1)
    if not len(whole) or len(places) != clients:
        return None
    return int(whole[0]), places[np.argsort(np.argmin(table.members[places], axis=1))]
