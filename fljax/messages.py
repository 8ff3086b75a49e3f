"""What clients send: an update, and a report of themselves.

Floor 0: imports JAX and jaxtyping only. The engine never reads a report. Scenarios find reports by their type and
change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, PyTree

# Typed Any, so that fields can be annotated as arrays: an algorithm reads only what it asks for.
NOT_ASKED: Any = None


class Report(NamedTuple):
    """What a client says of itself; the server cannot check it. None: the algorithm does not ask for it.

    A Report may stand anywhere in an Up or a Ballot, or be the whole Ballot.

    Attributes:
      loss: ``[]``, on rows of its own: of the model that it was sent, or would use.
      size: ``[]``, its number of training samples.
      accuracy: ``[]``, on rows of its own: of the model that it would use; ``[C]``, of each of several.
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


def changed_report(message: PyTree, name: str, change: Callable[[Array], Array]) -> PyTree:
    """A message with ``change`` applied to ``name`` in all Reports that it holds, where the algorithm asks for it."""

    def look(part: PyTree) -> PyTree:
        if not isinstance(part, Report) or getattr(part, name) is None:
            return part
        return part._replace(**{name: change(getattr(part, name))})

    return jax.tree.map(look, message, is_leaf=lambda part: isinstance(part, Report))


def changed_update(message: PyTree, change: Callable[[PyTree], PyTree]) -> PyTree:
    """A message with ``change`` applied to its field ``update``, also inside messages that it holds."""
    if hasattr(message, "_fields"):
        return message._replace(**changed_update(message._asdict(), change))
    if not isinstance(message, dict):
        return message
    return {name: change(part) if name == "update" else changed_update(part, change) for name, part in message.items()}
