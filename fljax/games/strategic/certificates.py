"""The certificate of a mechanism: every client deviates in turn, one attacks, and controls show that lies are seen.

Certificates and graphs of best responses become labelled arrays, which are written and read.

The draws of the search depend only on its seed. It changes fields of tried deviations, so the algorithm reads them, and
the runs have a program of the same form.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import xarray as xr

from fljax.contributions import Bounds, simultaneous_bounds
from fljax.contributions.tables import LEAST_SEEDS
from fljax.core.files import write
from fljax.core.names import unknown
from fljax.core.sameness import FORCED, forced_in
from fljax.engine import Plan, plan_of
from fljax.engine.rounds.states import Seeds, seeds_of
from fljax.games.strategic.equilibria import BestResponseGraph
from fljax.games.strategic.gains import (
    Attack,
    Certificate,
    Control,
    Gains,
    certificate,
    check_settings,
    concluded,
    confirm,
    ex_post,
    unilateral_gains,
)
from fljax.games.strategic.playing import (
    Outside,
    Stages,
    checked_outside,
    checked_plan,
    differing,
    functions_of,
    kind_of,
    numbers_of,
    payoffs,
    runs_outside,
    strategy_of,
)
from fljax.games.strategic.splitting import (
    FEE,
    check_names,
    check_splits,
    fee_for_honesty,
    known_mechanisms,
    split_payoffs,
    with_splits,
)
from fljax.games.strategic.utilities import Utility, UtilityFunction
from fljax.games.tables import Cost
from fljax.games.values import estimate, in_words
from fljax.protocol import Algorithm, Federation
from fljax.results import stores
from fljax.scenarios import Deviation, Strategy
from fljax.scenarios.strategic import HONEST
from fljax.training import Local

_BOUNDS = ("mean", "error", "low", "high")
_NEEDED = ("payoff", "honest", "diverged", "honest_diverged", "deviator", "deviation", *_BOUNDS)
_SETTINGS = ("tolerance", "confidence", "critical", "method")
# Beside them, what ``certificate_of`` reads; the rest follows from these.
_OPTIONAL = ("outside", "attack_", "control_", "left_out")
# Where labels and certificates stand in a file.
_IN_FILE: Final = {"listed": "certificates", "group": "certificate"}
_OF_ATTACK = ("client", "candidates", "searched", "mean", "low", "high")
_STRATEGY, _LEFT_OUT = ("field", "number"), ("name", "reason")


def certificate_dataset(certificate: Certificate) -> xr.Dataset:
    """The certificate as labelled arrays over ``seed``, ``cell`` and ``client``.

    Returns:
      By cell: ``deviator``, ``deviation``, ``verdict_of_cell``, and ``mean``, ``error``, ``low`` and ``high`` of the
      gain. By seed, too: ``gain``, ``loss`` (the mean loss of another client), ``welfare`` (its change) and, with
      outside options, ``participation``; of each of these three ``..._low`` and ``..._high`` by cell, Bonferroni's
      bounds that hold for all cells at once. ``payoff`` is by client, too. ``honest`` and ``outside`` are payoffs by
      seed and client, and ``outside_is`` says of what; ``name`` has the names of clients. Single numbers: ``verdict``,
      ``epsilon_low``, ``epsilon_high``, ``worst``, ``seeds_needed`` (NaN: none), ``confirmed_...``, ``harmful_...`` if
      the others lose in some cell, and with outside options ``irrational``, the share of clients with less than theirs,
      with ``irrational_low``, ``irrational_high``, and ``surplus`` by client with ``surplus_low``, ``surplus_high``.
      For single seeds (``ex_post``): ``quantile`` by ``level`` and cell, ``largest_quantile`` by level, ``above`` by
      cell, ``violated_seeds`` and ``violated_seeds_high``. With an attack ``attack_...``, with its numbers by
      ``attack_field``; with controls ``control_...`` by ``control``; ``left_out_name`` and
      ``left_out_reason`` of deviations that were not played.
    """
    gains, cells = certificate.gains, ("seed", "cell")
    single, harmful, attack = ex_post(certificate), certificate.harmful, certificate.attack
    changes = {"loss": gains.losses, "welfare": gains.welfare, "participation": gains.participation}
    known = {name: values for name, values in changes.items() if values is not None}
    of_changes = {name: simultaneous_bounds(values, certificate.confidence) for name, values in known.items()}
    variables: dict[str, Any] = {
        "gain": (cells, gains.gains),
        "loss": (cells, gains.losses),
        "welfare": (cells, gains.welfare),
        "payoff": ((*cells, "client"), gains.payoffs),
        "honest": (("seed", "client"), gains.honest),
        "outside_is": ((), gains.outside_is),
        "diverged": (cells, gains.diverged.astype(np.int8)),
        "honest_diverged": ("seed", gains.honest_diverged.astype(np.int8)),
        "verdict_of_cell": ("cell", np.asarray(certificate.verdicts, dtype=str)),
        **{name: ("cell", getattr(certificate.bounds, name)) for name in _BOUNDS},
        "critical": ((), certificate.bounds.critical),
        **{name: ((), getattr(certificate, name)) for name in ("verdict", "epsilon_low", "epsilon_high", "worst")},
        "seeds_needed": ((), np.nan if certificate.seeds_needed is None else float(certificate.seeds_needed)),
        **{f"confirmed_{name}": ((), value) for name, value in certificate.confirmed._asdict().items()},
        **({} if harmful is None else {f"harmful_{name}": ((), value) for name, value in harmful._asdict().items()}),
        **{name: ((), getattr(certificate, name)) for name in ("tolerance", "confidence", "method")},
        "quantile": (("level", "cell"), single.quantiles),
        "largest_quantile": ("level", single.largest),
        "above": ("cell", single.above),
        "violated_seeds": ((), single.violated),
        "violated_seeds_high": ((), single.violated_high),
        **{
            f"{name}_{end}": ("cell", getattr(bounds, end))
            for name, bounds in of_changes.items()
            for end in ("low", "high")
        },
        **({} if attack is None else {f"attack_{name}": ((), getattr(attack, name)) for name in _OF_ATTACK}),
        **_columns("attack", _STRATEGY, () if attack is None else attack.strategy, "attack_field"),
        **_columns("control", Control._fields, certificate.controls, "control"),
        **_columns("left_out", _LEFT_OUT, certificate.left_out, "left_out"),
    }
    if gains.outside is not None:
        variables["outside"] = ("seed", "client"), gains.outside
        variables["participation"] = cells, gains.participation
    if (rationality := certificate.rationality) is not None:
        shares = {"": rationality.share, "_low": rationality.low, "_high": rationality.high}
        variables |= {f"irrational{end}": ((), value) for end, value in shares.items()}
        surplus = {"": rationality.surplus.mean, "_low": rationality.surplus.low, "_high": rationality.surplus.high}
        variables |= {f"surplus{end}": ("client", values) for end, values in surplus.items()}
    coordinates = {
        "seed": list(gains.seeds),
        "client": np.arange(gains.honest.shape[1]),
        "name": ("client", np.asarray(gains.names or np.arange(gains.honest.shape[1]), dtype=str)),
        "level": list(single.levels),
        "deviator": ("cell", gains.clients),
        "deviation": ("cell", np.asarray(gains.deviations, dtype=str)),
    }
    return xr.Dataset(variables, coordinates, {FORCED: certificate.forced} if certificate.forced else {})


def _columns(start: str, names: Sequence[str], rows: Sequence[Sequence[Any]], dimension: str) -> dict[str, Any]:
    """Rows as variables ``START_NAME``, one for each column; none without rows."""
    columns = zip(names, zip(*rows, strict=True), strict=True) if rows else ()
    return {f"{start}_{name}": (dimension, np.asarray(values)) for name, values in columns}


def _rows(arrays: xr.Dataset, start: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of ``_columns``."""
    columns = [arrays[f"{start}_{name}"].values.tolist() for name in names if f"{start}_{name}" in arrays]
    return list(zip(*columns, strict=True))


