"""Appeal-based participation: clients stay only while the model that they would get is good enough for them.

Source: MaxFL, section 5 and Table 1 (flexible opting out and in after 5 % of the rounds). Deviations, reconstructed:
the loss is on training rows, which is the loss that the solver knows; an empty pool changes nothing from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, Real

from fljax.algorithms.entries import threshold_of
from fljax.core.values import LOSSES, CountOrZero, check_by_client, checked
from fljax.protocol import Algorithm, AnyArray, Available, Cohort, Info, LocalData, Poll, Seat, along
from fljax.protocol.messages import Report
from fljax.scenarios.common import Entry, applied_scenarios, deployed_scores


class AppealBallot(NamedTuple):
    """A client's report (loss of the model that it would deploy, threshold) and the wrapped algorithm's ballot."""

    report: Report
    inner: PyTree


@checked
def appeal_based(
    inner: Algorithm,
    *,
    threshold: Annotated[Real[AnyArray, " N"] | Sequence[float] | float | Float[Array, ""], LOSSES],
    after: CountOrZero = 10,
    empty_pool: Literal["skip", "all"] = "skip",
    split: Literal["train", "valid", "test"] = "train",
    judged: Literal["deployed", "global"] = "deployed",
) -> Algorithm:
    """From round ``after`` on, only clients with ``F_k(deployed_k) < threshold_k`` are available.

    All clients are polled in every round, so a client that left may come back. If the wrapped algorithm polls only in
    some rounds, it now receives ballots in every round.

    Args:
      inner: any algorithm.
      threshold: ``rho`` by client id ``[N]``, or one number. In a comparison it is what all algorithms have,
        ``fljax.Requirement``, without which it is the standalone training loss.
      after: number of first rounds in which all clients are available.
      empty_pool: what happens in a round without available clients. "skip": the round changes nothing (a model that
        appeals to no client stays as it is); "all": all clients are available in that round.
      split: the rows on which the loss is computed; a client without such rows uses its training rows.
      judged: the model whose loss is compared. "deployed": the one that the client would use. "global": the one that it
        receives, before personalisation, as in MaxFL's definition of appeal. They differ for methods with personal
        models.

    Returns:
      The algorithm. Info: ``polled_loss`` [client]; ``appealed`` [client], whether the client could take part and the
      model appeals to it (also before round ``after``); ``pool_size``, the number of clients that the wrapped algorithm
      selects from.

    Raises:
      ValueError: if a name is not valid, the length of ``threshold`` differs from the population, or ``inner`` has no
        global model to judge.
    """
    rho = jnp.asarray(threshold)
    if judged == "global" and inner.common is None:
        raise ValueError("expected an algorithm with a global model to judge it, got one without")
    asked_of = inner if judged == "deployed" else inner._replace(personal=None)

    def poll(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> AppealBallot:
        ballot = () if inner.poll is None else inner.poll.ask(key, seat, down, client, data)
        loss = deployed_scores(asked_of, split, key, seat, down, client, data)[0]
        return AppealBallot(Report(loss=loss, threshold=threshold_of(rho, seat.id).astype(loss.dtype)), ballot)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: AppealBallot, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        check_by_client("threshold", rho, available.population, tables=False)
        able, report = available.mask(), ballots.report
        appealed = able & (report.loss < report.threshold)
        pool = jnp.where(round < after, able, appealed)
        taken = jnp.where(jnp.any(pool), pool, able) if empty_pool == "all" else pool
        server, cohort, info = inner.select(key, round, server, ballots.inner, available.only(taken))
        asked = along("client", polled_loss=report.loss, appealed=appealed)
        return server, cohort, {**info, **asked, "pool_size": jnp.sum(taken, dtype=jnp.int32)}

    return inner._replace(poll=Poll(poll), select=select, scenarios=applied_scenarios(inner, "appeal_based"))


ENTRY = Entry(
    appeal_based,
    "clients stay only while the model is good enough for them (MaxFL)",
    {"threshold": (5.0, 0.9, 5.0, 0.7, 5.0), "after": 1},
    ("cho2024maximizing",),
    flat=("threshold",),
)
