"""Estimators that sample coalitions of a ``CachedGame`` and retrain them, on the host: the number of values counts.

Each value is a training, but for the empty coalition, whose value is that of the model before. With a budget, an
estimator draws in the same order and takes as many samples as it allows. ``cost`` is what the game has spent in all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fljax.contributions.estimators.rounds import Cost, Estimate
from fljax.contributions.solutions import (
    Numbers,
    banzhaf,
    clients_of,
    marginals_along,
    mean_of_samples,
    members_of,
    semivalue,
)
from fljax.core import users
from fljax.core.names import plain
from fljax.core.trees import as_key
from fljax.core.values import Count, NonNegative, checked


class CachedGame:
    """Values of coalitions by code, asked for in groups: each is valued once, and only as many as a budget allows."""

    def __init__(
        self, value: Callable[[Any], Any], clients: int, *, budget: int | None = None, together: bool = False
    ) -> None:
        """A game of N clients.

        Args:
          value: ``members -> number``, where ``members`` are N bools of NumPy; with ``together``
            ``[M, N] -> [M]``: M different coalitions at once, which may be trained side by side.
          clients: N.
          budget: the largest number of trainings; None: any.
          together: see ``value``.

        Raises:
          ValueError: if there is no client, or the budget is negative.
        """
        if clients < 1 or (budget is not None and budget < 0):
            raise ValueError(f"expected at least 1 client and a budget of at least 0, got {clients} and {budget}")
        self.clients, self.budget = clients, budget
        self.known: dict[int, float] = {}
        self._value, self._together = value, together

    @classmethod
    def of_table(cls, values: Numbers, *, budget: int | None = None) -> CachedGame:
        """A game from a table ``[2^N]``, to try an estimator on values that are known.

        Raises:
          ValueError: if the table has not 2^N entries.
        """
        table = np.asarray(plain(values), float)
        clients = clients_of(table)
        if table.ndim != 1:
            raise ValueError(f"expected a table [2^N] of one game, got shape {table.shape}")
        codes = 1 << np.arange(clients)
        return cls(lambda members: table[members @ codes], clients, budget=budget, together=True)

    @property
    def cost(self) -> Cost:
        """Trainings and evaluations until now."""
        return Cost(trainings=len(self.known) - (0 in self.known), evaluations=len(self.known))

    def affords(self, groups: Iterable[Bool[np.ndarray, "M N"]]) -> int:
        """The number of leading groups of coalitions whose values the budget still allows."""
        new: set[int] = set()
        count = 0
        for group in groups:
            new |= {code for code in _codes(group) if code and code not in self.known}
            if self.budget is not None and self.cost.trainings + len(new) > self.budget:
                return count
            count += 1
        return count

    def values(self, members: Bool[np.ndarray, "*M N"]) -> Float[np.ndarray, " *M"]:
        """The values of coalitions ``[..., N]``; new ones are asked for together.

        After an error of ``value`` the same call goes on with those in ``known``.

        Raises:
          ValueError: if the budget is too small, or ``value`` returns something else.
          AlgorithmError: if ``value`` raises an exception.
        """
        rows = np.asarray(members, bool).reshape(-1, self.clients)
        codes = _codes(rows)
        new = {code: row for code, row in zip(codes, rows, strict=True) if code not in self.known}
        if not self.affords([rows]):
            trainings = self.cost.trainings + len(new) - (0 in new)
            raise ValueError(f"expected a budget of at least {trainings} trainings, got {self.budget}")
        if new and self._together:
            wanted, rows = f"a value for each of {len(new)} coalitions", np.stack(list(new.values()))
            self.known.update(zip(new, self._called(rows, wanted, (len(new),)).tolist(), strict=True))
        else:
            for code, row in new.items():
                self.known[code] = float(self._called(row, "one number for a coalition", ()))
        return np.array([self.known[code] for code in codes]).reshape(np.shape(members)[:-1])

    def _called(self, members: Any, wanted: str, shape: tuple[int, ...]) -> Any:
        found = users.call("value", "(members)", self._value, members)
        return users.numbers("value", self._value, wanted, found, shape, np.asarray)

    def table(self) -> Float[np.ndarray, " coalitions"]:
        """The values of all coalitions by code, for at most 16 clients."""
        return self.values(members_of(self.clients))


def _codes(members: np.ndarray) -> list[int]:
    """Codes as Python's whole numbers, which have no largest one."""
    if members.shape[1] < 63:
        return (members @ (1 << np.arange(members.shape[1]))).tolist()
    return [sum(1 << int(i) for i in np.flatnonzero(row)) for row in members]