def certificate_of(dataset: xr.Dataset) -> Certificate:
    """The certificate of labelled arrays, the inverse of ``certificate_dataset``.

    Raises:
      ValueError: if the dataset is no certificate.
    """
    lacking = [name for name in (*_NEEDED, *_SETTINGS) if name not in dataset.variables]
    if lacking:
        raise ValueError(f"expected a certificate, got a dataset without {', '.join(lacking)}")
    arrays = dataset.transpose("seed", "cell", "client", ...)
    names = tuple(map(str, arrays["name"].values.tolist() if "name" in arrays.coords else ()))
    gains = Gains(
        payoffs=np.asarray(arrays["payoff"].values, float),
        clients=np.asarray(arrays["deviator"].values, int),
        deviations=tuple(map(str, arrays["deviation"].values.tolist())),
        honest=np.asarray(arrays["honest"].values, float),
        outside=np.asarray(arrays["outside"].values, float) if "outside" in arrays else None,
        diverged=arrays["diverged"].values.astype(bool),
        honest_diverged=arrays["honest_diverged"].values.astype(bool),
        seeds=tuple(arrays["seed"].values.tolist()),
        # Older files have neither: there a client alone has the mechanism with one member, and ids are names.
        outside_is=str(arrays["outside_is"].values) if "outside_is" in arrays else "mechanism",
        names=() if names == tuple(map(str, range(arrays.sizes["client"]))) else names,
    )
    bounds = Bounds(*(np.asarray(arrays[name].values, float) for name in _BOUNDS), critical=float(arrays["critical"]))
    attack, left_out = None, tuple(_rows(arrays, "left_out", _LEFT_OUT))
    if "attack_client" in arrays:
        strategy: Any = tuple(_rows(arrays, "attack", _STRATEGY))
        attack = Attack(strategy=strategy, **{name: arrays[f"attack_{name}"].item() for name in _OF_ATTACK})
    result = concluded(
        gains,
        bounds,
        tolerance=float(arrays["tolerance"]),
        confidence=float(arrays["confidence"]),
        method=str(arrays["method"].values),
        attack=attack,
        controls=tuple(Control(*row) for row in _rows(arrays, "control", Control._fields)),
    )
    return result._replace(forced=forced_in(dataset), left_out=left_out)


