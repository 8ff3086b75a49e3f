"""Equilibria of a table of all K^N profiles: which profiles no client wants to leave, and where best responses lead.

Payoffs are means over seeds; a diverged run counts as the worst utility (``replace_diverged``). Differences up to 64
times the precision of the largest payoff are rounding. Where payoffs are off by up to h, a true equilibrium is a
2h-equilibrium of the means, and a gamma-equilibrium of the means is a true (gamma + 2h)-equilibrium.

Mixed equilibria of two clients are found by the vertices of the polytopes of best responses.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fljax.contributions import simultaneous_bounds
from fljax.core.names import plain
from fljax.games.strategic.gains import PayoffTable, precision_of, replace_diverged

_SLACK, _SINGULAR = 1e-12, 1e13


def extreme_equilibria(
    first: Float[np.ndarray, "K L"], second: Float[np.ndarray, "K L"], *, precision: float = 0.0
) -> tuple[Float[np.ndarray, "E K"], Float[np.ndarray, "E L"], Bool[np.ndarray, " E"]]:
    """All equilibria (x, y) of payoffs A, B that are no mixture of others, and whether each is degenerate."""
    # x is a vertex of ``{x >= 0, B'x <= 1}``, scaled to the sum 1, and y one of ``{y >= 0, A y <= 1}``, with payoffs in
    # [1, 2], as moving and scaling change no equilibrium. Each strategy is not played, or a best response. Degenerate:
    # more best responses to a mixture than it has strategies; without one of these, the number of equilibria is odd.
    # ``precision`` is relative to the largest payoff of a player; smaller differences are ties. Source: von Stengel,
    # "Equilibrium computation for two-player games in strategic and extensive form", Algorithmic Game Theory (2007),
    # chapter 3.
    rows, not_rows, columns_best = _vertices(second.T, precision)
    columns, not_columns, rows_best = _vertices(first, precision)
    missing = (~not_rows).astype(float) @ (~rows_best).T + (~columns_best).astype(float) @ (~not_columns).T
    one, other = np.nonzero(missing == 0)
    labels = np.concatenate([not_rows[one], columns_best[one], not_columns[other], rows_best[other]], axis=1)
    number = labels.sum(axis=1)
    # Who has all labels of another one, and more, is the same point but for rounding.
    double = ((labels.astype(int) @ ~labels.T == 0) & (number[:, None] < number)).any(axis=1)
    return rows[one][~double], columns[other][~double], number[~double] > sum(first.shape)


def _vertices(payoffs: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From payoffs ``[responses, strategies]``: mixtures ``[V, strategies]``, what is unplayed, and best responses."""
    (responses, strategies), spread = payoffs.shape, np.ptp(payoffs)
    rounding = max(_SLACK, precision * float(np.abs(payoffs).max() / spread)) if spread > 0 else 1.0
    if rounding < 1:
        unit = 1 + (payoffs - payoffs.min()) / spread
    else:  # all are the same
        unit, rounding = np.ones(payoffs.shape), _SLACK
    found: list[np.ndarray] = []
    for size in range(1, min(payoffs.shape) + 1):
        played = np.array(list(itertools.combinations(range(strategies), size)))
        best = np.array(list(itertools.combinations(range(responses), size)))
        square = unit[best[:, None, :, None], played[None, :, None, :]]
        regular = np.linalg.cond(square) < _SINGULAR
        weights = np.linalg.solve(square[regular], np.ones((size, 1)))[..., 0]
        play = np.zeros((len(weights), strategies))
        np.put_along_axis(play, played[np.nonzero(regular)[1]], weights, axis=1)
        found.append(play)
    play = np.concatenate(found)
    slack = 1 - play @ unit.T
    feasible = (play >= -rounding).all(axis=1) & (slack >= -rounding).all(axis=1)
    labels, place = np.unique(np.concatenate([play, slack], axis=1)[feasible] <= rounding, axis=0, return_index=True)
    unplayed, play = labels[:, :strategies], np.where(labels[:, :strategies], 0, play[feasible][place])
    return play / play.sum(axis=1, keepdims=True), unplayed, labels[:, strategies:]


