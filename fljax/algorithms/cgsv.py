"""CGSV: clients receive the largest entries of the total update; more entries, the better their update agrees with it.

Source: Xu et al., "Gradient driven rewards to guarantee fairness in collaborative machine learning" (NeurIPS 2021),
Algorithm 1, as in IAFL's authors' code. Deviation: exactly ``ceil(Q n)`` entries of a layer are kept; that code keeps
at most ``n - 1`` (``quirk``). The module also has CGSV-IAFL: IAFL with these reputations as contributions (IAFL,
Table 7); no code of it was released.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fljax import aggregators
from fljax.algorithms.cohorts import select_after, select_uniform, shares_of_members
from fljax.algorithms.entries import Entry
from fljax.algorithms.rewarding import (
    Models,
    Sharing,
    move_models,
    per_client_models,
    reference_model,
    replicate_model,
    reward_rates,
    share_rewards,
    with_recovery,
    with_statistics_sent,
)
from fljax.algorithms.single_model import normalise_weights
from fljax.core import trees
from fljax.core.values import Count, Positive, Share, checked
from fljax.protocol import Algorithm, Available, Census, Cohort, Info, InitServer, PerClient, Round, Task, along, roles
from fljax.training import Local


class Book(NamedTuple):
    """Reputations, and the weights of the next round: shares of the samples in round 0, then the reputations."""

    reputation: Float[Array, " N"]
    weight: Float[Array, " N"]


@checked
def cgsv(
    task: Task,
    local: Local,
    *,
    length: Positive = 0.5,
    alpha: Share = 0.95,
    beta: Positive = 1.0,
    quirk: bool = False,
    clients_per_round: Count | None = None,
) -> Algorithm:
    """``theta_k <- theta_k + (the ceil(Q_k n_l) largest entries of each layer of u)``, ``u = sum_k a_k u_k``.

    ``u_k = length Delta_k / ||Delta_k||``; ``a_k`` is client k's share of the samples in round 0 and its last
    reputation after it; ``r_k <- max(alpha r_k + (1 - alpha) cos(u_k, u), 1e-3)``, normalised; ``Q_k = tanh(beta r_k) /
    max_j tanh(beta r_j)``. A client that left the federation keeps its model and has reputation 0; its reputation
    and weight go to the members in proportion.

    Args:
      task: model and loss.
      local: how clients train.
      length: norm of an update, the paper's Gamma.
      alpha: weight of the old reputation.
      beta: altruism; with large values every client receives the whole update.
      quirk: see ``fljax.aggregators.cgsv_rewards``.
      clients_per_round: drawn uniformly without replacement; None: all. A client outside the cohort has a cosine of 0
        and still receives its reward.

    Returns:
      The algorithm; an unseen client gets the server's model, which moves by ``u``. Info by client: ``contribution``
      (the reputation) and ``share`` (Q).

    Raises:
      ValueError: if ``length`` or ``beta`` is not positive, or ``alpha`` not from 0 to 1.
    """

    def aggregate(server: Models, up: PyTree, round: Round) -> tuple[Models, Info]:
        cohort = round.cohort
        book, total = _judged(task, server, up.update, cohort, length, alpha)
        rewards = aggregators.cgsv_rewards(total, book.reputation, beta=beta, quirk=quirk)
        # All members get the mean statistics.
        sent = with_statistics_sent(task, server, up.update, cohort)
        total = roles.replace_statistics(task, total, aggregators.weighted_mean(sent, trees.wide(cohort.present)))
        members = jnp.ones(book.weight.shape, bool) if server.members is None else server.members
        rewards = roles.replace_statistics(task, rewards, replicate_model(total, members.shape[0]))
        models = PerClient(move_models(task, server.models.values, rewards, members))
        reference = move_models(task, server.reference, total, jnp.asarray(True))
        moved = Models(models, reference, book, server.members)
        after = trees.where(jnp.any(cohort.present), moved, server)
        shares = aggregators.cgsv_shares(after.book.reputation, beta=beta)
        return after, along("client", contribution=after.book.reputation, share=shares)

    usual = per_client_models(task, local, select_after(_of_members, select_uniform(clients_per_round)), aggregate)
    return usual._replace(init_server=_with_book(usual.init_server), models=reference_model)


@checked
def cgsv_iafl(
    task: Task,
    local: Local,
    *,
    length: Positive = 0.5,
    alpha: Share = 0.95,
    ceiling: Positive | Literal["max"] = "max",
    kappa: Share = 0.0,
    recovery: Share = 0.0,
    reference_rule: Literal["max", "median"] = "max",
    reference_draw: Literal["own", "copied"] = "own",
    clients_per_round: Count | None = None,
) -> Algorithm:
    """IAFL with CGSV's reputations as contributions; each round updates reputations before it draws rewards.

    Updates are normalised for the reputations only; rewards average the original updates.

    Args:
      task: model and loss.
      local: how clients train.
      length: as for ``cgsv``; it changes cosines only by rounding.
      alpha: as for ``cgsv``.
      ceiling: as for ``iafl``.
      kappa: as for ``iafl``.
      recovery: as for ``iafl``.
      reference_rule: as for ``iafl``.
      reference_draw: as for ``iafl``.
      clients_per_round: drawn uniformly without replacement; None: all.

    Returns:
      The algorithm; an unseen client gets the reference model. Info as for ``iafl``.

    Raises:
      ValueError: as for ``iafl``.
    """
    sharing = Sharing(ceiling, kappa, recovery, reference_rule, reference_draw)

    def aggregate(server: Models, up: PyTree, round: Round) -> tuple[Models, Info]:
        cohort = round.cohort
        judged, _ = _judged(task, server, up.update, cohort, length, alpha)
        book = trees.where(jnp.any(cohort.present), judged, server.book)
        rates = reward_rates(book.reputation, sharing, server.members)
        after = share_rewards(task, round.key, server._replace(book=book), up.update, cohort, rates, sharing)
        return after, along("client", contribution=book.reputation, rate=rates)

    select = select_after(_of_members, select_uniform(clients_per_round))
    usual = per_client_models(task, local, select, with_recovery(aggregate, recovery))
    return usual._replace(init_server=_with_book(usual.init_server), models=reference_model)


def _with_book(init_server: InitServer) -> InitServer:
    def init(key: Key[Array, ""], census: Census) -> Models:
        server = init_server(key, census)
        size = census.train.astype(jnp.result_type(float))
        weight = normalise_weights(size)
        return server._replace(book=Book(jnp.zeros_like(weight), weight))

    return init


def _of_members(server: Models, available: Available) -> Models:
    """The Server in whose book clients that left have reputation and weight 0."""
    return server._replace(book=Book(*(shares_of_members(shares, available) for shares in server.book)))


def _judged(
    task: Task, server: Models, update: PyTree, cohort: Cohort, length: float | Array, alpha: float | Array
) -> tuple[Book, PyTree]:
    """The book after a round, and the total update ``u``."""
    book = server.book
    unit = aggregators.cgsv_normalised(roles.zero_statistics(task, update), length=length)
    weight = jnp.where(cohort.present, book.weight[cohort.id], 0)
    total = aggregators.weighted_sum(unit, weight)
    who: dict[str, Any] = {"ids": cohort.id, "present": cohort.present, "members": server.members, "weights": weight}
    reputation = aggregators.cgsv_reputation(book.reputation, unit, total, alpha=alpha, **who)
    return Book(reputation, reputation), total


ENTRY = Entry(
    cgsv,
    "rewards clients with sparse updates by how theirs agree with everybody's (CGSV)",
    ("xu2021gradient",),
    differentiable=("length", "alpha"),
    flat=("beta",),
    reads="updates, whose cosines with the total are reputations",
)
IAFL_ENTRY = Entry(
    cgsv_iafl,
    "IAFL with CGSV's reputations as contributions",
    ("wu2024incentive", "xu2021gradient"),
    {"kappa": 0.2, "recovery": 0.3},
    flat=("length", "alpha", "kappa", "recovery"),
    reads="updates, whose cosines are contributions, and of which each reward averages others",
)