def response_dataset(graph: BestResponseGraph) -> xr.Dataset:
    """The graph as labelled arrays over ``edge``, ``profile`` and ``client``.

    Returns:
      By edge: ``source``, ``target``, ``mover`` and ``gain``. By profile: ``sink``, ``in_cycle``, whether one of the
      cycles goes through it, and ``choice`` by client, too. ``strategy`` has the names of strategies.
    """
    in_cycle = np.zeros(len(graph.sinks), np.int8)
    in_cycle[[place for cycle in graph.cycles for place in cycle]] = 1
    return xr.Dataset(
        {
            "source": ("edge", graph.source),
            "target": ("edge", graph.target),
            "mover": ("edge", graph.client),
            "gain": ("edge", graph.gain),
            "sink": ("profile", graph.sinks.astype(np.int8)),
            "in_cycle": ("profile", in_cycle),
            "choice": (("profile", "client"), graph.choices),
        },
        {"client": np.arange(graph.choices.shape[1]), "strategy": np.asarray(graph.strategies, dtype=str)},
    )


class SavedCertificates(NamedTuple):
    """The content of a file of certificates.

    Attributes:
      certificates: by label, for example of the algorithm.
      config: the text of the config that they are of; "" without one.
      fljax: the version that wrote them.
      question: what was asked, as text; "" if it is not known.
      data: a checksum of the data that they are of; "" if it is not known.
      record: of settings and code, as JSON; "" of an older fljax.
    """

    certificates: dict[str, Certificate]
    config: str
    fljax: str
    question: str = ""
    data: str = ""
    record: str = ""


