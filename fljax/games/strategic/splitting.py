"""Lies with a program of their own: joining as several identities (false names), and lies whose gain is known.

A client that joins as several identities deals its rows to places after the others. Honest runs and runs of single
clients have the same places, empty and no members: all runs share one program.

Lies whose gain is known are the positive controls of a certificate:

- Mean estimation: client i has ``F_i(w) = (w - c_i)^2 / 2``, and uniform FedAvg ends at ``w* = sum_i s_i c_i / sum_i
  s_i`` if clients multiply their updates by ``s_i``. With c = (0, 1, 5) the last client gains 63/32 by s = 2, which
  must be flagged; with equal c nobody gains, and no effect must be seen. Both are runs of one small program.
- A fee for honesty beyond all differences between payoffs, in the runs of the certificate itself: every deviation pays.
  If one is not flagged, seeds are too few for its noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Key, PyTree

from fljax.algorithms import fedavg
from fljax.contributions import simultaneous_bounds
from fljax.contributions.tables import LEAST_SEEDS
from fljax.core.values import is_whole
from fljax.data import split_identities
from fljax.engine import Over, Plan, plan_of, rehearse, runs
from fljax.engine.rounds.states import Seeds, seeds_of
from fljax.games.strategic.gains import (
    UNSEEN,
    VIOLATED,
    Control,
    Gains,
    PayoffTable,
    as_precise_as,
    certificate,
    verdict_of,
    with_rounding,
)
from fljax.games.strategic.playing import (
    HONESTY,
    Outside,
    Stages,
    check_profiles,
    checked_outside,
    checked_plan,
    kind_of,
    messages_of,
    outside_options,
    payoffs,
    played_by,
    profiles,
    runs_outside,
    with_losses_lost,
)
from fljax.games.strategic.utilities import (
    TOKENS,
    Utility,
    UtilityFunction,
    earnings_of,
    efforts_of,
    paid_tokens,
    rounds_trained,
    steps_of_round,
    utilities_of_runs,
)
from fljax.protocol import Algorithm, ClientData, Examples, Federation, Rows, Task
from fljax.scenarios import Strategy
from fljax.training import Local

DIFFERENT, ALIKE = (0.0, 1.0, 5.0), (1.0, 1.0, 1.0)
KNOWN_GAIN = 63 / 32  # (2 - 5)^2 / 2 - (11/4 - 5)^2 / 2
FEE = "a fee for honesty"
_ROUNDS = 60  # the distance to the fixed point is below 1e-6 then
_SLACK = 1e-3


def _initial(key: Key[Array, ""]) -> PyTree:
    return {"w": jnp.zeros(())}


def _predict(params: PyTree, x: Float[Array, "b 1"], key: Key[Array, ""] | None = None) -> Float[Array, " b"]:
    return params["w"] + 0 * x[:, 0]


def _loss(predicted: Float[Array, " b"], y: Float[Array, " b"]) -> Float[Array, " b"]:
    return jnp.square(predicted - y) / 2


def mean_estimation(targets: tuple[float, ...]) -> tuple[Plan, Federation]:
    """Uniform FedAvg with one step of length 1/4 a round, and clients with one row each, their target."""
    # Source: the setting of Dorner et al., "Incentivizing honesty among competitors in collaborative learning and
    # optimization" (NeurIPS 2023), with one sample and without competition.
    count = len(targets)
    rows = Rows(jnp.arange(count, dtype=jnp.int32)[:, None], jnp.ones(count, jnp.int32))
    none = rows._replace(size=jnp.zeros(count, jnp.int32))
    examples = Examples(jnp.zeros((count, 1), jnp.float32), jnp.asarray(targets, jnp.float32))
    federation = Federation(examples, ClientData(jnp.arange(count, dtype=jnp.int32), rows, none, rows))
    task, local = Task(_initial, _predict, _loss), Local(0.25, 1, steps=1)
    return Plan(fedavg, {"task": task, "local": local, "clients_per_round": None, "weights": "uniform"}), federation


def known_mechanisms() -> tuple[Control, ...]:
    """Mean estimation, in which a client doubles its update: with different means it pays, with equal ones not."""
    cases = (("different", DIFFERENT, VIOLATED, KNOWN_GAIN), ("equal", ALIKE, UNSEEN, 0.0))
    controls, lie = list[Control](), {"update times 2": Strategy(own=2.0)}
    for words, targets, expected, known in cases:
        plan, federation = mean_estimation(targets)
        table = payoffs(plan, federation, rounds=_ROUNDS, seeds=LEAST_SEEDS, deviations=lie, outside=False)
        # Just below the gain that it must flag, and just above the one that it must not.
        result = certificate(table, tolerance=max(known - _SLACK, _SLACK))
        name = f"mean estimation, {words} means, update times 2"
        controls.append(Control(name, expected, result.verdict, known, result.epsilon_low, result.epsilon_high))
    return tuple(controls)


def fee_for_honesty(gains: Gains, tolerance: float, confidence: float, method: str) -> Control:
    """``g + fee`` of all cells, with ``fee = tolerance + 2 (max u - min u)``: above the tolerance with every seed."""
    # It is flagged if every cell is, so ``low`` is the smallest lower bound.
    most = max(float(gains.payoffs.max()), float(gains.honest.max()))
    least = min(float(gains.payoffs.min()), float(gains.honest.min()))
    fee = tolerance + (2 * (most - least) or 1.0)  # 1 where all payoffs are equal
    bounds = simultaneous_bounds(gains.gains + fee, confidence, method=method)
    low, high = float(bounds.low.min()), float(bounds.high.max())
    verdict = verdict_of(low, high, with_rounding(tolerance, gains))
    return Control(FEE, VIOLATED, verdict, fee - (most - least), low, high)


def split_payoffs(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    identities: int = 2,
    seeds: Seeds = (0,),
    deviators: Sequence[int] | None = None,
    utility: Utility | UtilityFunction | None = None,
    outside: Outside = "standalone",
    standalone: Local | None = None,
    max_runs: int = 4096,
    **of_runs: Any,
) -> PayoffTable:
    """The payoffs of all clients if all are honest, and if one client joins as several identities.

    The identities divide the client's training and validation rows among them (``fljax.data.split_identities``), and
    are honest.
    The client's utility is the metric of its first identity's model on all of its test rows, minus the cost of the
    steps of all identities, plus the price of their tokens. ``fljax.games.certificate`` says whether it pays.

    Args:
      plan: an ``Algorithm`` or a ``Plan``, in which no argument has a number for each client.
      federation: of N clients, shared by all seeds or one per seed (``fljax.data.stack``).
      rounds: of every run.
      identities: K, at least 2; cohorts are drawn among all identities. Where ``clients_per_round`` of a plan is all
        clients, all identities take part.
      seeds: as for ``payoffs``.
      deviators: ids of the clients that split; None: each in turn.
      utility: the payoff of a client, as for ``payoffs``; a function gets N + K - 1 clients.
      outside: as for ``payoffs``.
      standalone: as for ``payoffs``.
      max_runs: more runs are refused.
      **of_runs: further arguments of ``fljax.runs``, as for ``coalitions``.

    Returns:
      The table of N clients, with the strategies "honest" and "split in K".

    Raises:
      ValueError: as ``payoffs``; if ``identities`` is below 2; or as the algorithm, for an argument of N numbers.

    Source: Yokoo, Sakurai and Matsubara, "The effect of false-name bids in combinatorial auctions" (Games and Economic
    Behavior 2004), for mechanisms against several identities.
    """
    chosen, numbers, clients = plan_of(plan), seeds_of(seeds), federation.clients.id.shape[-1]
    asked = checked_plan(chosen, federation, None, utility, joining=True).utility
    known = checked_outside(outside, clients, len(numbers), asked)
    check_profiles("unilateral", clients, 2, deviators, runs_outside(known, clients), len(numbers), max_runs)
    choices = profiles("unilateral", clients, 2, deviators)
    empty, further = split_identities(federation, None, identities), identities - 1
    check_splits(chosen, federation, identities)
    chosen = _with_all_identities(chosen, clients, further)
    stages = Stages(of_runs, (len(choices) + runs_outside(known, clients)) * len(numbers))
    played = played_by(chosen, {}, {"played": Strategy()}) if isinstance(asked, Utility) else chosen  # counts rounds

    length: dict[str, Any] = {"rounds": rounds, "seeds": numbers}

    def play(name: str, before: int, data: Federation, member: Bool[np.ndarray, "run N"]) -> xr.Dataset:
        with stages.of(name, before) as settings:
            settings |= {"measure": earnings_of(asked), "max_runs": max_runs, **length}
            found = runs(played, data, Over({}, member), **settings)
        if isinstance(asked, Utility) and asked.price:  # all identities share the budget
            found[TOKENS] = found[TOKENS].dims, paid_tokens(found[TOKENS].values * member[:, None], asked.budget)
        return found

    def earned_by(measured: xr.Dataset, data: Federation, client: int | None) -> Float[np.ndarray, "seed run N"]:
        """The utilities of the N clients, without those of places behind them, whose steps ``client`` pays."""
        every = rounds_trained(measured) * steps_of_round(chosen, data)
        steps = every[..., :clients].copy()
        if client is not None:
            steps[..., client] += every[..., clients:].sum(axis=-1)
        effort = efforts_of(steps, chosen, federation, rounds)
        return utilities_of_runs(measured.isel(client=slice(clients)), effort, asked)

    before = len(numbers) * runs_outside(known, clients)
    with stages.of("outside", 0) as first:
        options = outside_options(known, standalone, chosen, federation, asked, **length, **first)
    measured = play("honest", before, empty, np.pad(np.ones((1, clients), bool), ((0, 0), (0, further))))
    columns = [earned_by(measured, empty, None)[:, 0]]
    for place, client in enumerate(choices[1:].argmax(axis=1).tolist()):
        data, everybody = split_identities(federation, client, identities), np.ones((1, clients + further), bool)
        split = play(f"client_{client}", before + (1 + place) * len(numbers), data, everybody)
        earned = earned_by(split, data, client)[:, 0]
        if isinstance(asked, Utility) and asked.price:
            tokens = split[TOKENS].transpose("seed", "run", "client").values[:, 0, clients:]
            earned[:, client] += asked.price * tokens.astype(float).sum(axis=-1)
        columns.append(earned)
    strategies = (HONESTY, split_name(identities))
    names = tuple(map(str, federation.names.clients or ()))
    rows = np.stack(columns, axis=1)
    table = PayoffTable(rows, choices, strategies, tuple(map(int, numbers)), options, kind_of(known), names)
    return with_losses_lost(table, measured["diverged"].transpose("seed", "run").values[:, 0].astype(bool))


def check_splits(plan: Plan, federation: Federation, identities: int) -> None:
    """Raises a ValueError if the algorithm cannot have further clients; nothing is computed."""
    empty, clients = split_identities(federation, None, identities), federation.clients.id.shape[-1]
    try:
        widened = _with_all_identities(plan, clients, identities - 1)
        messages_of(widened, empty)  # also where JAX traces nothing
        rehearse(widened, empty)  # some arguments are read first where clients are selected
    except ValueError as error:
        raise ValueError(
            f"expected an algorithm without an argument of one number for each client, to split clients, got: {error}"
        ) from None


def _with_all_identities(plan: Plan, clients: int, further: int) -> Plan:
    """The plan with cohorts of all identities, if they are of all clients, as those of a config by default."""

    def widened(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: changed(name, value) for name, value in arguments.items()}

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):  # the arguments of a builder inside of scenarios
            return widened(value)
        is_all = name == "clients_per_round" and is_whole(value) and value >= clients
        return value + further if is_all else value

    return plan._replace(arguments=widened(plan.arguments))


def split_name(identities: int) -> str:
    """The name of the strategy."""
    return f"split in {identities}"


def check_names(deviations: Iterable[str], identities: int) -> None:
    """Raises a ValueError if a deviation has the name of splits that are played beside it."""
    if identities > 1 and split_name(identities) in deviations:
        raise ValueError(f"expected other names of deviations than that of splits, got {split_name(identities)!r}")


def with_splits(table: PayoffTable, splits: PayoffTable) -> PayoffTable:
    """The table with the profiles in which one client splits, with ``u(honest) + u_s(split) - u_s(honest)``."""
    # In ``splits``, empty places may change the last bits of sums: gains are those beside honest runs of the same form.
    alone = splits.choices.any(axis=1)
    changes = splits.payoffs[:, alone] - splits.payoffs[:, [splits.honest]]
    payoffs = as_precise_as(table.payoffs[:, [table.honest]] + changes, table.payoffs)
    return table._replace(
        payoffs=np.concatenate([table.payoffs, payoffs], axis=1),
        choices=np.concatenate([table.choices, len(table.strategies) * splits.choices[alone]]),
        strategies=(*table.strategies, splits.strategies[1]),
    )
