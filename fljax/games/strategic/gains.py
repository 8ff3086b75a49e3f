"""The gains of clients that deviate, alone or in pairs, and the certificate that says whether it pays.

A cell k is a client i and a strategy. ``g_{k,r} = u_i(k, the others honest; r) - u_i(honest; r)`` for seed r. The
largest mean gain of many cells is biased upwards: bounds hold for all cells at once, and the worst cell's gain is also
given with seeds that did not choose it. Gains of tried deviations are lower bounds of what a client can gain. A
mechanism may be truthful for each client alone and not for two together. A ``PayoffTable`` has every client's payoff in
every profile of strategies that was played.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from fljax.contributions import Bounds, error_bars, simultaneous_bounds
from fljax.core.names import plain
from fljax.core.values import is_whole

# How far gains are rounded, relative to the largest payoff: runs have payoffs in single precision.
_OF_RUNS, _OF_WHOLE_NUMBERS = 2.0**-22, 2.0**-51


class PayoffTable(NamedTuple):
    """Payoffs by seed, profile and client. A profile says which strategy every client plays.

    All profiles of one seed share data, initial weights and random keys, so that differences within a seed are paired.
    """

    payoffs: Real[np.ndarray, "seed profile client"]
    """NaN where the run diverged."""
    choices: Int[np.ndarray, "profile client"]
    """The strategy of each client, as its place in ``strategies``."""
    strategies: tuple[str, ...]
    """Names of strategies; the honest one is the first."""
    seeds: tuple[int, ...]
    outside: Float[np.ndarray, "seed client"] | None = None
    """What each client gets if it does not join; unknown if None."""
    outside_is: str = "given"
    """Of what it is: "standalone" models, the "mechanism" with one member, or "given" numbers; "" if unknown."""
    names: tuple[str, ...] = ()
    """Names of the clients; empty: they have none but their ids."""

    @property
    def honest(self) -> int:
        """The place of the profile in which all clients are honest.

        Raises:
          ValueError: if no such profile was played.
        """
        places = np.flatnonzero((self.choices == 0).all(axis=1))
        if not len(places):
            raise ValueError("expected the profile in which everybody is honest, got a table without it")
        return int(places[0])

    @property
    def smallest(self) -> float:
        """The smallest payoff or outside option that is known."""
        return min(float(np.nanmin(values)) for values in (self.payoffs, self.outside) if values is not None)


def are_whole(payoffs: Real[np.ndarray, "*shape"]) -> bool:
    """Whether payoffs are whole numbers, as integers or in double precision: these are not rounded. NaN may be one."""
    if payoffs.dtype.kind in "iu":
        return True
    return payoffs.dtype == float and bool(np.all(np.isnan(payoffs) | (payoffs == np.rint(payoffs))))


def precision_of(payoffs: Real[np.ndarray, "*shape"]) -> float:
    """The precision ``eps`` of payoffs: single precision if it holds all of them, whatever their dtype."""
    # Runs compute in single precision by default, and tables have their results in double precision.
    if are_whole(payoffs):
        return float(np.finfo(float).eps)
    single = payoffs.astype(np.float32)
    return float(np.finfo(single.dtype if np.array_equal(single, payoffs, equal_nan=True) else payoffs.dtype).eps)


def rounding_of(*payoffs: Real[np.ndarray, " ..."]) -> float:
    """How much a gain may differ by rounding, if these are all payoffs."""
    relative = _OF_WHOLE_NUMBERS if all(map(are_whole, payoffs)) else _OF_RUNS
    return relative * max(float(np.abs(each).max()) for each in payoffs)


def as_precise_as(
    changed: Real[np.ndarray, "*shape"], payoffs: Real[np.ndarray, "*others"]
) -> Real[np.ndarray, "*shape"]:
    """Payoffs ``changed`` by costs, rounded to single precision if ``payoffs`` are such numbers."""
    single = precision_of(payoffs) == float(np.finfo(np.float32).eps)
    return changed.astype(np.float32).astype(changed.dtype) if single else changed


CERTIFIED, VIOLATED, INCONCLUSIVE = "CERTIFIED", "VIOLATED", "INCONCLUSIVE"
UNSEEN = "NO EFFECT SEEN"  # a gain within the tolerance that is the same with all seeds: nothing bounds rare ones
_SHOWN = 8  # runs in a sentence
_LEVELS = (0.5, 0.9, 1.0)


class Gains(NamedTuple):
    """What changes with each unilateral deviation, in K cells with R seeds and N clients.

    Attributes:
      payoffs: ``[R, K, N]``, of all clients in the run of the deviation.
      clients: ``[K]``, the client that deviates.
      deviations: the K names of its strategies.
      honest: ``[R, N]``, payoffs in the honest run.
      outside: ``[R, N]``, what clients get if they do not join; None if it is not known.
      diverged: ``[R, K]``, whether the run of a cell has a payoff that is NaN.
      honest_diverged: ``[R]``, the same of the honest runs.
      seeds: the R seeds.
      outside_is: the kind of ``outside``, as in a ``PayoffTable``.
      names: of the N clients; empty: they have none but their ids.
    """

    payoffs: Float[np.ndarray, "seed cell client"]
    clients: Int[np.ndarray, " cell"]
    deviations: tuple[str, ...]
    honest: Float[np.ndarray, "seed client"]
    outside: Float[np.ndarray, "seed client"] | None
    diverged: Bool[np.ndarray, "seed cell"]
    honest_diverged: Bool[np.ndarray, " seed"]
    seeds: tuple[int, ...]
    outside_is: str = "given"
    names: tuple[str, ...] = ()

    @property
    def changes(self) -> Float[np.ndarray, "seed cell client"]:
        """``[R, K, N]``: what each client gets more than in the honest run of the same seed."""
        return self.payoffs - self.honest[:, None]

    @property
    def gains(self) -> Float[np.ndarray, "seed cell"]:
        """``[R, K]``: the gain of the client that deviates."""
        return self.changes[:, np.arange(len(self.clients)), self.clients]

    @property
    def losses(self) -> Float[np.ndarray, "seed cell"]:
        """``[R, K]``: the mean loss of another client; 0 where there is none."""
        others = self.changes.shape[2] - 1
        return (self.gains - self.welfare) / max(others, 1)

    @property
    def welfare(self) -> Float[np.ndarray, "seed cell"]:
        """``[R, K]``: the change of the sum of all payoffs."""
        return self.changes.sum(axis=2)

    @property
    def participation(self) -> Float[np.ndarray, "seed cell"] | None:
        """``[R, K]``: the change of the share of clients with more than their outside option; None if it is unknown."""
        if self.outside is None:
            return None
        deviating = (self.payoffs > self.outside[:, None]).mean(axis=2)
        return deviating - (self.honest > self.outside).mean(axis=1)[:, None]


class Control(NamedTuple):
    """What the functions of a certificate say of a mechanism whose gain is known.

    Attributes:
      name: of the mechanism.
      expected: the verdict that is right.
      verdict: the verdict.
      known: the largest gain that a client has by definition, or what it is at least.
      low: the largest lower bound of a cell; of a fee for honesty the smallest.
      high: the largest upper bound of a cell.
    """

    name: str
    expected: str
    verdict: str
    known: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the verdict is right."""
        return self.verdict == self.expected