def cycles_of(
    source: Int[np.ndarray, " edge"], target: Int[np.ndarray, " edge"], count: int
) -> tuple[tuple[int, ...], ...]:
    """A shortest cycle through the first node of each strongly connected part that has an edge inside, as its nodes."""
    # A walk that goes round for ever does so in one of these parts.
    from scipy.sparse import coo_array  # late: it takes a quarter of a second
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    graph = coo_array((np.ones(len(source)), (source, target)), shape=(count, count)).tocsr()
    _, part = connected_components(graph, directed=True, connection="strong")
    starts = np.unique(source[part[source] == part[target]])
    firsts = starts[np.sort(np.unique(part[starts], return_index=True)[1])]
    cycles: list[tuple[int, ...]] = []
    for start in firsts.tolist():
        order, before = breadth_first_order(graph, start)  # a path that leaves the part never comes back
        path = [int(order[np.isin(order, source[target == start])][0])]
        while path[-1] != start:
            path.append(int(before[path[-1]]))
        cycles.append(tuple(reversed(path)))
    return tuple(cycles)


# How far payoffs are rounded, relative to the largest one: in units of their precision, but at least so far.
_LAST_BITS, _ROUNDING = 64.0, 1e-12


class PureEquilibria(NamedTuple):
    """Which of P profiles are epsilon-equilibria.

    Attributes:
      regret: ``[P]``, the largest mean gain of a client that changes its strategy alone; negative if all changes lose.
      low: ``[P]``, a lower bound of the regret; all bounds hold at once.
      high: ``[P]``, an upper bound of it.
      certain: ``[P]``, whether ``high`` is at most epsilon.
      possible: ``[P]``, whether ``low`` is at most epsilon, so that an equilibrium is not excluded.
    """

    regret: Float[np.ndarray, " profile"]
    low: Float[np.ndarray, " profile"]
    high: Float[np.ndarray, " profile"]
    certain: Bool[np.ndarray, " profile"]
    possible: Bool[np.ndarray, " profile"]


class BestResponseGraph(NamedTuple):
    """E moves of single clients to best responses, between P profiles.

    Attributes:
      source: ``[E]``, the place of the profile that a client leaves.
      target: ``[E]``, the place of the profile to which it goes.
      client: ``[E]``, the client that moves.
      gain: ``[E]``, its gain.
      sinks: ``[P]``, profiles that no client leaves, the equilibria.
      cycles: of each part of the graph in which play may go round for ever, the shortest cycle through its first
        profile, as places of profiles.
      choices: ``[P, N]``, the strategies of each profile, as in the table.
      strategies: their names.
    """

    source: Int[np.ndarray, " edge"]
    target: Int[np.ndarray, " edge"]
    client: Int[np.ndarray, " edge"]
    gain: Float[np.ndarray, " edge"]
    sinks: Bool[np.ndarray, " profile"]
    cycles: tuple[tuple[int, ...], ...]
    choices: Int[np.ndarray, "profile client"]
    strategies: tuple[str, ...]


class Potential(NamedTuple):
    """Whether a game has an exact potential: a function whose differences are the gains of clients.

    Attributes:
      defect: the largest sum of gains around a cycle of four profiles, 0 in a potential game.
      exact: whether ``defect`` is 0, up to rounding.
      values: ``[P]``, the potential, 0 in the honest profile; NaN if there is none.
    """

    defect: float
    exact: bool
    values: Float[np.ndarray, " profile"]


class CorrelatedEquilibria(NamedTuple):
    """The correlated equilibria with the largest and the smallest welfare.

    Attributes:
      best: the largest expected welfare of a correlated equilibrium.
      worst: the smallest one.
      best_play: ``[P]``, the probabilities of profiles that attain ``best``.
      worst_play: ``[P]``, the same for ``worst``.
    """

    best: float
    worst: float
    best_play: Float[np.ndarray, " profile"]
    worst_play: Float[np.ndarray, " profile"]


