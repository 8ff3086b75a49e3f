"""What the clients of a round need of the Server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Int, PyTree

from fljax.types import rows_of, with_rows


def own_server(
    server: PyTree, devices: int, id: Int[Array, " rows"] | None = None
) -> tuple[Any, Callable[[Any], PyTree]]:
    """What clients ``id`` (None: all) need of ``PerClient`` parts, and the Server made of one client's share.

    Several devices get the rows of the clients that they compute; one device reads them in its table.
    """
    if devices == 1:
        return (), lambda row: server
    return rows_of(server, id), lambda row: with_rows(server, row)
