"""A run of some clients only: what the others hold, and what the algorithm is told of them.

The law of coalitions: a run on some members equals the run of a federation that holds only these clients. Absence
alone would break it, since algorithms divide by the number of clients, rank them, or keep what they had.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from fljax.core import trees
from fljax.protocol import Algorithm, Available, Census, Cohort, Federation, Info, Rows


def rows_of_members(federation: Federation, member: Bool[Array, " N"]) -> Federation:
    """The federation in which the seen clients outside ``member`` hold test rows alone.

    Those of data that change during training, or before a model is used, are training and validation rows, too.

    ``Spans.least`` stays. It is read where clients train, and no client without rows is trained.

    Args:
      federation: of one seed, stored by id.
      member: by id.
    """

    def kept(rows: Rows) -> Rows:
        return rows._replace(size=jnp.where(member, rows.size, 0))

    clients = federation.clients
    parts = {part: kept(rows) for part, rows in clients.parts.items() if part != "test"}
    return federation._replace(clients=clients._replace(**parts))


def among_members(algorithm: Algorithm, member: Bool[Array, " N"]) -> Algorithm:
    """The algorithm in a federation of ``member`` alone: the others have left for good, before round 0.

    ``init_server`` gets ``Census.members``, and ``select`` gets ``Available.members``. Ballots of the others are those
    from before the first poll, zeros.
    """

    def init_server(key: Key[Array, ""], census: Census) -> PyTree:
        return algorithm.init_server(key, census._replace(members=member))

    def select(
        key: Key[Array, ""], round: Int[Array, ""], server: PyTree, ballots: PyTree, available: Available
    ) -> tuple[PyTree, Cohort, Info]:
        shown = trees.where_rows(member, ballots, jax.tree.map(jnp.zeros_like, ballots))
        return algorithm.select(key, round, server, shown, available.without(~member))

    return algorithm._replace(init_server=init_server, select=select)