def save_certificates(
    path: str | pathlib.Path,
    certificates: dict[str, Certificate],
    config: str = "",
    *,
    question: str = "",
    data: str = "",
) -> None:
    """Writes certificates into one netCDF file, atomically, each in a group of its own.

    A group has what ``certificate_of`` reads of a ``certificate_dataset``, and not what follows from it.

    Args:
      path: the file.
      certificates: by label, for example of the algorithm.
      config: the text of the config that they are of.
      question: what was asked, as text.
      data: a checksum of the data.

    Raises:
      OSError: if the disk has no room, or the folder does not exist.
    """
    root = stores.origin(config).assign(question=((), question), data=((), data))
    datasets = {label: _necessary(entry) for label, entry in certificates.items()}
    write(pathlib.Path(path), stores.encoded_by_label(root, datasets, **_IN_FILE))


def _necessary(certificate: Certificate) -> xr.Dataset:
    """The variables that are saved: writing all of them takes three times as long."""
    dataset = certificate_dataset(certificate)
    names = [str(name) for name in dataset.data_vars]
    return dataset[[name for name in names if name in (*_NEEDED, *_SETTINGS) or name.startswith(_OPTIONAL)]]


def load_certificates(path: str | pathlib.Path) -> SavedCertificates:
    """Reads the certificates of a file that ``save_certificates`` wrote.

    Raises:
      ValueError: if the file cannot be read, is damaged, or has no certificates.
    """
    root, datasets = stores.read_by_label(pathlib.Path(path), "certificates", **_IN_FILE)
    certificates = {label: certificate_of(dataset) for label, dataset in datasets.items()}
    texts = {name: str(root[name].values) if name in root else "" for name in SavedCertificates._fields[1:]}
    return SavedCertificates(certificates, **texts)


METHODS = ("bonferroni", "max_t")
_HONEST = numbers_of(HONEST)
_SHARES = ("effort", "flip")
_LEVELS = ("noise", "noise_decay")
_WITHOUT_EFFECT = {"noise_decay"}  # alone
_FLIPPED = 0.15  # how often an update is flipped


