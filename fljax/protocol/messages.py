"""What clients send: an update, and a report about themselves.

Scenarios find reports by their type and change them. The engine never uses a report; it only looks for NaN in it.

What only a client can know travels in its report; no aggregation reads it from a closure. Thresholds travel with each
update, contributions before each round (``Poll(shown=False)``: nothing is sent to ask for them), bids in each ballot.
IP-FL's honest bid is the importance that a client reports. IAFL's server keeps rates and not contributions, which may
be NaN or infinite.

A model change is the field ``update``. It is relative to what the server knows: in FedSoft to the mean of the cluster
models, in FedFomo to the client's last upload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

# Typed Any, so that fields can be annotated as arrays: an algorithm reads only the fields that it asks for.
NOT_ASKED: Any = None


class Report(NamedTuple):
    """What a client reports about itself; the server cannot check it. None: the algorithm does not ask for the value.

    A Report may be anywhere in an Up or a Ballot, or be the whole Ballot.

    Attributes:
      loss: ``[]``, loss of the received or the deployed model on the client's own rows.
      size: ``[]``, the client's number of training samples.
      accuracy: ``[]``, accuracy of the deployed model on the client's own rows; ``[C]``, of each of several models.
      threshold: ``[]``, the loss below which a model satisfies the client.
      contribution: ``[]``, the client's contribution, at least 0.
      bid: ``[C]``, the worth of each of several models to the client, at least 0.
    """

    loss: Float[Array, ""] = NOT_ASKED
    size: Int[Array, ""] = NOT_ASKED
    accuracy: Float[Array, "*C"] = NOT_ASKED
    threshold: Float[Array, ""] = NOT_ASKED
    contribution: Float[Array, ""] = NOT_ASKED
    bid: Float[Array, " C"] = NOT_ASKED


class Sent(NamedTuple):
    """The Up of most algorithms: a client's update and its report.

    An algorithm may send another NamedTuple. Scenarios then change its field ``update`` and its Reports, and leave all
    other fields as they are. If ``update`` is a normalised change (FedNova's change per step), scenarios that clip it
    or add noise act on the normalised change.

    Attributes:
      update: the change of the model, new minus old.
      report: what the client says about itself.
    """

    update: PyTree
    report: Report = Report()


def changed_reports(message: PyTree, change: Callable[[Report], Report]) -> PyTree:
    """The message with ``change`` applied to each of its Reports."""

    def look(part: Any) -> Any:
        return change(part) if isinstance(part, Report) else part

    return jax.tree.map(look, message, is_leaf=lambda part: isinstance(part, Report))


def changed_report(message: PyTree, name: str, change: Callable[[Array], Array]) -> PyTree:
    """The message with ``change`` applied to the value ``name`` of all its Reports; None values are skipped."""

    def look(part: Report) -> Report:
        value = getattr(part, name)
        return part if value is None else part._replace(**{name: change(value)})

    return changed_reports(message, look)


def changed_update(message: PyTree, change: Callable[[PyTree], PyTree]) -> PyTree:
    """The message with ``change`` applied to its field ``update``, and to ``update`` of nested messages."""
    if hasattr(message, "_fields"):
        return message._replace(**changed_update(message._asdict(), change))
    if not isinstance(message, dict):
        return message
    return {name: change(part) if name == "update" else changed_update(part, change) for name, part in message.items()}


def updates_of(message: PyTree) -> list[PyTree]:
    """Every field ``update`` of a message, also inside other messages."""
    updates: list[PyTree] = []
    changed_update(message, updates.append)
    return updates


def is_not_finite(message: PyTree) -> Bool[Array, ""]:
    """Whether a message has a NaN, or an infinity outside of its Reports; False for an empty message.

    A Report may say on purpose that a loss or a threshold is infinite, but never that it is NaN.
    """
    wrong = jnp.zeros((), bool)
    for part in jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Report)):
        for leaf in map(jnp.asarray, jax.tree.leaves(part)):
            if jnp.issubdtype(leaf.dtype, jnp.inexact):
                entries = jnp.isnan(leaf) if isinstance(part, Report) else ~jnp.isfinite(leaf)
                wrong = wrong | jnp.any(entries)
    return wrong
