"""What the clients of a federation have: numbers of rows, labels by client, numbers to predict by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fljax.protocol import ClientData, Federation
from fljax.protocol.lists import RowLists


class ClientCounts(NamedTuple):
    """What each client of a federation has, first the seen clients and then the unseen ones.

    Attributes:
      clients: what the user calls each client; the client's number if it has no name.
      unseen: whether a client never trains, ``[N]``.
      train: number of training rows, ``[N]``.
      valid: number of validation rows, ``[N]``.
      test: number of test rows, ``[N]``; all clients have the same ones if the test set is global.
      deployment: number of validation rows when clients use their models, ``[N]``; 0 if their data do not change.
      later: number of training rows once clients' data have changed during training, ``[N]``; 0 if they do not.
      labels: training rows of each label, ``[N, classes]``; None if labels are not classes.
      classes: what the user calls each class; the class's number if it has no name. Empty if labels are not classes.
      targets: the labels of each client's training rows, flat; None if labels are classes.
    """

    clients: tuple[Any, ...]
    unseen: Bool[np.ndarray, " N"]
    train: Int[np.ndarray, " N"]
    valid: Int[np.ndarray, " N"]
    test: Int[np.ndarray, " N"]
    deployment: Int[np.ndarray, " N"]
    later: Int[np.ndarray, " N"]
    labels: Int[np.ndarray, "N classes"] | None
    classes: tuple[Any, ...]
    targets: tuple[np.ndarray, ...] | None


def count_clients(federation: Federation, classes: int | None) -> ClientCounts:
    """Counts the rows of each client and their labels; clients are in the order of their ids.

    Args:
      federation: one federation, not several stacked ones.
      classes: number of classes; None if labels are not classes.
    """
    y = np.asarray(federation.examples.y)
    groups = [federation.clients] if federation.unseen is None else [federation.clients, federation.unseen]
    orders = [np.argsort(np.asarray(group.id)) for group in groups]
    lists = [_rows(group, order, federation.lists) for group, order in zip(groups, orders, strict=True)]
    trained = [rows for clients in lists for rows in clients]

    def sizes(part: str) -> np.ndarray:
        counts = []
        for group, order in zip(groups, orders, strict=True):
            rows = group.parts.get(part)
            counts.append(np.zeros(len(order), int) if rows is None else np.asarray(rows.size)[order])
        return np.concatenate(counts)

    names = [*_names(federation.names.clients, len(orders[0]))]
    if federation.unseen is not None:
        names += _names(federation.names.unseen, len(orders[1]))
    labels = targets = None
    if classes is not None and y.ndim == 1:
        labels = np.stack([np.bincount(y[rows], minlength=classes) for rows in trained])
    else:
        targets = tuple(y[rows].reshape(-1) for rows in trained)
    return ClientCounts(
        clients=tuple(names),
        unseen=np.repeat([False, True][: len(groups)], [len(order) for order in orders]),
        train=sizes("train"),
        valid=sizes("valid"),
        test=sizes("test"),
        deployment=sizes("deployment"),
        later=sizes("later"),
        labels=labels,
        classes=tuple(_names(federation.names.classes, classes or 0)) if labels is not None else (),
        targets=targets,
    )


def name_text(name: Any) -> str:
    """A name for people: in quotes if it is empty, or begins or ends with a space."""
    text = str(name)
    return text if text.strip() == text and text else repr(text)


def _rows(group: ClientData, order: np.ndarray, lists: Any) -> list[np.ndarray]:
    rows = RowLists.of(group.train, lists).by_client()
    return [rows[place] for place in order]


def _names(known: Sequence[Any] | None, count: int) -> list[Any]:
    """The given names, or numbers; a class without a row may have no name."""
    names = list(known or ())
    return [*names, *range(len(names), count)]
