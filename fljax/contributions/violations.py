"""Whether larger coalitions are better: superadditivity, monotonicity and convexity of a table, and what violates them.

Accuracy saturates, so that most games of federated learning are neither superadditive nor convex. In a table of several
seeds, a violation is a mean gap whose t-interval lies below ``-tolerance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.contributions.coalitions import Numbers, clients_of, sizes_of
from fljax.contributions.over_seeds import error_bars
from fljax.core.labels import plain

_ROUNDING = 1e-9  # the default tolerance


class Violations(NamedTuple):
    """What violates a property.

    Attributes:
      count: number of violations.
      share: ``count`` over the number of inequalities; 0 if there are none.
      largest: the size of the largest violation, positive; 0 without one.
      gap: ``[W]``, the negative gaps of the W worst violations, the worst one first.
      where: ``[W, 2 or 3]``, what each of them is about, see the functions.
      unknown: number of inequalities with a NaN, which are no violations.
    """

    count: int
    share: float
    largest: float
    gap: Float[np.ndarray, " W"]
    where: Int[np.ndarray, "W K"]
    unknown: int


def superadditivity(
    values: Numbers, *, level: float = 0.95, tolerance: float = _ROUNDING, listed: int = 100
) -> Violations:
    """``v0(S + T) >= v0(S) + v0(T)`` with ``v0 = v - v(empty)``, for all disjoint S and T that are not empty.

    There are ``(3^N - 2^(N+1) + 1) / 2`` pairs: 28,501 for 10 clients, 21 million for 16.

    Args:
      values: ``[2^N]`` by code, or ``[R, 2^N]``.
      level: of the interval over seeds.
      tolerance: gaps above ``-tolerance`` are rounding.
      listed: W, the largest number of violations to list.

    Returns:
      ``Violations``, where ``where`` has the codes of S and T, with the lowest client in S.

    Raises:
      ValueError: if ``values`` is no such table.
    """
    table, clients = _table(values)
    table = table - table[:, :1]

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(1, 2**clients - 1):
            others = [1 << i for i in range((first & -first).bit_length(), clients) if not first >> i & 1]
            second = np.zeros(1, int)
            for bit in others:
                second = np.concatenate([second, second | bit])
            second = second[1:]
            if len(second):
                gap = table[:, first | second] - table[:, second] - table[:, first, None]
                yield gap, np.stack([np.full_like(second, first), second], axis=1)

    return _found(pairs(), 2, level, tolerance, listed)


def monotonicity(
    values: Numbers, *, level: float = 0.95, tolerance: float = _ROUNDING, listed: int = 100
) -> Violations:
    """``v(S + i) >= v(S)`` for all clients i and all S without i: ``N 2^(N-1)`` inequalities.

    Args:
      values, level, tolerance, listed: as for ``superadditivity``.

    Returns:
      ``Violations``, where ``where`` has the code of S and the id i.

    Raises:
      ValueError: if ``values`` is no such table.
    """
    table, clients = _table(values)
    codes = np.arange(2**clients)

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for client in range(clients):
            without = codes[~(codes >> client & 1).astype(bool)]
            gap = table[:, without | 1 << client] - table[:, without]
            yield gap, np.stack([without, np.full_like(without, client)], axis=1)

    return _found(pairs(), 2, level, tolerance, listed)


def convexity(values: Numbers, *, level: float = 0.95, tolerance: float = _ROUNDING, listed: int = 100) -> Violations:
    """``v(S + i + j) - v(S + i) >= v(S + j) - v(S)`` for all pairs of clients: ``C(N, 2) 2^(N-2)`` inequalities.

    A convex game is superadditive, and its Shapley values are in the core.

    Args:
      values, level, tolerance, listed: as for ``superadditivity``.

    Returns:
      ``Violations``, where ``where`` has the code of S, and the ids i and j with i < j.

    Raises:
      ValueError: if ``values`` is no such table.

    Source: Shapley, "Cores of convex games" (1971).
    """
    table, clients = _table(values)
    codes = np.arange(2**clients)

    def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for second in range(clients):
            for first in range(second):
                i, j = 1 << first, 1 << second
                without = codes[(codes & (i | j)) == 0]
                gap = table[:, without | i | j] - table[:, without | i] - table[:, without | j] + table[:, without]
                yield gap, np.stack([without, np.full_like(without, first), np.full_like(without, second)], axis=1)

    return _found(pairs(), 3, level, tolerance, listed)


def _table(values: Numbers) -> tuple[np.ndarray, int]:
    """``[R, 2^N]``."""
    table = np.asarray(plain(values), float)
    clients = clients_of(table)
    if table.ndim > 2 or not table.size:
        raise ValueError(f"expected a table [2^N] or [seeds, 2^N], got shape {table.shape}")
    return table.reshape(-1, len(sizes_of(clients))), clients


def _found(
    parts: Iterable[tuple[np.ndarray, np.ndarray]], columns: int, level: float, tolerance: float, listed: int
) -> Violations:
    """Violations among gaps ``[R, M]`` and what they are about, ``[M, columns]``, in parts."""
    count = total = unknown = 0
    worst, where = np.zeros(0), np.zeros((0, columns), int)
    for gap, about in parts:
        bars = error_bars(gap, level) if len(gap) > 1 else None
        mean, above = (gap[0], gap[0]) if bars is None else (bars.mean, bars.high)
        violated = above < -tolerance
        count, total, unknown = count + int(violated.sum()), total + len(about), unknown + int(np.isnan(above).sum())
        if not violated.any():
            continue
        worst = np.concatenate([worst, mean[violated]])
        where = np.concatenate([where, about[violated]])
        order = np.argsort(worst, kind="stable")[: max(listed, 1)]
        worst, where = worst[order], where[order]
    largest = float(-worst[0]) if len(worst) else 0.0
    return Violations(count, count / total if total else 0.0, largest, worst[:listed], where[:listed], unknown)