@checked
def permutation_shapley(game: CachedGame, key: Key[Array, ""] | None = None, *, orders: Any = 100) -> Estimate:
    """The mean of a client's marginal contributions over random orders, unbiased for Shapley values.

    At most ``N - 1`` trainings for each order, and one. ``fljax.contributions.monte_carlo_shapley`` does the same on
    the device, for functions of jax.numpy.

    Args:
      game: whose values are trainings.
      key: for random orders.
      orders: their number; or ``[K, N]``, the clients in their order of arrival.

    Returns:
      ``Estimate``; ``error`` is ``sd / sqrt(K)``, NaN for one order. ``details["orders"]`` is K.

    Raises:
      ValueError: if the budget is too small for one order.

    Source: Castro, Gomez and Tejada, "Polynomial calculation of the Shapley value based on sampling" (2009).
    """
    chosen = _orders(game, key, orders)
    place = np.argsort(chosen, axis=1)
    inside = place[:, None, :] < np.arange(game.clients + 1)[None, :, None]
    count = _at_least_one(game, game.affords(inside), "order", inside[0])
    samples = marginals_along(game.values(inside[:count]), place[:count])
    worth, error = mean_of_samples(samples)
    return Estimate(worth, None, error, game.cost, {"orders": count})


@checked
def truncated_shapley(
    game: CachedGame, key: Key[Array, ""] | None = None, *, orders: Any = 100, tolerance: NonNegative = 0.01
) -> Estimate:
    """TMC-Shapley: as ``permutation_shapley``, with marginals 0 once ``|v(all) - v(prefix)| < tolerance``; biased.

    Without a budget all orders are valued place by place, side by side; with one, order by order.

    Args:
      game: whose values are trainings.
      key: for random orders.
      orders: their number; or ``[K, N]``, the clients in their order of arrival.
      tolerance: see above; 0 truncates nothing.

    Returns:
      ``Estimate``; ``error`` is ``sd / sqrt(K)`` and does not know of the bias. ``details["asked"]`` counts the values
      of prefixes that were asked for, of K N.

    Raises:
      ValueError: if the budget is too small for one order.

    Source: Ghorbani and Zou, "Data Shapley" (ICML 2019), Algorithm 1.
    """
    chosen = _orders(game, key, orders)
    clients = game.clients
    ends = np.stack([np.zeros(clients, bool), np.ones(clients, bool)])
    empty, whole = game.values(ends)
    found: list[np.ndarray] = []
    asked = 0
    for group in [chosen] if game.budget is None else [order[None] for order in chosen]:
        place = np.argsort(group, axis=1)
        along = np.full((len(group), clients + 1), empty)
        for size in range(1, clients + 1):
            active = ~(np.abs(whole - along[:, size - 1]) < tolerance)
            along[:, size] = along[:, size - 1]
            prefixes = place[active] < size
            if not game.affords([prefixes]):
                break
            along[active, size] = game.values(prefixes)
            asked += int(active.sum())
        else:
            found.append(marginals_along(along, place))
            continue
        break
    if not found:
        raise ValueError(f"expected a budget for at least one order, got {game.budget} trainings")
    samples = np.concatenate(found)
    worth, error = mean_of_samples(samples)
    return Estimate(worth, None, error, game.cost, {"orders": len(samples), "asked": asked})