class MixedEquilibria(NamedTuple):
    """Mixed equilibria of two clients.

    Attributes:
      mixtures: ``[E, 2, K]``, the probabilities of the strategies of each client.
      payoffs: ``[E, 2]``, expected.
      degenerate: whether a client has more best responses than the other one has strategies in play, in some of these
        equilibria, so that there may be infinitely many others.
      odd: whether their number is odd, as it is where ``degenerate`` is False. An even number then says that
        some are missing, which differ by rounding from others.
    """

    mixtures: Float[np.ndarray, "equilibrium client strategy"]
    payoffs: Float[np.ndarray, "equilibrium client"]
    degenerate: bool
    odd: bool


def pure_equilibria(
    table: PayoffTable, *, tolerance: float = 0.0, half_width: float | None = None, confidence: float = 0.95
) -> PureEquilibria:
    """Profiles a with ``max_i max_{b != a_i} u_i(b, a_-i) - u_i(a) <= tolerance``, certain and possible ones.

    Args:
      table: of all profiles.
      tolerance: the epsilon of epsilon-equilibria, at least 0.
      half_width: h, of all payoffs at once (``payoff_half_width`` has one): regrets are off by up to 2 h. 0 takes the
        payoffs as exact. None: t-bounds of all gains at once, which are paired by seed and far narrower.
      confidence: of the bounds of gains, for both sides at once.

    Raises:
      ValueError: if the table lacks a profile or has one strategy alone, as ``replace_diverged``, if a number is
        negative, or without ``half_width`` for fewer than 5 seeds.
    """
    grid = _grid(table)
    for name, value in (("tolerance", tolerance), ("half_width", half_width or 0.0)):
        if not 0 <= value < np.inf:
            raise ValueError(f"expected a {name} of at least 0, got {value}")
    gains = _all_gains(grid)
    if half_width is None:
        other = np.isfinite(gains)
        by_seed = replace_diverged(table).payoffs
        samples = np.stack([_all_gains(_grid(table, payoffs))[other] for payoffs in by_seed])
        bounds = simultaneous_bounds(samples, (1 + confidence) / 2)
        low, high = np.full_like(gains, -np.inf), np.full_like(gains, -np.inf)
        low[other], high[other] = bounds.low, bounds.high
    else:
        low, high = gains - 2 * half_width, gains + 2 * half_width
    regret, least, most = (values.max(axis=(0, 2))[grid.order] for values in (gains, low, high))
    beyond = tolerance + grid.rounding
    return PureEquilibria(regret, least, most, most <= beyond, least <= beyond)


def payoff_half_width(table: PayoffTable, *, confidence: float = 0.95) -> float:
    """The h with which all mean payoffs of a table lie within h of the true ones, with probability ``confidence``.

    The largest half-width of Bonferroni's t-intervals over all profiles and clients.

    Raises:
      ValueError: for fewer than 5 seeds; as ``replace_diverged``.
    """
    payoffs = replace_diverged(table).payoffs
    # Bounds of each side hold with their confidence, both sides together with half of the doubt.
    bounds = simultaneous_bounds(payoffs.reshape(len(payoffs), -1), (1 + confidence) / 2)
    return float((bounds.high - bounds.mean).max())


def best_response_graph(table: PayoffTable, *, margin: float = 0.0) -> BestResponseGraph:
    """Edges from each profile to those in which one client has changed to a best response and gained over ``margin``.

    Equally good responses are all edges. With margin 0 sinks are pure equilibria of the mean payoffs; with estimated
    payoffs, a margin of twice their half-width keeps play from following noise.

    Args:
      table: of all profiles.
      margin: gains up to it move no client, at least 0.

    Raises:
      ValueError: as ``pure_equilibria``.
    """
    if not 0 <= margin < np.inf:
        raise ValueError(f"expected a margin of at least 0, got {margin}")
    grid = _grid(table)
    rounding, count = grid.rounding, len(grid.order)
    place = np.empty(count, int)
    place[grid.order] = np.arange(count)
    edges: list[tuple[np.ndarray, ...]] = []
    for player in range(grid.clients):
        gains = _gains(grid, player)
        best = gains.max(axis=1, keepdims=True)
        moves, strategy = np.nonzero((gains >= best - rounding) & (best > margin + rounding))
        step = grid.strategies ** (grid.clients - 1 - player)
        before = moves // step % grid.strategies
        target = place[moves + (strategy - before) * step]
        edges.append((place[moves], target, np.full(len(moves), player), gains[moves, strategy]))
    begin, end, client, gain = map(np.concatenate, zip(*edges, strict=True))
    sinks = np.ones(count, bool)
    sinks[begin] = False
    cycles = cycles_of(begin, end, count)
    return BestResponseGraph(begin, end, client, gain, sinks, cycles, table.choices, table.strategies)