class Attack(NamedTuple):
    """The strategy of one client that gains most among many, chosen on the first half of the seeds.

    Attributes:
      client: the one that attacks.
      strategy: the numbers that are not honest by dotted name, such as ``("factor.size", 12.0)``.
      candidates: how many strategies were tried.
      searched: its mean gain with the seeds that chose it, which is too large by selection.
      mean: its mean gain with the other seeds.
      low: of their t-interval.
      high: of their t-interval.
    """

    client: int
    strategy: tuple[tuple[str, float], ...]
    candidates: int
    searched: float
    mean: float
    low: float
    high: float


class Confirmed(NamedTuple):
    """The cell that gains most with the first half of the seeds, and its gain with the others.

    Attributes:
      cell: its place.
      mean: over the other seeds.
      low: of their t-interval.
      high: of their t-interval.
    """

    cell: int
    mean: float
    low: float
    high: float


class Rationality(NamedTuple):
    """Whether clients gain from joining an honest federation (individual rationality).

    Attributes:
      share: the mean over seeds of the share of clients with less than their outside option.
      low: of its t-interval over seeds, at least 0.
      high: of its t-interval over seeds, at most 1.
      surplus: bounds of what each client has beyond its outside option, each side for all clients at once.
    """

    share: float
    low: float
    high: float
    surplus: Bounds