@checked
def stratified_shapley(game: CachedGame, key: Key[Array, ""] | None = None, *, samples: Count = 10) -> Estimate:
    """``phi_i = (1/N) sum_s`` of the mean of ``samples`` marginals of client i to coalitions of s others.

    A stratum (i, s) with at most ``samples`` coalitions is taken whole, and is exact: s = 0 and N - 1 always. In others
    coalitions are drawn with replacement. At most two trainings for each sample.

    Args:
      game: whose values are trainings. With a budget, samples are taken in turns over all strata, those of one client
        after those of another one, in a drawn order.
      key: for random coalitions, and for orders with a budget.
      samples: of each stratum.

    Returns:
      ``Estimate``; ``error`` is ``sqrt(sum_s var_s / n_s) / N``, NaN if a stratum that is not whole has one sample.
      ``details["strata"]`` ``[N, N]`` has the means by client and s; a stratum without a sample makes the client NaN.

    Raises:
      ValueError: if ``samples`` is not positive.

    Source: Maleki et al., "Bounding the estimation error of sampling-based Shapley value approximation" (2013).
    """
    clients = game.clients
    whole = np.array([math.comb(clients - 1, size) for size in range(clients)])
    drawn = game.budget is not None or (whole > samples).any()
    random = _random(key) if drawn else np.random.default_rng(0)
    names = random.permutation(clients).tolist()  # a budget may end before all clients, and within a stratum
    units: list[tuple[int, int, int, np.ndarray]] = []
    for client, size in itertools.product(names, range(clients)):
        others = [other for other in names if other != client]
        if whole[size] <= samples:
            sets = list(itertools.combinations(others, size))
        else:
            sets = [random.permutation(others)[:size] for _ in range(samples)]
        for turn, chosen in enumerate(sets):
            members = np.zeros((2, clients), bool)
            members[:, list(chosen)] = True
            members[1, client] = True
            units.append((turn, client, size, members))
    units.sort(key=lambda unit: unit[0])
    count = game.affords(members for _, _, _, members in units)
    units = units[:count]
    values = game.values(np.stack([unit[3] for unit in units])) if units else np.zeros((0, 2))
    gains: dict[tuple[int, int], list[float]] = {}
    for (_, client, size, _), (without, together) in zip(units, values, strict=True):
        gains.setdefault((client, size), []).append(together - without)
    strata, squares = np.full((clients, clients), np.nan), np.full((clients, clients), np.nan)
    for place, numbers in gains.items():
        strata[place] = np.mean(numbers)
        if len(numbers) == whole[place[1]] <= samples:
            squares[place] = 0
        elif len(numbers) > 1:
            squares[place] = np.var(numbers, ddof=1) / len(numbers)
    error = np.sqrt(squares.sum(axis=1)) / clients
    return Estimate(strata.mean(axis=1), None, error, game.cost, {"strata": strata})