def certify(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    tolerance: float,
    seeds: Seeds = 20,
    deviations: Mapping[str, Strategy | Deviation] | None = None,
    deviators: Sequence[int] | None = None,
    utility: Utility | UtilityFunction | None = None,
    confidence: float = 0.95,
    method: str = "bonferroni",
    outside: Outside = "standalone",
    standalone: Local | None = None,
    identities: int = 1,
    candidates: int = 50,
    controls: bool = True,
    max_runs: int = 20_000,
    **of_runs: Any,
) -> Certificate:
    """Whether a client gains more than ``tolerance`` by lying to a mechanism, training less or sending another update.

    Every client plays each deviation in turn while the others are honest. Then the client that gains most with the
    first half of the seeds tries ``candidates`` other strategies, and the best of them is reported with the other half.

    Args:
      plan: an ``Algorithm``, or a ``Plan`` whose floats change without recompiling.
      federation: of N clients, shared by all seeds or one per seed (``fljax.data.stack``).
      rounds: of every run.
      tolerance: gains up to it do not count, at least 0, in units of the utility.
      seeds: integers that key all randomness of a run; 20 means the seeds 0 to 19. At least 5.
      deviations: strategies of one client, or functions, by name, as for ``payoffs``; None: ``usual_deviations`` in
        what the algorithm reads. The attack varies numbers of strategies.
      deviators: ids of the clients that deviate; None: each in turn.
      utility: the payoff of a client, as for ``payoffs``.
      confidence: of the bounds, for all cells at once.
      method: "bonferroni", or "max_t", which takes the correlation of cells into account.
      outside: payoffs of clients that do not join, for individual rationality, as for ``payoffs``; None: they are not
        known.
      standalone: as for ``payoffs``.
      identities: as how many each deviator also joins, as for ``split_payoffs``; 1: no client splits.
      candidates: strategies that the attacker tries; 0: there is no attack.
      controls: whether mechanisms with known gains are certified beside it.
      max_runs: more runs are refused.
      **of_runs: further arguments of ``fljax.runs``, as for ``coalitions``.

    Returns:
      The certificate. Read ``rationality`` first, then ``controls``: where one has not passed, the verdict says little.

    Raises:
      ValueError: for fewer than 5 seeds, or a number that is out of range, before anything runs; or as ``payoffs``.

    Source: Balcan, Sandholm and Vitercik, "Estimating approximate incentive compatibility" (EC 2019); Duetting et al.,
    "Optimal auctions through deep learning" (ICML 2019), for regret.
    """
    chosen, numbers = plan_of(plan), seeds_of(seeds)
    check_settings(tolerance=tolerance, confidence=confidence, identities=identities, candidates=candidates)
    if len(numbers) < LEAST_SEEDS:
        raise ValueError(f"expected at least {LEAST_SEEDS} seeds for a certificate, got {len(numbers)}")
    if method not in METHODS:
        raise ValueError(unknown("method", method, METHODS))
    tried = checked_plan(chosen, federation, deviations, utility).deviations or {}
    check_names(tried, identities)
    if identities > 1:
        check_splits(chosen, federation, identities)
    deviating = federation.clients.id.shape[-1] if deviators is None else len(deviators)
    candidates = candidates if len(functions_of(tried)) < len(tried) else 0  # functions have no numbers to search among
    clients = federation.clients.id.shape[-1]
    outside = checked_outside(outside, clients, len(numbers), Utility() if utility is None else utility)
    sizes = {"rounds": rounds, "seeds": len(numbers), "cells": len(tried) * deviating, "candidates": candidates}
    cost = cost_of(chosen, federation, outside=outside, splits=deviating * (identities > 1), **sizes)
    check_number(cost, max_runs)
    stages = Stages(of_runs, cost.runs)
    same: dict[str, Any] = {"rounds": rounds, "seeds": numbers, "utility": utility, "max_runs": max_runs}
    with stages.of("deviations", 0) as first:
        alone = {"outside": outside, "standalone": standalone}
        table = payoffs(chosen, federation, deviations=tried, deviators=deviators, **alone, **same, **first)
    played_alone = unilateral_gains(table)
    before = len(numbers) * (len(table.choices) + runs_outside(outside, clients))
    if identities > 1:
        with stages.of("splits", before) as others:
            others |= {"deviators": deviators, "outside": None}
            splits = split_payoffs(chosen, federation, identities=identities, **same, **others)
        before += len(numbers) * len(splits.choices)
        table = with_splits(table, splits)
    result = certificate(table, tolerance=tolerance, confidence=confidence, method=method)
    attack = None
    if candidates:
        place = confirm(played_alone.gains, confidence).cell  # a split has no numbers to search around
        strategies = candidate_strategies(tried, played_alone.deviations[place], candidates)
        attacker = [int(played_alone.clients[place])]
        same["deviations"] = strategies
        with stages.of("attack", before) as second:
            played = payoffs(chosen, federation, deviators=attacker, outside=None, **same, **second)
        # A run that diverged counts the same in both.
        attack = best_attack(unilateral_gains(played, worst=table.smallest), strategies, confidence)
    return judged(result, tolerance, attack=attack, known=controls)


def cost_of(
    plan: Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: int,
    cells: int,
    outside: Outside = "standalone",
    candidates: int = 0,
    splits: int = 0,
) -> Cost:
    """The cost of a certificate, without its controls, whose programs are small; nothing is computed."""
    clients = federation.clients.id.shape[-1]
    together = 1 + cells + (1 + candidates if candidates else 0) + (1 + splits if splits else 0)
    alone = runs_outside(outside, clients)
    lonely, together = (alone, together) if kind_of(outside) == "mechanism" else (0, together + alone)
    members = np.concatenate([np.ones((together, clients), bool), np.eye(clients, dtype=bool)[:lonely]])
    return estimate(plan, federation, members, rounds, seeds)


def check_number(cost: Cost, max_runs: int) -> None:
    """Raises a ValueError if there are more runs than ``max_runs``."""
    if cost.runs > max_runs:
        raise ValueError(
            f"expected at most {max_runs:,} runs, got {in_words(cost)}; max_runs allows more, and fewer seeds, "
            "deviations or candidates need fewer"
        )


