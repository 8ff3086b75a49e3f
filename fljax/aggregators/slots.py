"""From a schedule to rows of updates, and back to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp

from fljax.aggregators.arrays import check_shape, on_any_mesh, set_rows
from fljax.aggregators.tokens import Schedule

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


class SlotRows(NamedTuple):
    """A row for each slot of a schedule, S = C K: first those of cluster 0.

    Attributes:
      id: ``[S]``, the client that trains; in an empty slot, some client, whose update is not used.
      cluster: ``[S]``, the cluster whose model it trains.
      present: ``[S]``, False where the slot is empty.
      membership: ``[S, C]``, for ``cluster_means`` and ``member_weights``; False in the row of an empty slot.
    """

    id: Int[Array, " S"]
    cluster: Int[Array, " S"]
    present: Bool[Array, " S"]
    membership: Bool[Array, "S C"]


@on_any_mesh
def slot_rows(chosen: Schedule) -> SlotRows:
    """The slots of all clusters as rows, in which updates are stacked.

    Args:
      chosen: from ``schedule``. If a client did not answer, set ``present`` False in its slots first.
    """
    clusters = jnp.arange(chosen.id.shape[0], dtype=jnp.int32)
    cluster, present = jnp.repeat(clusters, chosen.id.shape[1]), chosen.present.reshape(-1)
    return SlotRows(chosen.id.reshape(-1), cluster, present, present[:, None] & (cluster[:, None] == clusters[None, :]))


@on_any_mesh
def record_slots(table: Array, chosen: Schedule, values: Float[Array, "C S"] | Array | complex) -> Array:
    """``table[k, c] = values[c, s]`` where slot s of cluster c holds client k; other entries of ``table`` stay.

    Args:
      table: ``[N, C]``, by client and cluster.
      chosen: from ``schedule``; nothing is recorded for an empty slot.
      values: ``[C, S]``, columns in the order of ``slot_rows``, as from ``shapley_first_order``; or one value for all.

    Returns:
      ``[N, C]`` in the dtype of ``table``. ``record_slots(jnp.zeros((N, C), bool), chosen, True)`` gives the members.

    Raises:
      ValueError: if ``table`` or ``values`` has another shape.
    """
    rows, table, values = slot_rows(chosen), jnp.asarray(table), jnp.asarray(values)
    check_shape("table", table, "N, C", table.shape[0], chosen.id.shape[0])
    if values.ndim > 0:
        check_shape("values", values, "C, S", chosen.id.shape[0], rows.id.shape[0])
        values = values[rows.cluster, jnp.arange(rows.id.shape[0])]
    return set_rows(table, (rows.id, rows.cluster), rows.present, values.astype(table.dtype))
