"""Effort: clients train on a share of their rows.

Source: "Incentive-aware federated learning with training-time model rewards" (IAFL), section 3, in which clients choose
what they contribute, and the appendix, question 2, by which a client may compute its update from a part of its data.
Efforts of an equilibrium come from ``fljax.theory.best_responses``.
"""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax.core.values import Range, check_by_client, checked
from fljax.protocol import Algorithm, Available, Census, Cohort, Info, LocalData, Seat, Subset, along
from fljax.protocol.messages import changed_report
from fljax.scenarios.common import ByRound, Entry, applied_scenarios, of_client, of_round, with_clients

# A product of a share and a number of rows may be above a whole number by rounding alone.
_ROUNDING = 1e-6

Efforts = Annotated[ByRound, Range(0, 1, above=True)]


@checked
def effort(inner: Algorithm, *, share: Efforts, scale_contribution: bool = False) -> Algorithm:
    """Client k trains on ``ceil(share_k n_k)`` of its n_k training rows.

    It uses the same rows in polls and where it trains its model before use, and reports their number as its size. The
    rows are the first of its list, so those of a smaller share are among those of a larger one. Validation and test
    rows, standalone models and thresholds are as without the scenario. Unseen clients use all their rows.

    Args:
      inner: any algorithm.
      share: one share above 0 and up to 1, one per client id ``[N]``, or one per round and client id ``[rounds, N]``;
        round t uses row ``t % rounds``, and the server's counts of rows before round 0 are those of row 0.
      scale_contribution: whether a client reports ``share_k`` times its contribution (``iafl``), as for contributions
        that are proportional to rows; if not, it reports what it would report without the scenario.

    Returns:
      The algorithm. Info: ``effort`` [client], the share of this round.

    Raises:
      ValueError: if a share is not above 0 and up to 1, or ``share`` is an array for another number of clients.
    """
    shares = jnp.asarray(share, jnp.result_type(float))
    return with_effort(inner, shares, scale_contribution)._replace(scenarios=applied_scenarios(inner, "effort"))


def with_effort(inner: Algorithm, shares: Float[Array, ...], scale_contribution: bool = False) -> Algorithm:
    """``effort`` without its name and without the check of single shares, which may be 0: a client keeps one row."""
    table = shares if shares.ndim == 2 else shares[None]

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        check_by_client("share", shares, census.train.shape[0])
        return inner.init_server(key, census._replace(train=rows_used(census.train, of_round(table, jnp.int32(0)))))

    def used(seat: Seat, data: LocalData) -> LocalData:
        if not seat.known:
            return data
        share = of_client(shares, seat)

        def fewer(subset: Subset) -> Subset:
            rows = subset.rows
            return subset._replace(rows=rows._replace(size=rows_used(rows.size, share)))

        # Also of the rows that a drift inside this scenario puts in place of the others.
        later = None if data.later is None else data.later._replace(train=fewer(data.later.train))
        return data._replace(train=fewer(data.train), later=later)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        server, cohort, info = inner.select(key, round, server, ballots, available)
        now = jnp.broadcast_to(of_round(table, round), (available.population,))
        return server, cohort, {**info, **along("client", effort=now)}

    def reported(seat: Seat, message: PyTree) -> PyTree:
        if not scale_contribution or not seat.known:
            return message
        share = of_client(shares, seat)
        return changed_report(message, "contribution", lambda value: value * share.astype(value.dtype))

    working = with_clients(inner, lambda seat, client, data: (inner, client, used(seat, data)), said=reported)
    return working._replace(init_server=init_server, select=select)


def rows_used(size: Int[Array, ...], share: Float[Array, ...]) -> Int[Array, ...]:
    """``ceil(share size)`` rows, at least 1 of a client that has any; the arguments broadcast."""
    count = jnp.ceil(share * size * (1 - _ROUNDING)).astype(size.dtype)
    return jnp.clip(count, jnp.minimum(size, 1), size)


ENTRY = Entry(
    effort,
    "clients train on a share of their rows",
    {"share": ((1.0, 0.5, 1.0, 0.3, 0.6), (0.4, 1.0, 1.0, 0.3, 0.6)), "scale_contribution": True},
    ("wu2024incentive",),
    ("share",),
)