@checked
def owen_shapley(
    game: CachedGame, key: Key[Array, ""] | None = None, *, nodes: int | None = None, samples: int | None = 10
) -> Estimate:
    """``phi_i = int_0^1 E_{S ~ Bern(q)} (v(S + i) - v(S - i)) dq``, by Gauss and Legendre's nodes q on [0, 1].

    The integrand is a polynomial of degree N - 1 in q, so ``ceil(N / 2)`` nodes have no error of quadrature. One sample
    draws a coalition S at a node, and serves all clients: ``N + 1`` trainings.

    Args:
      game: whose values are trainings. With a budget, samples are taken in turns over the nodes.
      key: for random coalitions.
      nodes: their number; None: ``ceil(N / 2)``.
      samples: coalitions for each node; None: expectations over all coalitions, for at most 16 clients.

    Returns:
      ``Estimate``; ``error`` is ``sqrt(sum_q w_q^2 var_q / n_q)``, NaN where a node has one sample.

    Raises:
      ValueError: if a number is not positive, or the budget is too small for one sample of each node.

    Source: Okhrati and Lipani, "A multilinear sampling algorithm to estimate Shapley values" (ICPR 2020); Owen,
    "Multilinear extensions of games" (1972).
    """
    clients = game.clients
    nodes = -(-clients // 2) if nodes is None else nodes
    if nodes < 1 or (samples is not None and samples < 1):
        raise ValueError(f"expected positive numbers, got {nodes} nodes and {samples} samples")
    points, shares = np.polynomial.legendre.leggauss(nodes)
    points, shares = (points + 1) / 2, shares / 2
    if samples is None:
        worth = semivalue(game.table(), node_weights(points, shares, clients))
        return Estimate(worth, None, np.zeros(clients), game.cost)
    draws = _random(key).random((samples, nodes, clients)) < points[None, :, None]
    eye = np.eye(clients, dtype=bool)
    both = np.stack([draws[:, :, None, :] | eye, draws[:, :, None, :] & ~eye], axis=2)  # [samples, nodes, 2, N, N]
    turns = both.reshape(samples, -1, clients)
    count = _at_least_one(game, game.affords(turns), "sample of each node", turns[0])
    values = game.values(both[:count])
    gains = values[:, :, 0] - values[:, :, 1]
    error = np.full(clients, np.nan)
    if count > 1:
        error = np.sqrt(np.square(shares) @ gains.var(axis=0, ddof=1) / count)
    return Estimate(shares @ gains.mean(axis=0), None, error, game.cost)


def node_weights(points: np.ndarray, shares: np.ndarray, clients: int) -> np.ndarray:
    """``p_s = sum_q share_q q^s (1 - q)^(N - 1 - s)``: what nodes make of the integral, as a semivalue."""
    sizes = np.arange(clients)[:, None]
    return (points[None] ** sizes * (1 - points[None]) ** (clients - 1 - sizes)) @ shares


@checked
def msr_banzhaf(game: CachedGame, key: Key[Array, ""] | None = None, *, samples: int | None = 100) -> Estimate:
    """``phi_i = mean of v(S) over samples with i - mean over samples without i``, S uniform: Banzhaf values.

    Every value serves all clients. A client that is in all samples, or in none, has NaN.

    Args:
      game: whose values are trainings.
      key: for random coalitions.
      samples: their number; None: each coalition once, which is exact.

    Returns:
      ``Estimate``; ``error`` is ``sqrt(var_with / n_with + var_without / n_without)``, NaN where a number is below 2.

    Raises:
      ValueError: if ``samples`` is not positive, or the budget is too small for one.

    Source: Wang and Jia, "Data Banzhaf" (AISTATS 2023), maximum sample reuse.
    """
    clients = game.clients
    if samples is None:
        return Estimate(banzhaf(game.table()), None, np.zeros(clients), game.cost, {"samples": 2**clients})
    if samples < 1:
        raise ValueError(f"expected at least 1 sample, got {samples}")
    members = _random(key).random((samples, clients)) < 0.5
    count = _at_least_one(game, game.affords(members[:, None]), "sample", members[:1])
    members = members[:count]
    values = game.values(members)
    worth, error = np.full(clients, np.nan), np.full(clients, np.nan)
    for client in range(clients):
        sides = [values[members[:, client]], values[~members[:, client]]]
        if all(len(side) for side in sides):
            worth[client] = sides[0].mean() - sides[1].mean()
        if all(len(side) > 1 for side in sides):
            error[client] = math.sqrt(sum(side.var(ddof=1) / len(side) for side in sides))
    return Estimate(worth, None, error, game.cost, {"samples": count})


@checked
def ipss(game: CachedGame, key: Key[Array, ""] | None = None, *, budget: int) -> Estimate:
    """IPSS: all coalitions up to a size, a few of the next size, and nothing of larger ones.

    ``k* = max k`` with ``sum_{j <= k} C(N, j) <= budget``. Strata s < k* of ``phi_i = (1/N) sum_s`` (mean marginal to s
    others) are exact. What is left of the budget goes to different coalitions of ``k* + 1`` members, in which each
    client is about equally often; they estimate stratum k*. Higher strata are 0: biased, unless values saturate.

    Args:
      game: whose values are trainings.
      key: for random coalitions of ``k* + 1``.
      budget: number of values, with that of the empty coalition.

    Returns:
      ``Estimate``; ``details["size"]`` is k*, and ``details["complete"]`` the number of coalitions of up to k* members.

    Raises:
      ValueError: if ``budget`` is below N + 1, or the game's own budget is too small.

    Source: Wei et al., "IPSS" (arXiv 2504.16668). How coalitions of stratum k* are drawn is our reading.
    """
    clients = game.clients
    counts = np.cumsum([math.comb(clients, size) for size in range(clients + 1)], dtype=object)
    size = sum(1 for count in counts if count <= budget) - 1
    if size < 1:
        raise ValueError(f"expected a budget of at least {clients + 1} values for {clients} clients, got {budget}")
    complete = int(counts[size])
    chosen = [members for count in range(size + 1) for members in itertools.combinations(range(clients), count)]
    if size < clients and budget > complete:
        chosen += _balanced(_random(key), clients, size + 1, budget - complete)
    values = game.values(np.array([np.isin(np.arange(clients), members) for members in chosen]))
    by_members = dict(zip(chosen, values, strict=True))
    strata, number = np.zeros((clients, clients)), np.zeros((clients, clients), int)
    for members, value in by_members.items():
        for client in members:
            rest = tuple(other for other in members if other != client)
            strata[client, len(rest)] += value - by_members[rest]
            number[client, len(rest)] += 1
    worth = (strata / np.maximum(number, 1)).mean(axis=1)
    return Estimate(worth, None, None, game.cost, {"size": size, "complete": complete})


def _balanced(random: np.random.Generator, clients: int, size: int, count: int) -> list[tuple[int, ...]]:
    """Different coalitions of one size; each takes the clients that are in the fewest until now."""
    found: dict[tuple[int, ...], None] = {}
    uses = np.zeros(clients)
    while len(found) < min(count, math.comb(clients, size)):
        for _ in range(20):
            members = tuple(sorted(np.argsort(uses + random.random(clients))[:size].tolist()))
            if members not in found:
                break
        else:  # all sets of the rarest clients are there
            while (members := tuple(sorted(random.permutation(clients)[:size].tolist()))) in found:
                pass
        found[members] = None
        uses[list(members)] += 1
    return list(found)


def _random(key: Any) -> np.random.Generator:
    if key is None:
        raise ValueError("expected a key for random coalitions, got none")
    return np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))).ravel().tolist())


def _orders(game: CachedGame, key: Any, orders: Any) -> np.ndarray:
    """``[K, N]``, the clients in their order of arrival."""
    if np.ndim(orders) == 0:
        if orders < 1:
            raise ValueError(f"expected at least 1 order, got {orders}")
        random = _random(key)
        return np.stack([random.permutation(game.clients) for _ in range(int(orders))])
    given = np.asarray(plain(orders))
    if given.ndim != 2 or given.shape[1] != game.clients or (np.sort(given) != np.arange(game.clients)[None]).any():
        raise ValueError(f"expected orders of all {game.clients} clients, got shape {given.shape}")
    return given


def _at_least_one(game: CachedGame, count: int, what: str, members: np.ndarray) -> int:
    if not count:
        trainings = int(np.unique(members[np.any(members, axis=-1)], axis=0).shape[0])  # nobody needs none
        raise ValueError(f"expected a budget for at least one {what}, up to {trainings} trainings, got {game.budget}")
    return count