def exact_potential(table: PayoffTable) -> Potential:
    """Whether the gains of two clients around every cycle of four profiles add up to 0, and the potential.

    For clients i and j, the second difference of ``u_i - u_j`` over their two strategies is then 0.

    Args:
      table: of all profiles.

    Raises:
      ValueError: as ``pure_equilibria``.

    Source: Monderer and Shapley, "Potential games" (Games and Economic Behavior 1996), theorem 2.8.
    """
    grid = _grid(table)
    payoffs, defect = grid.payoffs, 0.0
    first, second = np.triu_indices(grid.strategies, 1)
    for i in range(grid.clients):
        for j in range(i):
            difference = payoffs[..., i] - payoffs[..., j]
            along = np.take(difference, second, axis=i) - np.take(difference, first, axis=i)
            around = np.take(along, second, axis=j) - np.take(along, first, axis=j)
            defect = max(defect, float(np.abs(around).max()))
    exact = defect <= 8 * grid.rounding
    if not exact:
        return Potential(defect, False, np.full(len(grid.order), np.nan))
    # From the honest profile, clients change one after another: each adds its own gain.
    values = np.zeros(payoffs.shape[:-1])
    for client in range(grid.clients):
        later = tuple(slice(None) if other <= client else slice(1) for other in range(grid.clients))
        utility = payoffs[(*later, client)]
        values = values + utility - np.take(utility, [0], axis=client)
    return Potential(defect, True, values.reshape(-1)[grid.order])


