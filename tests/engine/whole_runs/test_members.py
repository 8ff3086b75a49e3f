"""What a client outside the federation of a run holds."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fljax.engine.rounds.federations import by_id
from fljax.engine.whole_runs.members import rows_of_members
from tests.toys.federation import tiny_federation


def test_who_is_outside_has_test_rows_alone() -> None:
    """Also where data change during training (``later``) or before use (``deployment``)."""
    data = by_id(tiny_federation())
    clients = data.clients._replace(later=data.clients.train, deployment=data.clients.valid)
    member = jnp.asarray([True, False, True, False, True])
    parts = rows_of_members(data._replace(clients=clients), member).clients.parts
    for name, rows in parts.items():
        whole = clients.parts[name].size
        np.testing.assert_array_equal(rows.size, whole if name == "test" else jnp.where(member, whole, 0))
