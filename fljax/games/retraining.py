"""Every coalition of clients retrained from scratch, as runs of one compiled program (``fljax.engine`` has the runs).

Runs of one seed share initial weights, batches and draws, which depend on seed, round and id, never on the coalition:
so differences are less noisy than values. A worth still depends on one draw of batches: error bars need several seeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax.contributions.coalitions import LARGEST, members_of
from fljax.core.sameness.codes import code_of
from fljax.core.signatures import is_whole
from fljax.engine import Over, Plan, plan_of, runs
from fljax.engine.rounds.keys import Seeds, seeds_of
from fljax.games.costs import estimate, in_words
from fljax.games.tables import CoalitionTable, Cost, in_braces
from fljax.games.values import Measured, Measures, Value, algorithm_of, check_value, measures_of
from fljax.protocol import Algorithm, Federation
from fljax.results import Reference

Coalitions = Literal["leave_one_out"] | Bool[np.ndarray, "M N"] | Bool[Array, "M N"] | Sequence[Iterable[int]]
Baseline = Literal["initial", "chance"] | float
Outside = Literal["alone", "global"]


def coalitions(
    plan: Algorithm | Plan,
    federation: Federation,
    *,
    rounds: int,
    seeds: Seeds = (0,),
    value: Value = "average_accuracy",
    among: Coalitions | None = None,
    baseline: Baseline = "initial",
    outside: Outside = "alone",
    reference: Reference | None = None,
    max_runs: int = 4096,
    **of_runs: Any,
) -> CoalitionTable:
    """Retrains coalitions of clients from scratch: ``v(S)`` is the value of a run in which S alone takes part.

    A client outside a coalition has no rows in its run. The run sees only its shapes and what is declared for all
    clients, such as classes. Metrics judge all clients, in and outside the coalition.

    Args:
      plan: an ``Algorithm``, or a ``Plan`` whose floats change without recompiling.
      federation: of N clients, shared by all seeds or one per seed (``fljax.data.stack``).
      rounds: of every run.
      seeds: R integers that key all randomness of a run; 3 means the seeds 0, 1 and 2. They redraw initial weights,
        batches and cohorts, and the partition if the federation is stacked.
      value: a metric, at the end of a run (``fljax list metrics``); or a function ``(algorithm, state, scores) ->
        number`` at the top of a module, traced, where more is better. If less of a metric is better, it is negated.
      among: the coalitions: None for all ``2^N``, "leave_one_out" for no client, all clients, and all clients but one;
        ``[M, N]`` bools; or collections of ids, such as ``[{0, 1}, {0, 1, 2}]``.
      baseline: ``v(empty)``: "initial" is the value of the untrained model, which differs between seeds; "chance" is
        ``1 / classes``, for accuracies; or a number. It is run only with "initial".
      outside: the payoff of a client outside the coalition: "alone" is its payoff in the coalition of itself (NaN if
        ``among`` lacks that); "global" is its payoff by the run's model.
      reference: standalone models (``fljax.standalone``) for metrics that compare with them.
      max_runs: more runs are refused.
      **of_runs: further arguments of ``fljax.runs``: ``execution``, ``block``, ``checkpoint``, ``on_block``. With
        ``checkpoint`` the same call goes on with the runs that are missing.

    Returns:
      ``CoalitionTable``. A run that has diverged is NaN.

    Raises:
      ValueError: if there are more runs than ``max_runs``, or more than 16 clients without ``among``; if ``among`` has
        no coalition, one twice, or unknown clients; if there is no such metric; or as ``fljax.runs``.

    Source: Shapley, "A value for n-person games" (1953), for the game; Song et al., "Profit allocation for federated
    learning" (2019), for its values by retraining.
    """
    if outside not in ("alone", "global"):
        raise ValueError(f'expected outside to be "alone" or "global", got {outside!r}')
    chosen, numbers = plan_of(plan), seeds_of(seeds)
    members, cost = planned(chosen, federation, among, rounds=rounds, seeds=len(numbers), max_runs=max_runs)
    algorithm = algorithm_of(chosen)
    check_value(value, algorithm, federation, reference)
    empty = _baseline(baseline, value, algorithm)
    trained = members if empty is None else members[members.any(axis=1)]
    if not len(trained):
        raise ValueError(f"expected a coalition with members beside baseline={baseline!r}, got that of nobody alone")
    began = time.perf_counter()
    measured = runs(
        chosen,
        federation,
        Over(member=trained),
        rounds=rounds,
        seeds=numbers,
        measure=Measured() if isinstance(value, str) else Measured(value, code_of(value)),
        max_runs=max_runs,
        **of_runs,
    )
    measures = measures_of(measured, value, reference)
    cost = cost._replace(seconds=time.perf_counter() - began)
    described = _described(baseline, numbers, federation, cost) | {"notes": str(measured.attrs.get("notes", ""))}
    return _table(measures, members, trained, empty, outside, described)


def planned(
    plan: Plan, federation: Federation, among: Coalitions | None, *, rounds: int, seeds: int, max_runs: int
) -> tuple[Bool[np.ndarray, "M N"], Cost]:
    """The coalitions that ``among`` means, and what they will cost; ``seeds`` is the number of seeds."""
    members = chosen_members(among, federation.clients.id.shape[-1])
    cost = estimate(plan, federation, members, rounds, seeds)
    if cost.runs > max_runs:
        raise ValueError(
            f"expected at most {max_runs:,} runs, got {in_words(cost)} for {len(members):,} coalitions and {seeds} "
            "seeds; max_runs allows more, among chooses coalitions"
        )
    return members, cost


def chosen_members(among: Coalitions | None, clients: int) -> Bool[np.ndarray, "M N"]:
    """The coalitions that ``among`` means, as for ``coalitions``."""
    if among is None:
        if clients > LARGEST:
            count = f"{2**clients:,}" if clients <= 40 else f"2^{clients}"
            raise ValueError(
                f"expected among= for more than {LARGEST} clients, got {clients} clients, which have {count} "
                f'coalitions; among="leave_one_out" has {clients + 2}'
            )
        return members_of(clients)
    if isinstance(among, str):
        if among != "leave_one_out":
            raise ValueError(f"expected among to be 'leave_one_out', coalitions or None, got {among!r}")
        rows = np.concatenate([np.zeros((1, clients)), 1 - np.eye(clients), np.ones((1, clients))]).astype(bool)
        return np.unique(rows, axis=0) if clients == 1 else rows
    if isinstance(among, np.ndarray | jax.Array):
        rows = np.asarray(among)
        if rows.ndim != 2 or rows.shape[1] != clients or rows.dtype != bool:
            raise ValueError(f"expected among to be bools [M, {clients}], got {rows.dtype} {list(rows.shape)}")
    else:
        rows = np.array([_row(ids, clients) for ids in among]).reshape(-1, clients)
    if not len(rows):
        raise ValueError("expected among to have at least one coalition, got none")
    first, counts = np.unique(rows, axis=0, return_counts=True)
    if counts.max() > 1:
        raise ValueError(f"expected each coalition of among once, got {in_braces(first[counts.argmax()])} twice")
    return rows


def _row(ids: Iterable[int], clients: int) -> np.ndarray:
    row = np.zeros(clients, bool)
    for client in ids:
        if not is_whole(client) or not 0 <= client < clients:
            raise ValueError(f"expected coalitions of the clients 0 to {clients - 1}, got {client!r}")
        row[int(client)] = True
    return row


def _baseline(baseline: Baseline, value: Value, algorithm: Algorithm) -> float | None:
    """``v(empty)``; None if it is run."""
    if baseline == "initial":
        return None
    if baseline == "chance":
        classes = algorithm.task.classes
        if not isinstance(value, str) or "accuracy" not in value or classes is None:
            raise ValueError(
                'expected an accuracy and a task of classes for baseline="chance", got '
                f"{value if isinstance(value, str) else 'a function'}; a number may be given"
            )
        return 1 / classes
    if isinstance(baseline, str) or not np.isfinite(baseline):
        raise ValueError(f'expected baseline to be "initial", "chance" or a number, got {baseline!r}')
    return float(baseline)


def _described(baseline: Baseline, seeds: Sequence[int], federation: Federation, cost: Cost) -> dict[str, Any]:
    """The fields of a table that say what it is of."""
    names = federation.names.clients or range(federation.clients.id.shape[-1])
    text = baseline if isinstance(baseline, str) else repr(float(baseline))
    return {"baseline": text, "seeds": tuple(seeds), "names": tuple(map(str, names)), "cost": cost}


def _table(
    measures: Measures,
    members: Bool[np.ndarray, "M N"],
    trained: Bool[np.ndarray, "P N"],
    empty: float | None,
    outside: Outside,
    described: dict[str, Any],
) -> CoalitionTable:
    """The table of all coalitions, with ``v(empty)`` where it was not run, and payoffs of those outside."""
    values, scores, diverged = measures.values, measures.scores, measures.diverged
    if empty is not None and len(trained) < len(members):
        place = int(np.flatnonzero(~members.any(axis=1))[0])
        values = np.insert(values, place, empty, axis=1)
        scores = np.insert(scores, place, np.nan, axis=1)
        diverged = np.insert(diverged, place, False, axis=1)
    payoffs = scores if outside == "global" else np.where(members[None], scores, _alone(members, scores)[:, None])
    return CoalitionTable(
        values, members, payoffs, diverged, metric=measures.metric, payoff=measures.payoff, **described
    )


def _alone(members: Bool[np.ndarray, "M N"], scores: Float[np.ndarray, "seeds M N"]) -> Float[np.ndarray, "seeds N"]:
    """What each client reaches in the coalition of itself; NaN where there is no such coalition."""
    single = members.sum(axis=1) == 1
    reached = np.full((len(scores), members.shape[1]), np.nan)
    for place in np.flatnonzero(single):
        client = int(np.argmax(members[place]))
        reached[:, client] = scores[:, place, client]
    return reached