def correlated_equilibria(table: PayoffTable) -> CorrelatedEquilibria:
    """The best and the worst correlated equilibrium by welfare ``sum_i u_i``, by linear programs over profiles.

    No client that is told its strategy gains by another: ``sum_{a: a_i = s} p(a) (u_i(b, a_-i) - u_i(a)) <= 0`` for all
    clients i and strategies s and b, ``N K (K - 1)`` rows.

    Args:
      table: of all profiles.

    Raises:
      ValueError: as ``pure_equilibria``.

    Source: Aumann, "Subjectivity and correlation in randomized strategies" (1974).
    """
    from scipy.optimize import linprog  # late: it takes a quarter of a second

    grid = _grid(table)
    count, codes = len(grid.order), np.arange(len(grid.order))
    welfare = grid.payoffs.sum(axis=-1).reshape(-1)
    rows: list[np.ndarray] = []
    for client in range(grid.clients):
        gains = _gains(grid, client)
        told = codes // grid.strategies ** (grid.clients - 1 - client) % grid.strategies
        for strategy in range(grid.strategies):
            others = np.delete(np.arange(grid.strategies), strategy)
            rows.extend(np.where(told[:, None] == strategy, gains[:, others], 0.0).T)
    size = max(float(np.abs(rows).max()), np.finfo(float).tiny)
    scale = max(float(np.abs(welfare).max()), np.finfo(float).tiny)
    plays: list[np.ndarray] = []
    for sign in (-1.0, 1.0):
        solution = linprog(
            sign * welfare / scale,
            A_ub=np.array(rows) / size,
            b_ub=np.zeros(len(rows)),
            A_eq=np.ones((1, count)),
            b_eq=np.ones(1),
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if not solution.success:
            raise RuntimeError(f"expected the linear program of correlated equilibria to be solved: {solution.message}")
        plays.append(np.clip(solution.x, 0, 1)[grid.order])
    totals = [float(play @ welfare[grid.order]) for play in plays]
    return CorrelatedEquilibria(totals[0], totals[1], plays[0], plays[1])


def mixed_equilibria(table: PayoffTable) -> MixedEquilibria:
    """All mixed equilibria of two clients that are no mixtures of others; pure ones are among them, and come first.

    Where none is degenerate, these are all. Their mixtures are vertices of the polytopes of best responses.

    Args:
      table: of all profiles of two clients.

    Raises:
      ValueError: if there are not two clients, or as ``pure_equilibria``.
    """
    grid = _grid(table)
    if grid.clients != 2:
        raise ValueError(f"expected two clients for mixed equilibria, got {grid.clients}; mixed_regret judges mixtures")
    first, second = grid.payoffs[..., 0], grid.payoffs[..., 1]
    precision = _LAST_BITS * precision_of(table.payoffs)
    *pair, degenerate = extreme_equilibria(first, second, precision=precision)
    mixtures = np.stack(pair, axis=1)
    mixtures = np.array(sorted(mixtures, key=lambda pair: ((pair > 0).sum(), (-pair).tolist())))
    values = np.stack([mixtures[:, 1] @ first.T, mixtures[:, 0] @ second], axis=1)
    return MixedEquilibria(mixtures, (mixtures * values).sum(axis=2), bool(degenerate.any()), len(mixtures) % 2 == 1)


def mixed_regret(table: PayoffTable, mixtures: Float[np.ndarray, "client strategy"]) -> Float[np.ndarray, " client"]:
    """``[N]``: what each client could gain in expectation by another strategy; all 0 in a mixed equilibrium.

    Args:
      table: of all profiles.
      mixtures: ``[N, K]``, the probabilities of each client's strategies.

    Raises:
      ValueError: if ``mixtures`` are no probabilities, or as ``pure_equilibria``.
    """
    grid, play = _grid(table), np.asarray(plain(mixtures), float)
    expected = (grid.clients, grid.strategies)
    if play.shape != expected or (play < 0).any() or not np.allclose(play.sum(axis=1), 1):
        raise ValueError(f"expected probabilities of shape {expected} with sums of 1, got {play.tolist()}")
    regret = np.empty(grid.clients)
    for client in range(grid.clients):
        utility = grid.payoffs[..., client]
        for other in reversed(range(grid.clients)):  # the last axis first, so that others stay where they are
            if other != client:
                utility = np.tensordot(utility, play[other], axes=(other, 0))
        regret[client] = utility.max() - play[client] @ utility
    return regret


class _Grid(NamedTuple):
    """Mean payoffs ``[K, ..., K, N]``, ``[P]`` the code of each profile of the table, and what counts as rounding."""

    payoffs: np.ndarray
    order: np.ndarray
    strategies: int
    clients: int
    rounding: float


def _grid(table: PayoffTable, payoffs: np.ndarray | None = None) -> _Grid:
    """Mean payoffs, or those that are given, ``[P, N]``."""
    mean = replace_diverged(table).payoffs.mean(axis=0) if payoffs is None else payoffs
    (count, clients), strategies = table.choices.shape, len(table.strategies)
    if strategies < 2:
        raise ValueError(f"expected at least 2 strategies, got {strategies}")
    order = table.choices @ strategies ** np.arange(clients)[::-1] if count == strategies**clients else np.zeros(1, int)
    if len(np.unique(order)) != strategies**clients:
        wanted = f"{strategies}^{clients} = {strategies**clients:,}"
        raise ValueError(f"expected a table of all {wanted} profiles, got {len(np.unique(table.choices, axis=0)):,}")
    by_code = np.empty_like(mean)
    by_code[order] = mean
    rounding = max(_ROUNDING, _LAST_BITS * precision_of(table.payoffs)) * float(np.abs(mean).max())
    return _Grid(by_code.reshape(*[strategies] * clients, clients), order, strategies, clients, rounding)


def _all_gains(grid: _Grid) -> np.ndarray:
    """``[N, P, K]`` by code."""
    return np.stack([_gains(grid, client) for client in range(grid.clients)])


def _gains(grid: _Grid, client: int) -> np.ndarray:
    """``[P, K]`` by code: what the client gains by each strategy; ``-inf`` for the strategy that it plays."""
    utility = np.moveaxis(grid.payoffs[..., client], client, -1)
    gains = utility[..., None, :] - utility[..., :, None]
    played = np.arange(grid.strategies)
    gains[..., played, played] = -np.inf
    return np.moveaxis(gains, -2, client).reshape(-1, grid.strategies)
