"""Groups of clients that would rather train without the others, from a table of coalitions and without further runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fljax.contributions import simultaneous_bounds
from fljax.contributions.over_seeds import LEAST_SEEDS
from fljax.games.strategic.payoff_tables import PayoffTable, as_precise_as
from fljax.games.tables import CoalitionTable, codes_of, is_complete

MOST_PARTITIONED = 8  # 4,140 partitions
_ROUNDING = 1e-12  # relative to the largest payoff


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
    payoffs, members = np.empty((2**clients, clients)), np.empty((2**clients, clients), bool)
    mean = table.payoffs.mean(axis=0)
    codes = codes_of(table.members)
    payoffs[codes], members[codes] = np.where(np.isnan(mean), -np.inf, mean), table.members
    labels = np.array(list(_partitions(clients)))
    together = labels[:, :, None] == labels[:, None, :]
    received = payoffs[together @ (1 << np.arange(clients)), np.arange(clients)[None]]
    stable, beyond = np.ones(len(labels), bool), margin + _rounding(table)
    for row, inside in zip(payoffs[1:], members[1:], strict=True):
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
    return _ROUNDING * float(known.max()) if known.size else 0.0


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