def judged(result: Certificate, tolerance: float, *, attack: Attack | None = None, known: bool = False) -> Certificate:
    """The certificate at another tolerance, with ``attack`` or its own; nothing of the mechanism runs again."""
    # With ``known``, mechanisms with known gains are certified now. Otherwise the mechanisms of ``result`` stay.
    check_settings(tolerance=tolerance)
    controls = known_mechanisms() if known else tuple(entry for entry in result.controls if entry.name != FEE)
    if controls:
        controls += (fee_for_honesty(result.gains, tolerance, result.confidence, result.method),)
    again = concluded(
        result.gains,
        result.bounds,
        tolerance=tolerance,
        confidence=result.confidence,
        method=result.method,
        attack=result.attack if attack is None else attack,
        controls=controls,
    )
    return again._replace(left_out=result.left_out)


def best_attack(gains: Gains, strategies: Mapping[str, Strategy], confidence: float) -> Attack:
    """The strategy that gains most with the first half of the seeds, and its gain with the other half."""
    chosen = confirm(gains.gains, confidence)
    strategy = differing(numbers_of(strategies[gains.deviations[chosen.cell]]))
    searched = float(gains.gains[: len(gains.seeds) // 2, chosen.cell].mean())
    client = int(gains.clients[chosen.cell])
    return Attack(client, tuple(strategy.items()), len(strategies), searched, chosen.mean, chosen.low, chosen.high)


def candidate_strategies(
    deviations: Mapping[str, Strategy | Deviation], start: str, count: int, seed: int = 0
) -> dict[str, Strategy]:
    """Strategies by name, none honest: half of them around ``start``, the others drawn among all fields."""
    # Around it, each number that is not honest is ``v 2^z + z' / 4`` with normal z and z', and other fields deviate now
    # and then. Elsewhere about half of the fields deviate: shares are uniform, the coefficient of the update is
    # ``2^U(-2, 3)`` and sometimes negative, factors of reports are ``10^U(-1.5, 1.5)``, and shifts ``U(-1, 2)``.
    # Source: ours; random search as in Bergstra and Bengio, "Random search for hyper-parameter optimization" (2012).
    drawn = np.random.default_rng(seed)
    fields = [name for name in _HONEST if any(name in numbers_of(strategy) for strategy in deviations.values())]
    origin = numbers_of(deviations[start])
    candidates: list[dict[str, float]] = []
    while len(candidates) < count:
        near = 2 * len(candidates) < count
        numbers = _around(origin, fields, drawn) if near else _anywhere(fields, drawn)
        if differing(numbers).keys() - _WITHOUT_EFFECT:
            candidates.append(numbers)
    return {f"candidate {place}": strategy_of(numbers) for place, numbers in enumerate(candidates)}


def _around(origin: Mapping[str, float], fields: list[str], drawn: np.random.Generator) -> dict[str, float]:
    numbers = {field: origin.get(field, _HONEST[field]) for field in fields}
    further = 1 / (1 + len(fields))
    for field in fields:
        z, shift, other = drawn.normal(), drawn.normal(), drawn.uniform()
        if numbers[field] != _HONEST[field]:
            numbers[field] = _within(field, numbers[field] * 2**z + shift / 4)
        elif other < further:
            numbers[field] = _draw(field, drawn)
    return numbers


def _anywhere(fields: list[str], drawn: np.random.Generator) -> dict[str, float]:
    return {field: _draw(field, drawn) if drawn.uniform() < 0.5 else _HONEST[field] for field in fields}


def _draw(field: str, drawn: np.random.Generator) -> float:
    kind = field.partition(".")[0]
    if kind in _SHARES:
        return float(drawn.uniform())
    if kind == "factor":
        return float(10 ** drawn.uniform(-1.5, 1.5))
    if kind == "own":
        return float(2 ** drawn.uniform(-2, 3) * (-1 if drawn.uniform() < _FLIPPED else 1))
    return _within(field, float(drawn.uniform(-1, 2)))  # shifts, and terms that are added to the update


def _within(field: str, value: float) -> float:
    """The number in the range that the field allows."""
    if field in _SHARES:
        return float(np.clip(value, 0, 1))
    return abs(float(value)) if field in _LEVELS else float(value)
