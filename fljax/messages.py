"""What clients send: an update, and a report of themselves.

Floor 0: imports JAX only. The engine adds a report to nothing and reads none; it is what scenarios look for, so that a
client can say of itself what is not true, whichever algorithm asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PyTree


# An algorithm reads the values that it asks for, so they have the types of arrays.
NOT_ASKED: Any = None


class Report(NamedTuple):
    """What a client says of itself; the server cannot check it. None: the algorithm does not ask for it.

    A Report may stand anywhere in an Up or a Ballot, or be the whole Ballot.

    Attributes:
      loss: ``[]``, of the model that it was sent, on its own rows.
      size: ``[]``, its number of training samples.
      accuracy: ``[]``, of the model that it was sent, or ``[C]``, of each of several.
      threshold: ``[]``, the loss below which a model satisfies it.
      contribution: ``[]``, what it has to give: at least 0.
      bid: ``[C]``, how much each of several models is worth to it: at least 0.
    """

    loss: Float[Array, ""] = NOT_ASKED
    size: Int[Array, ""] = NOT_ASKED
    accuracy: Float[Array, "*C"] = NOT_ASKED
    threshold: Float[Array, ""] = NOT_ASKED
    contribution: Float[Array, ""] = NOT_ASKED
    bid: Float[Array, " C"] = NOT_ASKED


class Sent(NamedTuple):
    """What most algorithms have a client send: its update (new minus old), and what it reports."""

    update: PyTree
    report: Report = Report()


def changed_report(message: PyTree, name: str, change: Callable[[Any], Any]) -> PyTree:
    """A message with ``change`` applied to ``name`` in all Reports that it holds, where the algorithm asks for it."""

    def look(part: Any) -> Any:
        if not isinstance(part, Report) or getattr(part, name) is None:
            return part
        return part._replace(**{name: change(getattr(part, name))})

    return jax.tree.map(look, message, is_leaf=lambda part: isinstance(part, Report))


def changed_update(message: PyTree, change: Callable[[PyTree], PyTree]) -> PyTree:
    """A message with ``change`` applied to its field ``update``, also inside messages that it holds."""
    if hasattr(message, "_fields"):
        return message._replace(**_changed({field: getattr(message, field) for field in message._fields}, change))
    return _changed(message, change) if isinstance(message, dict) else message


def _changed(parts: dict[str, Any], change: Callable[[PyTree], PyTree]) -> dict[str, Any]:
    return {field: change(part) if field == "update" else changed_update(part, change) for field, part in parts.items()}
