"""Client sampling: cohorts are drawn by size, loss, contribution or numbers of one's own.

Source: FedProx ("Federated optimization in heterogeneous networks") draws by size; "Towards understanding biased client
selection in federated learning" prefers large losses. Deviations: FedProx draws with replacement; power-of-choice takes
the largest losses of candidates, and here they are weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree, Real

from fljax.core.values import LOSSES, Count, check_by_client, checked
from fljax.protocol import Algorithm, AnyArray, Available, Census, Cohort, Info, LocalData, Poll, Seat
from fljax.protocol.messages import Report
from fljax.scenarios import common
from fljax.scenarios.common import WithReport

ByClient = Annotated[Real[AnyArray, "*rounds N"] | Sequence[float] | Sequence[Sequence[float]], LOSSES]


@checked
def client_sampling(
    inner: Algorithm,
    *,
    by: Literal["size", "loss", "contribution"] | ByClient | Callable[[Array, PyTree], Any],
    clients: Count | None = None,
    contribution: ByClient | None = None,
) -> Algorithm:
    """In each round ``clients`` of the available clients are drawn, and the algorithm selects among these alone.

    One after the other is drawn without replacement, client k with the probability ``w_k / sum_j w_j`` over the clients
    that are left; infinite weights come first, and weights of 0, below 0 or NaN never. If the cohort has fewer rows,
    the algorithm selects some of the drawn clients; further rows stay empty.

    Aggregation does not change: with weights by size, as in ``fedavg``, sampling by size counts sizes twice. The plain
    mean (``weights = "uniform"``) of one drawn client, or of draws with replacement as in FedProx, is the mean by size
    in expectation. Without replacement, large clients are in it less often.

    Args:
      inner: any algorithm.
      by: the weights w. "size": numbers of training rows before round 0; "loss": of the models that clients would
        deploy, on their training rows; "contribution": as reported; numbers by client id ``[N]``, or ``[rounds, N]``
        with row ``t % rounds`` in round t; or a function ``(round, ballots) -> [N]`` of inner's ballots, ``()`` without
        a poll. By loss or contribution, all clients are polled in each round, also for ``inner``.
      clients: their number; None: as many as the cohort has rows.
      contribution: for ``by = "contribution"``, ``[N]`` or ``[rounds, N]``, whose last row also holds for later rounds.
        An experiment gives the algorithm's contributions, or standalone accuracies.

    Returns:
      The algorithm. Nested samplings draw independently, the outer one first.

    Raises:
      ValueError: if a name is not valid, ``contribution`` is missing, or numbers are for another number of clients.
    """
    number = common.key_number(inner, "client_sampling")
    asked = by if isinstance(by, str) and by != "size" else None
    given = contribution if asked == "contribution" else None if isinstance(by, str) or callable(by) else by
    if asked == "contribution" and given is None:
        raise ValueError("expected contribution to be numbers by client for client_sampling by contribution, got None")
    table, wrapped = None if given is None else jnp.asarray(given), common.with_server(inner)

    def init_server(key: Key[Array, ""], census: Census) -> WithReport:
        check_by_client(asked or "by", 0 if table is None else table, census.train.shape[0])
        return WithReport(Report(size=census.train), inner.init_server(key, census))

    def ask(key: Key[Array, ""], seat: Seat, down: PyTree, client: PyTree, data: LocalData) -> WithReport:
        ballot = () if inner.poll is None else inner.poll.ask(key, seat, down, client, data)
        if table is None:
            return WithReport(Report(common.deployed_scores(inner, "train", key, seat, down, client, data)[0]), ballot)
        now = table if table.ndim == 1 else table[jnp.minimum(seat.round, len(table) - 1)]
        return WithReport(Report(contribution=now[seat.id]), ballot)

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: WithReport, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        weight, own = server.report.size, ballots
        if asked is not None:
            weight, own = getattr(ballots.report, asked), ballots.inner
        elif table is not None:
            weight = table if table.ndim == 1 else table[round % len(table)]
        elif callable(by):
            weight = jnp.asarray(by(round, ballots))
            check_by_client("weights", weight, available.population, tables=False)
        weight = jnp.where(available.mask() & (weight > 0), weight, 0)
        # The bound is above all finite logarithms, also with Gumbel's numbers: infinite weights are drawn first.
        score = jnp.minimum(jnp.log(weight), 1000)
        score += jax.random.gumbel(jax.random.fold_in(key, number), weight.shape, jnp.float32)
        rows = clients or jax.eval_shape(inner.select, key, round, server.inner, own, available)[1].id.shape[0]
        _, id = jax.lax.top_k(score, min(rows, available.population))
        drawn = jnp.zeros(weight.shape, bool).at[id].set(weight[id] > 0)
        return wrapped.select(key, round, server, own, available.only(drawn))

    shown = asked == "loss" or (inner.poll is not None and inner.poll.shown)
    return wrapped._replace(
        init_server=init_server,
        poll=inner.poll if asked is None else Poll(ask, shown=shown),
        select=select,
        scenarios=common.applied_scenarios(inner, "client_sampling"),
    )


ENTRY = common.Entry(
    client_sampling,
    "clients are drawn by size, loss, contribution or given weights",
    {"by": (0.2, 1.0, 0.0, 3.0, 0.5), "clients": 3},
    ("li2020federated", "cho2022towards"),
    flat=("by",),
)