class Harmful(NamedTuple):
    """The cells in which the others lose in the mean: a client whose gain is good for all does no harm.

    Attributes:
      cell: the place of the one with the largest mean gain.
      count: how many there are.
      low: their largest lower bound of a gain.
      high: their largest upper bound of a gain.
    """

    cell: int
    count: int
    low: float
    high: float


class Certificate(NamedTuple):
    """Whether a client gains more than a tolerance by deviating alone.

    Attributes:
      gains: of all cells by seed.
      bounds: of the mean gains of cells; each side holds for all cells at once.
      verdict: "VIOLATED" if some cell or the attack is violated; "CERTIFIED" if all cells are, and the attack's upper
        bound is within the tolerance; "NO EFFECT SEEN" if this is so of all cells; or else "INCONCLUSIVE".
      verdicts: of each cell, up to rounding: "CERTIFIED" if its upper bound is at most the tolerance, "VIOLATED" if its
        lower bound is above it, or else "INCONCLUSIVE". "NO EFFECT SEEN" in place of "CERTIFIED" if its gain is the
        same with all seeds: then bounds have no width, and do not say how often it is another one.
      epsilon_low: the largest lower bound of a cell.
      epsilon_high: the largest upper bound of a cell, the empirical epsilon of incentive compatibility.
      worst: the place of the cell with the largest mean gain.
      confirmed: the worst cell of the first half of the seeds, with its gain in the other half.
      seeds_needed: how many seeds would decide, if means and deviations stay; None if it is decided, or if no number
        would.
      rationality: None if outside options are not known.
      tolerance: gains up to it do not count, in units of payoffs.
      confidence: of each side of bounds, and of both sides of t-intervals.
      method: of the bounds.
      attack: the best of many strategies of one client; None: none was searched for.
      controls: results of the same functions where the answer is known; empty: there are none.
      left_out: requested deviations that were not played, with a clause that says why.
      forced: what differed from earlier runs, where they went on by force; "" if nothing did.
    """

    gains: Gains
    bounds: Bounds
    verdict: str
    verdicts: tuple[str, ...]
    epsilon_low: float
    epsilon_high: float
    worst: int
    confirmed: Confirmed
    seeds_needed: int | None
    rationality: Rationality | None
    tolerance: float
    confidence: float
    method: str
    attack: Attack | None = None
    controls: tuple[Control, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    forced: str = ""

    @property
    def harmful(self) -> Harmful | None:
        """The largest gain among the cells in which the others lose in the mean; None if they lose in none."""
        harm = self.gains.losses.mean(axis=0) > rounding_of(self.gains.payoffs, self.gains.honest)
        if not harm.any():
            return None
        low, high, mean = (
            np.where(harm, values, -np.inf) for values in (self.bounds.low, self.bounds.high, self.bounds.mean)
        )
        return Harmful(int(mean.argmax()), int(harm.sum()), float(low.max()), float(high.max()))

    def __repr__(self) -> str:
        """The verdict, the bounds of the largest gain, and the worst cell."""
        ends = f"[{self.epsilon_low:.4g}, {self.epsilon_high:.4g}]"
        attacked = " by the attack" * (self.verdict == VIOLATED and VIOLATED not in self.verdicts)
        words = f"{self.verdict} at {self.tolerance:g}{attacked}, largest gain in {ends}"
        count = f"{len(self.verdicts)} cells, {len(self.gains.seeds)} seeds"
        return f"Certificate({words}, worst {name_of_cell(self.gains, self.worst)}, {count})"


def name_of_cell(gains: Gains, cell: int) -> str:
    """``client 2: size x 10``."""
    client = int(gains.clients[cell])
    return f"client {gains.names[client] if gains.names else client}: {gains.deviations[cell]}"


def replace_diverged(table: PayoffTable, worst: float | None = None) -> PayoffTable:
    """The table in which NaN (from a diverged run) is the worst utility, in payoffs and in outside options.

    Args:
      table: of payoffs.
      worst: the utility of a diverged run; None: the smallest payoff of the table.

    Raises:
      ValueError: if the parts of the table do not fit, a payoff is infinite, or a client has no payoff in any run or no
        outside option with any seed.
    """
    _check_table(table)
    payoffs = np.asarray(table.payoffs, float)
    outside = None if table.outside is None else np.asarray(table.outside, float)
    rows = payoffs.reshape(-1, payoffs.shape[2])
    for words, values in (("payoff of every client in some run", rows), ("outside option of every client", outside)):
        never = np.zeros(0, int) if values is None else np.flatnonzero(np.isnan(values).all(axis=0))
        if len(never):
            raise ValueError(f"expected a finite {words}, got none of client {never[0]}")
    smallest = table.smallest if worst is None else float(worst)
    return table._replace(
        payoffs=np.where(np.isnan(payoffs), smallest, payoffs),
        outside=None if outside is None else np.where(np.isnan(outside), smallest, outside),
    )


def unilateral_gains(table: PayoffTable, *, worst: float | None = None) -> Gains:
    """``u(deviation; r) - u(honest; r)`` of all profiles of the table in which one client deviates.

    Args:
      table: of payoffs; profiles in which several clients deviate are ignored.
      worst: the utility of a diverged run; None: the smallest payoff of the table.

    Raises:
      ValueError: as ``replace_diverged``; or if the table has no honest profile, or none in which one client deviates.
    """
    complete = replace_diverged(table, worst)
    deviating = table.choices != 0
    rows = np.flatnonzero(deviating.sum(axis=1) == 1)
    if not len(rows):
        raise ValueError("expected profiles in which one client deviates, got a table without them")
    clients = deviating[rows].argmax(axis=1)
    diverged = np.any(np.isnan(table.payoffs), axis=2)
    return Gains(
        payoffs=complete.payoffs[:, rows],
        clients=clients,
        deviations=tuple(table.strategies[choice] for choice in table.choices[rows, clients]),
        honest=complete.payoffs[:, complete.honest],
        outside=complete.outside,
        diverged=diverged[:, rows],
        honest_diverged=diverged[:, complete.honest],
        seeds=table.seeds,
        outside_is=table.outside_is,
        names=table.names,
    )


def certificate(
    table: PayoffTable,
    *,
    tolerance: float,
    confidence: float = 0.95,
    method: str = "bonferroni",
    span: tuple[float, float] | None = None,
    worst: float | None = None,
    seed: int = 0,
) -> Certificate:
    """Whether a client gains more than ``tolerance`` by a deviation of the table, while the others are honest.

    Args:
      table: with the honest profile, and profiles in which one client deviates; at least 5 seeds.
      tolerance: gains up to it do not count, at least 0, in units of payoffs.
      confidence: of the bounds, for all cells at once.
      method: "bonferroni", "max_t" or "hoeffding", see ``fljax.contributions.simultaneous_bounds``.
      span: ``(a, b)``, bounds of all gains by definition; only for "hoeffding".
      worst: the utility of a diverged run; None: the smallest payoff of the table.
      seed: of the resamples of "max_t".

    Returns:
      The certificate. If the gain of a cell is the same with all seeds, no effect is seen, and rare gains have no
      bound. Gains are often skewed: a bound of a single cell then holds less often than ``confidence`` says, and
      verdicts on many cells more often.

    Raises:
      ValueError: as ``unilateral_gains``; for fewer than 5 seeds; if ``tolerance`` is negative.

    Source: regret as in Duetting et al., "Optimal auctions through deep learning" (ICML 2019); Balcan, Sandholm and
    Vitercik, "Estimating approximate incentive compatibility" (EC 2019).
    """
    gains = unilateral_gains(table, worst=worst)
    bounds = simultaneous_bounds(gains.gains, confidence, method=method, span=span, seed=seed)
    return concluded(gains, bounds, tolerance=tolerance, confidence=confidence, method=method)


def concluded(
    gains: Gains,
    bounds: Bounds,
    *,
    tolerance: float,
    confidence: float,
    method: str,
    attack: Attack | None = None,
    controls: tuple[Control, ...] = (),
) -> Certificate:
    """The certificate of gains and their bounds, with what stands beside them."""
    check_settings(tolerance=tolerance)
    low, high = float(bounds.low.max()), float(bounds.high.max())
    beyond = with_rounding(tolerance, gains)
    verdicts = verdicts_of(bounds, tolerance, beyond - tolerance)
    verdict = verdict_of_all(verdicts)
    if attack is not None and (attacked := verdict_of(attack.low, attack.high, beyond)) != CERTIFIED:
        verdict = VIOLATED if VIOLATED in (verdict, attacked) else INCONCLUSIVE
    needed = None
    if verdict == INCONCLUSIVE:
        needed = seeds_that_decide(bounds, attack, tolerance, beyond - tolerance, len(gains.seeds))
    return Certificate(
        gains,
        bounds,
        verdict,
        verdicts,
        low,
        high,
        int(bounds.mean.argmax()),
        confirm(gains.gains, confidence),
        needed,
        None if gains.outside is None else rationality_of(gains.honest, gains.outside, confidence),
        float(tolerance),
        float(confidence),
        method,
        attack,
        controls,
    )


def verdict_of(low: float, high: float, tolerance: float, width: float = -np.inf) -> str:
    """The verdict on a gain that is from ``low`` to ``high``; bounds of at most this width say nothing."""
    if high <= tolerance:
        return UNSEEN if high - low <= width else CERTIFIED
    return VIOLATED if low > tolerance else INCONCLUSIVE


def verdicts_of(bounds: Bounds, tolerance: float, rounding: float) -> tuple[str, ...]:
    """The verdict on each cell, if gains may differ by ``rounding``."""
    ends = zip(bounds.low.tolist(), bounds.high.tolist(), strict=True)
    return tuple(verdict_of(*each, tolerance + rounding, rounding) for each in ends)


def verdict_of_all(verdicts: Sequence[str]) -> str:
    """The verdict on several cells: violated if one is, and otherwise that of all of them, if it is the same."""
    return VIOLATED if VIOLATED in verdicts else verdicts[0] if len(set(verdicts)) == 1 else INCONCLUSIVE


def seeds_that_decide(
    bounds: Bounds, attack: Attack | None, tolerance: float, rounding: float, seeds: int
) -> int | None:
    """``(c sd / (tolerance - mean))^2``: of one cell above the tolerance, or of all cells; None: no number."""
    # The attack is a cell. Without variation no number decides. The c of more seeds is smaller, so that fewer may do.
    mean, high = bounds.mean, bounds.high
    if attack is not None:
        mean, high = np.append(mean, attack.mean), np.append(high, attack.high)
    gap, half = tolerance - mean, high - mean
    gap = np.where(np.abs(gap) <= rounding, 0.0, gap)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(2 * half > rounding, seeds * (half / gap) ** 2, np.inf)
    above = gap < 0
    count = needed[above].min() if above.any() else needed.max()
    return int(np.ceil(count)) if np.isfinite(count) else None


_LEAST = {"tolerance": 0, "identities": 1, "candidates": 0, "max_runs": 1}


def check_settings(prefix: str = "", **settings: Any) -> None:
    """Raises a ValueError for a setting of certificates that is out of range; in a command ``prefix`` begins names."""
    for name, value in settings.items():
        shown = f"{prefix}{name.replace('_', '-')}" if prefix else name
        real = issubclass(type(value), numbers.Real) and not isinstance(value, bool)
        if name == "confidence":
            if not (real and 0 < value < 1):
                raise ValueError(f"expected {shown} to be between 0 and 1, got {value!r}")
        elif not (real and _LEAST[name] <= value < np.inf) or (name != "tolerance" and not is_whole(value)):
            number = "" if name == "tolerance" else "a whole number of "
            raise ValueError(f"expected {shown} to be {number}at least {_LEAST[name]}, got {value!r}")


def with_rounding(tolerance: float, gains: Gains) -> float:
    """The tolerance, and a little more: a gain that is the tolerance by definition may differ in its last bits."""
    return tolerance + rounding_of(gains.payoffs, gains.honest)


def confirm(gains: Float[np.ndarray, "seed cell"], confidence: float = 0.95) -> Confirmed:
    """The cell with the largest mean over the first ``R // 2`` seeds, with its t-interval over the other seeds."""
    half = len(gains) // 2
    if not half:
        raise ValueError(f"expected at least 2 seeds, some to choose a cell and others to report it, got {len(gains)}")
    cell = int(gains[:half].mean(axis=0).argmax())
    bars = error_bars(gains[half:, cell], confidence)
    return Confirmed(cell, float(bars.mean), float(bars.low), float(bars.high))


def individual_rationality(table: PayoffTable, *, confidence: float = 0.95, worst: float | None = None) -> Rationality:
    """The share of clients with ``u_i(honest) < u_i^out``, and bounds of ``u_i(honest) - u_i^out`` by client.

    Args:
      table: with the honest profile and outside options; at least 5 seeds.
      confidence: of bounds and interval.
      worst: the utility of a diverged run; None: the smallest payoff of the table.

    Raises:
      ValueError: as ``replace_diverged``; or if outside options are not known, or for fewer than 5 seeds.
    """
    complete = replace_diverged(table, worst)
    if complete.outside is None:
        raise ValueError("expected a table with outside options for individual rationality, got one without them")
    return rationality_of(complete.payoffs[:, complete.honest], complete.outside, confidence)


def rationality_of(
    honest: Float[np.ndarray, "seed client"], outside: Float[np.ndarray, "seed client"], confidence: float
) -> Rationality:
    """Individual rationality of payoffs beside outside options; raises a ValueError for fewer than 5 seeds."""
    surplus = simultaneous_bounds(honest - outside, confidence)
    share = error_bars((honest < outside).mean(axis=1), confidence)
    low, high = np.clip([share.low, share.high], 0, 1)
    return Rationality(float(share.mean), float(low), float(high), surplus)


def diverged_cells(gains: Gains) -> str | None:
    """A sentence that names the diverged runs, which count as the worst utility; None: there are none."""
    named = [f"honest with seed {gains.seeds[seed]}" for seed in np.flatnonzero(gains.honest_diverged)]
    named += [
        f"{name_of_cell(gains, int(cell))} with seed {gains.seeds[seed]}" for seed, cell in np.argwhere(gains.diverged)
    ]
    if not named:
        return None
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    runs = "1 run diverged and counts" if len(named) == 1 else f"{len(named)} runs diverged and count"
    return f"{runs} as the worst utility: {', '.join(named[:_SHOWN])}{more}"


class ExPost(NamedTuple):
    """Quantiles over R seeds of the gains of K cells: a mechanism may be truthful in the mean, not with single seeds.

    Attributes:
      levels: the Q levels.
      quantiles: ``[Q, K]``, of each cell.
      largest: ``[Q]``, of the largest gain of a cell with each seed, ``max_k g_{k,r}``.
      above: ``[K]``, the share of seeds in which the cell gains more than the tolerance.
      violated: the share of seeds in which some cell does.
      violated_high: an upper bound of this share among all seeds that could be drawn (Clopper and Pearson).
    """

    levels: tuple[float, ...]
    quantiles: Float[np.ndarray, "level cell"]
    largest: Float[np.ndarray, " level"]
    above: Float[np.ndarray, " cell"]
    violated: float
    violated_high: float


def ex_post(certificate: Certificate, levels: Sequence[float] = _LEVELS) -> ExPost:
    """``quantile_r g_{k,r}`` of each cell k, and ``quantile_r max_k g_{k,r}``, over the seeds r of a certificate.

    A quantile is a gain that occurred: the smallest one with at least this share of seeds at or below it; 1.0 is the
    largest. The upper bound of the share of violated seeds holds with the confidence of the certificate.

    Args:
      certificate: of any mechanism.
      levels: between 0 and 1.

    Raises:
      ValueError: if a level is not between 0 and 1, or there is none.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial"
    (1934), for the bound.
    """
    chosen = np.asarray(plain(levels), float)
    if chosen.ndim != 1 or not chosen.size or not ((chosen >= 0) & (chosen <= 1)).all():
        raise ValueError(f"expected levels between 0 and 1, got {levels!r}")
    gains = certificate.gains.gains
    is_above = gains > with_rounding(certificate.tolerance, certificate.gains)
    seeds, violated = len(gains), int(is_above.any(axis=1).sum())
    return ExPost(
        tuple(chosen.tolist()),
        np.quantile(gains, chosen, axis=0, method="inverted_cdf"),
        np.quantile(gains.max(axis=1), chosen, method="inverted_cdf"),
        is_above.mean(axis=0),
        violated / seeds,
        share_at_most(violated, seeds, certificate.confidence),
    )


def share_at_most(count: int, seeds: int, confidence: float) -> float:
    """The largest p with which at most ``count`` of ``seeds`` draws are hits with probability ``1 - confidence``."""
    if count == seeds:
        return 1.0
    from scipy.stats import beta  # late: it takes a quarter of a second

    return float(beta.ppf(confidence, count + 1, seeds - count))


def left_out_sentences(label: str, left_out: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each deviation that was asked for and not played, with the reason, without a full stop."""
    return [f"deviation {name!r} is left out for {label}, {reason}" for name, reason in left_out]


def _check_table(table: PayoffTable) -> None:
    shape, places = table.payoffs.shape, table.choices
    if len(shape) != 3 or places.shape != shape[1:] or len(table.seeds) != shape[0] or not table.payoffs.size:
        raise ValueError(
            "expected payoffs by seed, profile and client, with a choice by profile and client, got shapes "
            f"{shape} and {places.shape} and {len(table.seeds)} seeds"
        )
    if table.outside is not None and table.outside.shape != (shape[0], shape[2]):
        raise ValueError(f"expected outside options by seed and client, got shape {table.outside.shape}")
    if places.min() < 0 or places.max() >= len(table.strategies):
        raise ValueError(
            f"expected choices from 0 to {len(table.strategies) - 1}, the places of strategies, "
            f"got some from {places.min()} to {places.max()}"
        )
    if np.isinf(table.payoffs).any() or (table.outside is not None and np.isinf(table.outside).any()):
        raise ValueError("expected finite payoffs, or NaN of diverged runs, got infinite ones")


class PairCertificate(NamedTuple):
    """Whether some pair gains more than a tolerance, of K pairs and deviations with R seeds.

    Attributes:
      pairs: ``[K, 2]``, who deviates.
      deviations: the K names of the strategies that both play.
      gains: ``[R, K]``, the mean gain of the two.
      least: ``[R, K]``, the smaller gain of the two.
      losses: ``[R, K]``, the mean loss of another client; 0 where there is none.
      bounds: of the means of ``gains``, for all cells at once.
      bounds_of_least: of the means of ``least``, for all cells at once.
      verdict: of all cells, as in a ``Certificate``, for pairs that share their gains.
      verdict_of_least: the same for pairs that cannot.
      worst: the place of the cell with the largest mean of ``gains``.
      confirmed: the worst cell of the first half of the seeds, with its gain in the other half.
      tolerance: gains up to it do not count.
      seeds: the R seeds.
    """

    pairs: Int[np.ndarray, "cell 2"]
    deviations: tuple[str, ...]
    gains: Float[np.ndarray, "seed cell"]
    least: Float[np.ndarray, "seed cell"]
    losses: Float[np.ndarray, "seed cell"]
    bounds: Bounds
    bounds_of_least: Bounds
    verdict: str
    verdict_of_least: str
    worst: int
    confirmed: Confirmed
    tolerance: float
    seeds: tuple[int, ...]


def pair_certificate(
    table: PayoffTable,
    *,
    tolerance: float,
    confidence: float = 0.95,
    method: str = "bonferroni",
    worst: float | None = None,
) -> PairCertificate:
    """Whether two clients gain more than ``tolerance`` by the same deviation, while the others are honest.

    ``g_{k,r} = (g_i + g_j) / 2`` for the pair (i, j) of cell k and seed r, with ``g_i = u_i(k; r) - u_i(honest; r)``,
    and ``min(g_i, g_j)`` for pairs that cannot share.

    Args:
      table: of ``payoffs(shape="pairs")``, or another one with the honest profile; at least 5 seeds. Profiles are
        ignored unless exactly two clients play one strategy.
      tolerance: gains up to it do not count, at least 0, in units of payoffs.
      confidence: of the bounds.
      method: "bonferroni" or "max_t".
      worst: the utility of a diverged run; None: the smallest payoff of the table.

    Raises:
      ValueError: if the table has no such profile, for fewer than 5 seeds, or if ``tolerance`` is negative.

    Source: Laffont and Martimort, "Collusion under asymmetric information" (1997), for side payments in a coalition
    that lies together.
    """
    check_settings(tolerance=tolerance)
    complete = replace_diverged(table, worst)
    deviating = table.choices != 0
    alike = table.choices.max(axis=1) * deviating.sum(axis=1) == table.choices.sum(axis=1)
    rows = np.flatnonzero((deviating.sum(axis=1) == 2) & alike)
    if not len(rows):
        raise ValueError("expected profiles in which two clients play one strategy, got a table without them")
    pairs = np.argsort(~deviating[rows], axis=1, kind="stable")[:, :2]
    changes = complete.payoffs[:, rows] - complete.payoffs[:, [complete.honest]]
    of_pair = np.take_along_axis(changes, pairs[None], axis=2)
    gains, least = of_pair.mean(axis=2), of_pair.min(axis=2)
    losses = (of_pair.sum(axis=2) - changes.sum(axis=2)) / max(changes.shape[2] - 2, 1)
    bounds, bounds_of_least = (simultaneous_bounds(values, confidence, method=method) for values in (gains, least))
    rounding = rounding_of(complete.payoffs)
    shared, separate = (verdict_of_all(verdicts_of(each, tolerance, rounding)) for each in (bounds, bounds_of_least))
    return PairCertificate(
        pairs,
        tuple(table.strategies[choice] for choice in table.choices[rows].max(axis=1)),
        gains,
        least,
        losses,
        bounds,
        bounds_of_least,
        shared,
        separate,
        int(bounds.mean.argmax()),
        confirm(gains, confidence),
        float(tolerance),
        table.seeds,
    )
