"""Drift: clients' data change during training.

Source: "IP-FL: Incentivized and Personalized Federated Learning", section 6.4 and appendix D.2.4, on clients with
dynamic data. Its experiments change data after training alone (``mixture`` with ``complement``); the change during
training is ours. The new rows are the partition's (``ClientData.later``): another mixture of labels, or of rotated
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Integer, Key, PyTree

from fljax.core.values import Range, check_by_client, checked
from fljax.protocol import Algorithm, AnyArray, Available, Census, Cohort, Info, LocalData, Rows, Seat, Subset, along
from fljax.protocol.data import choose_list
from fljax.scenarios.common import Entry, applied_scenarios, with_clients


@checked
def drift(
    inner: Algorithm, *, at: Annotated[Integer[AnyArray, " N"] | Sequence[int] | int | Int[Array, ""], Range(0)]
) -> Algorithm:
    """From round ``at_k`` on client k trains on the rows that it has after its data have changed.

    Until then it trains on those from before. From ``at_k`` on its validation rows are its deployment rows; a client
    without such rows has none then, and algorithms that ask for them take its training rows. Test rows are those of the
    new data in every round, so metrics before ``at_k`` say what models are worth on data that are still to come.
    Standalone models, thresholds and the server's counts of rows are of the data from before.

    Args:
      inner: any algorithm.
      at: the first round with new data: one number, or one per client id ``[N]``. Unseen clients, who use models but do
        not train, change with the last seen one.

    Returns:
      The algorithm. Info: ``drifted`` [client], whose data have changed.

    Raises:
      ValueError: if ``at`` is for another number of clients, or clients have no rows for after the change, which
        ``mixture`` gives them with ``complement`` and ``drift_fraction``.
    """
    first = jnp.asarray(at, jnp.int32)

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        check_by_client("at", first, census.train.shape[0], tables=False)
        return inner.init_server(key, census)

    def current(seat: Seat, data: LocalData) -> LocalData:
        if data.later is None:
            raise ValueError(
                "expected clients with rows for after the drift, such as those of the partition mixture with "
                "complement and drift_fraction, got clients whose data do not change"
            )
        own = first if first.ndim == 0 else first[seat.id] if seat.known else jnp.max(first)
        changed = (seat.round >= own) & (data.later.train.rows.size > 0)
        return data._replace(
            train=_chosen(changed, data.later.train, data.train), valid=_chosen(changed, data.later.valid, data.valid)
        )

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        server, cohort, info = inner.select(key, round, server, ballots, available)
        drifted = round >= jnp.broadcast_to(first, (available.population,))
        return server, cohort, {**info, **along("client", drifted=drifted)}

    changing = with_clients(inner, lambda seat, client, data: (inner, client, current(seat, data)))
    return changing._replace(init_server=init_server, select=select, scenarios=applied_scenarios(inner, "drift"))


def _chosen(changed: Bool[Array, ""], later: Subset | None, before: Subset) -> Subset:
    """The later rows if the data have changed, else those from before; None: no rows."""
    rows = before.rows
    if later is None:
        return before._replace(rows=rows._replace(size=jnp.where(changed, 0, rows.size)))
    size = jnp.where(changed, later.rows.size, rows.size)
    return before._replace(rows=Rows(choose_list(changed, later.rows.index, rows.index), size))


ENTRY = Entry(drift, "clients' data change during training (IP-FL)", {"at": (0, 1, 5, 1, 0)}, ("khan2023ipfl",))
