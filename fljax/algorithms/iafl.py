"""IAFL: every client is rewarded with its own model, which averages more updates the more the client contributes.

Source: Wu et al., "Incentive-aware federated learning with training-time model rewards" (ICLR 2024), Algorithm 1 and
Procedure 2. Deviations: a reward is applied at the end of its round and recovery is drawn at the beginning of the next,
which gives the same models; partial participation and "copied" follow the authors' code; the default ceiling is the
largest contribution, as in the authors' code (the paper leaves it open). The defaults of ``kappa`` and
``recovery`` are 0, as in the paper's comparisons of methods; its appendix E.7 recommends 0.5 and 0.01.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree, Real

from fljax.algorithms.entries import Entry
from fljax.algorithms.rewarding import (
    Models,
    Sharing,
    check_sharing,
    per_client_models,
    reference_model,
    reward_rates,
    select_joining,
    share_rewards,
    with_checked_length,
    with_recovery,
)
from fljax.contributions.tables import by_round
from fljax.core import trees
from fljax.core.values import LOSSES, Count, Positive, Range, Share, checked
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
    Task,
    along,
)
from fljax.protocol.messages import Report, Sent
from fljax.training import Local


@checked
def iafl(
    task: Task,
    local: Local,
    *,
    contribution: Annotated[Real[AnyArray, "*rounds N"] | Sequence[float] | Sequence[Sequence[float]], LOSSES],
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
    ``gamma_k = min(p_k / ceiling, 1)^(1 - kappa)``. Before a round, ``theta_k`` is replaced by the reference model with
    probability ``recovery``. The server keeps N + 1 models. A client that left the federation keeps its model, and
    nothing is computed over it: N, the ceiling and the reference model's rate are those of the members.

    Args:
      task: model and loss.
      local: how clients train.
      contribution: ``p`` by client id ``[N]``, or one row per round ``[rounds, N]``; the last row also holds for later
        rounds. An ``xarray.DataArray`` with the dimensions ``round`` and ``client`` may have them in any order. All
        clients report it before each round. In an experiment, it is the standalone accuracy of each client unless
        another measure, numbers by client or a table with names of its dimensions (in a config a CSV file) is given.
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
      The algorithm; an unseen client uses the reference model. Info by client: ``contribution`` (as reported), ``rate``
      and ``recovered``.

    Raises:
      ValueError: if a name is not valid or a number is out of range, or (in a run) if the length of ``contribution`` or
        ``joining`` differs from the population.
    """
    sharing = check_sharing(Sharing(ceiling, kappa, recovery, reference_rule, reference_draw))
    contributions = trees.floating(by_round(contribution))
    if isinstance(joining, str) and contributions.ndim > 1:
        raise ValueError("expected one contribution for each client where joining is 'contribution', got one per round")
    probability = None if joining is None else contributions if isinstance(joining, str) else jnp.asarray(joining)

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> Report:
        now = contributions
        if now.ndim > 1:
            now = now[jnp.minimum(seat.round, now.shape[0] - 1)]
        return Report(contribution=now[seat.id])

    joined = with_recovery(select_joining(probability, clients_per_round), recovery)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: Models, ballots: Report, available: Available
    ) -> tuple[Models, Cohort, Info]:
        rates = reward_rates(ballots.contribution, sharing, server.members)
        server, cohort, info = joined(key, round, server._replace(book=rates), ballots, available)
        return server, cohort, {**info, **along("client", contribution=ballots.contribution, rate=rates)}

    def aggregate(server: Models, up: Sent, round: Round) -> tuple[Models, Info]:
        return share_rewards(task, round.key, server, up.update, round.cohort, server.book, sharing), {}

    usual = per_client_models(task, local, select, aggregate)

    def begin(key: Key[Array, ""], census: Census) -> Models:
        # The book holds rates, which are finite for all reported contributions.
        rates = reward_rates(jnp.zeros(census.train.shape, contributions.dtype), sharing)
        return usual.init_server(key, census)._replace(book=rates)

    init_server = with_checked_length("contribution", contributions, begin)
    if probability is not None:
        init_server = with_checked_length("joining", probability, init_server)
    return usual._replace(
        init_server=init_server,
        poll=Poll(ask, shown=False),
        models=reference_model,
    )


ENTRY = Entry(
    iafl,
    "rewards clients with models that average more updates the more they contribute (IAFL)",
    ("wu2024incentive",),
    {"contribution": (0.9, 0.4, 1.0, 0.7, 0.2), "kappa": 0.3, "recovery": 0.3},
    flat=("contribution", "kappa", "recovery"),
)
