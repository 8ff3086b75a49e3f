"""IAFL: every client is rewarded with its own model, which averages more updates the more the client contributes.

Source: Wu et al., "Incentive-aware federated learning with training-time model rewards" (ICLR 2024), Algorithm 1 and
Procedure 2. Deviations: a reward is applied and its recovery drawn at the end of a round, and not at the beginning of
the next, which gives the same models (the authors' code draws at the beginning, so that its final models lack the last
draw); partial participation and "copied" follow the authors' code; the default ceiling is the largest contribution, as
in the authors' code (the paper leaves it open). The defaults of ``kappa`` and
``recovery`` are 0, as in the paper's comparisons of methods; its appendix E.7 recommends 0.5 and 0.01.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree, Real

from fljax.algorithms.entries import Entry
from fljax.algorithms.measuring import Sample, check_measure, measured_from, measured_in
from fljax.algorithms.rewarding import (
    Models,
    Sharing,
    per_client_models,
    reference_model,
    reward_rates,
    select_joining,
    share_rewards,
    with_checked_length,
    with_recovery,
    with_statistics_sent,
)
from fljax.contributions.estimators.in_rounds import Contributions, RoundMeasure, as_round_measure, remaining
from fljax.contributions.tables import by_round
from fljax.core import trees
from fljax.core.values import LABELS, LOSSES, Count, Positive, Range, Share, checked
from fljax.protocol import (
    Algorithm,
    AnyArray,
    Available,
    Census,
    Cohort,
    Info,
    LocalData,
    Poll,
    Round,
    Seat,
    Select,
    Task,
    along,
    roles,
)
from fljax.protocol.messages import Report, Sent
from fljax.training import Local


@checked
def iafl(
    task: Task,
    local: Local,
    *,
    contribution: Annotated[
        Real[AnyArray, "*rounds N"]
        | Sequence[float]
        | Sequence[Sequence[float]]
        | RoundMeasure
        | str
        | Callable[..., Any],
        LOSSES,
        LABELS,
    ],
    ceiling: Positive | Literal["max"] = "max",
    kappa: Share = 0.0,
    recovery: Share = 0.0,
    reference_rule: Literal["max", "median"] = "max",
    reference_draw: Literal["own", "copied"] = "own",
    joining: Annotated[Real[AnyArray, " N"] | Sequence[float] | Literal["contribution"] | None, Range(0, 1)] = None,
    clients_per_round: Count | None = None,
) -> Algorithm:
    """``theta_k <- theta_k + (1/|S_k|) sum_{j in S_k} g_j``, ``|S_k| = 1 + ceil(gamma_k (N - 1))``.

    ``g_j = LocalSGD(theta_j, j) - theta_j``; ``S_k`` holds client k and others drawn uniformly in every round;
    ``gamma_k = min(p_k / ceiling, 1)^(1 - kappa)``. After a round, ``theta_k`` is replaced by the reference model with
    probability ``recovery``. The server keeps N + 1 models. A client that left the federation keeps its model, and
    nothing is computed over it: N, the ceiling and the reference model's rate are those of the members.

    Args:
      task: model and loss.
      local: how clients train.
      contribution: ``p`` by client id ``[N]``, or one row per round ``[rounds, N]``; the last row also holds for later
        rounds. An ``xarray.DataArray`` with the dimensions ``round`` and ``client`` may have them in any order. All
        clients report it before each round. In an experiment, it is the standalone accuracy of each client unless
        another measure, numbers by client or a table with names of its dimensions (in a config a CSV file) is given.
        Or a measure that the server computes from the updates of each round before it draws rewards: a name in
        ``fljax.contributions.ROUND_MEASURES``, a function ``(updates, weights, present) -> scores [S]`` of the rows of
        a cohort, or a ``RoundMeasure`` with its memory and its filter. Then nobody reports a contribution, the model
        that estimators judge is the reference model, and all clients of a round have the same weight.
      ceiling: the contribution from which on a client's model averages all updates; "max": the largest contribution of
        the round.
      kappa: sharing coefficient in [0, 1]; with 1 every client's model averages all updates. The paper recommends 0.5
        (appendix E.7).
      recovery: the paper's q, in [0, 1]. The paper recommends 0.01 (appendix E.7).
      reference_rule: the reference model averages as many updates as the client with the "max" or the "median" rate.
      reference_draw: the updates in the reference model: "own": a separate draw; "copied": the updates of that client
        (the authors' code).
      joining: ``[N]`` probabilities that clients join a round; "contribution": the true contributions; None: all
        available clients join. Clients that skip a round are members, and still receive their reward.
      clients_per_round: the largest number of joining clients, drawn uniformly; None: all.

    Returns:
      The algorithm; an unseen client uses the reference model. Info by client: ``contribution`` (as reported or
      measured), ``rate`` and ``recovered``; of a measure in rounds also ``score``, that of the round (NaN for clients
      that took no part), and with a filter ``filtered``.

    Raises:
      ValueError: if a name is not valid or a number is out of range, or (in a run) if the length of ``contribution`` or
        ``joining`` differs from the population, or the server lacks the rows that a measure needs.
    """
    sharing = Sharing(ceiling, kappa, recovery, reference_rule, reference_draw)
    measure = RoundMeasure(contribution) if isinstance(contribution, str) else as_round_measure(contribution)
    if measure is not None:
        if isinstance(joining, str):
            raise ValueError(
                "expected numbers as contributions where joining is 'contribution', got a measure of rounds"
            )
        check_measure(measure, task)
        probability = None if joining is None else jnp.asarray(joining)
        joined = select_joining(probability, clients_per_round)
        measured = _measured(task, local, measure, sharing, joined)
        return measured._replace(init_server=with_checked_length("joining", probability, measured.init_server))
    contributions = trees.floating(by_round(contribution))
    if isinstance(joining, str) and contributions.ndim > 1:
        raise ValueError("expected one contribution for each client where joining is 'contribution', got one per round")
    probability = None if joining is None else contributions if isinstance(joining, str) else jnp.asarray(joining)

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> Report:
        now = contributions
        if now.ndim > 1:
            now = now[jnp.minimum(seat.round, now.shape[0] - 1)]
        return Report(contribution=now[seat.id])

    joined = select_joining(probability, clients_per_round)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: Models, ballots: Report, available: Available
    ) -> tuple[Models, Cohort, Info]:
        rates = reward_rates(ballots.contribution, sharing, server.members)
        server, cohort, info = joined(key, round, server._replace(book=rates), ballots, available)
        return server, cohort, {**info, **along("client", contribution=ballots.contribution, rate=rates)}

    def aggregate(server: Models, up: Sent, round: Round) -> tuple[Models, Info]:
        return share_rewards(task, round.key, server, up.update, round.cohort, server.book, sharing), {}

    usual = per_client_models(task, local, select, with_recovery(aggregate, recovery))

    def begin(key: Key[Array, ""], census: Census) -> Models:
        # The book holds rates, which are finite for all reported contributions.
        rates = reward_rates(jnp.zeros(census.train.shape, contributions.dtype), sharing)
        return usual.init_server(key, census)._replace(book=rates)

    init_server = with_checked_length("joining", probability, with_checked_length("contribution", contributions, begin))
    return usual._replace(init_server=init_server, poll=Poll(ask, shown=False), models=reference_model)


def _measured(task: Task, local: Local, measure: RoundMeasure, sharing: Sharing, joined: Select) -> Algorithm:
    """IAFL whose server measures contributions in rounds as its ``book``; who was shut out is no member any more."""
    filters = measure.filter_below is not None

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: Models, ballots: PyTree, available: Available
    ) -> tuple[Models, Cohort, Info]:
        if filters:
            available = available.without(server.book.filtered)
            server = server._replace(members=available.members)
        return joined(key, round, server, ballots, available)

    def aggregate(server: Models, up: Sent, round: Round) -> tuple[Models, Info]:
        cohort, model = round.cohort, server.reference
        # Of statistics the sent ones are relative to the reference model, and not to the models of the clients.
        sent = with_statistics_sent(task, server, up.update, cohort)
        moved = jax.tree.map(lambda leaf, whole: leaf - whole[None], sent, model)
        sample = Sample(
            model, roles.replace_statistics(task, up.update, moved), jnp.ones(cohort.id.shape, jnp.result_type(float))
        )
        book, info = measured_in(measure, task, server.book, sample, round, server.members)
        if filters:
            server = server._replace(members=remaining(book, server.members))
            cohort = cohort._replace(present=cohort.present & ~book.filtered[cohort.id])
        server = server._replace(book=book)
        rates = reward_rates(book.contribution, sharing, server.members)
        after = share_rewards(task, round.key, server, up.update, cohort, rates, sharing)
        return after, {**info, **along("client", rate=rates)}

    usual = per_client_models(task, local, select, with_recovery(aggregate, sharing.recovery))

    def init_server(key: Key[Array, ""], census: Census) -> Models:
        server = usual.init_server(key, census)
        book: Contributions = measured_from(measure, task, server.reference, census)
        everybody = jnp.ones(census.train.shape, bool)
        members = everybody if filters and census.members is None else census.members
        return server._replace(book=book, members=members)

    return usual._replace(init_server=init_server, models=reference_model)


ENTRY = Entry(
    iafl,
    "rewards clients with models that average more updates the more they contribute (IAFL)",
    ("wu2024incentive",),
    {"contribution": (0.9, 0.4, 1.0, 0.7, 0.2), "kappa": 0.3, "recovery": 0.3},
    flat=("contribution", "kappa", "recovery"),
    reads="updates, of which each reward averages others",
)
