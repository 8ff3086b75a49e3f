"""The clients of a federation: it is made of the data of each, and what each has is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fljax.core.names import check_same_labels, labels_along, names_of_columns, shown, unknown
from fljax.data.arrays import as_array, check_finite, check_known, join_labels, number_labels, plain_labels, text_of
from fljax.data.datasets import Dataset, check_rows, dataset
from fljax.data.federation import federate
from fljax.data.tables import ROW_PARTS
from fljax.protocol import ClientData, Features, Federation
from fljax.protocol.data import RowLists

PARTS = ("train", "valid", "test")


def from_clients(
    clients: Mapping[Any, Any],
    *,
    test_data: tuple[Any, Any] | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
    **options: Any,
) -> Federation:
    """Makes a federation from the examples of each client.

    ::

        federation = data.from_clients({"anna": (x, y), "ben": (x2, y2)}, train_fraction=0.8)
        federation = data.from_clients({"anna": {"train": (x, y), "test": (x2, y2)}, ...})
        federation.names.classes[0], federation.names.clients[0]  # the label of class 0, the name of client 0

    Args:
      clients: by client, ``(x, y)``, or a mapping of ``"train"`` and, if the user chose them, ``"valid"`` and
        ``"test"`` to such pairs. ``federate`` splits rows of the other parts off the training rows. Clients are
        numbered in the order of this mapping; the keys are kept as ``names.clients``.
        x: ``[rows, ...]``; uint8 stays uint8 (images), other whole numbers (tokens) become int32, floats float32.
        y: labels ``[rows]``: text, bools or whole numbers are classes, and floats are numbers to predict. Labels that
        are not 0..C-1 are numbered in ascending order over all clients, and kept as ``names.classes``.
      test_data: ``(x, y)`` of a global test set, kept as ``held["test"]``.
      classes: number of classes, if no client has a row of some class; whole numbers are then kept as they are.
      regression: True turns whole numbers into numbers to predict; False turns floats into classes.
      vocabulary: number of different tokens in ``x [rows, length]``; None: ``x`` is not checked for tokens.
      **options: as for ``federate``: ``unseen`` (so many clients, or a list of them, never train), ``train_fraction``,
        ``valid_fraction``, ``test="global"``, ``held_fraction``, ``seed``.

    Raises:
      ValueError: if clients are not alike in the shape of their rows or the kind of their labels, a client has no
        training rows, or numbers are not finite; the message names the client. And as for ``federate``.
    """
    made = dataset_from_clients(
        clients, test_data=test_data, classes=classes, regression=regression, vocabulary=vocabulary
    )
    return federate(made, options.pop("partition", "natural"), **options)


def dataset_from_clients(
    clients: Mapping[Any, Any],
    *,
    test_data: tuple[Any, Any] | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    vocabulary: int | None = None,
) -> Dataset:
    """As ``from_clients``, but the Dataset: for several federations of it, or for another partition.

    Raises:
      ValueError: as for ``from_clients``.
    """
    if not isinstance(clients, Mapping) or not clients:
        raise ValueError(f"expected a mapping of each client to (x, y), with at least one client, got {shown(clients)}")
    given, clients = list(clients), {text_of(name): rows for name, rows in clients.items()}
    if len(clients) < len(given):
        raise ValueError(f"expected clients with different names, got bytes and text alike in {shown(given)}")
    parts = [part for number, (name, rows) in enumerate(clients.items()) for part in _parts(name, number, rows)]
    _check_same_parts(parts, len(clients))
    names = [part.name for part in parts]
    if test_data is not None:
        parts.append(_part("test_data", -1, 2, "test", test_data))
        names.append("test_data")
    check_same_labels(1, {f"{PARTS[part.which]} features of {shown(part.name)}": part.columns for part in parts})
    check_same_labels(1, {f"{PARTS[part.which]} labels of {shown(part.name)}": part.targets for part in parts})
    parts, names = zip(*[(part, name) for part, name in zip(parts, names, strict=True) if len(part.y)], strict=True)
    x, y = _join_features([part.x for part in parts], names), join_labels([part.y for part in parts], names, regression)
    owner = np.concatenate([np.full(len(part.y), part.owner, np.int32) for part in parts])
    which = np.concatenate([np.full(len(part.y), part.which, np.int8) for part in parts])
    check_known(y, which > 0, regression)
    labels = number_labels(y, classes=classes, regression=regression)
    size = int(np.sum(owner >= 0))
    made = dataset(x, labels.y, owner=owner, classes=labels.classes, train_size=size, vocabulary=vocabulary)
    chosen = bool(np.any(which[:size] > 0))
    made = made._replace(part=which if chosen else None, class_names=labels.names, owner_names=tuple(clients))
    columns = [part.columns for part in parts if part.columns is not None and x.ndim == 2]
    return made._replace(features=Features(names_of_columns(columns[0]) if columns else None))


class _Part(NamedTuple):
    """Some rows of one client: whose they are, and what for (a place in PARTS)."""

    name: Any
    owner: int
    which: int
    x: np.ndarray
    y: np.ndarray
    columns: Any = None  # of a table of features
    targets: Any = None  # of a table of labels


def _parts(name: Any, number: int, rows: Any) -> list[_Part]:
    """The parts of one client's data."""
    if not isinstance(rows, Mapping):
        return [_part(name, number, 0, "train", rows)]
    for key in rows:
        if key not in PARTS:
            raise ValueError(f"{unknown('part', str(key), PARTS)} of client {shown(name)}")
    if "train" not in rows:
        raise ValueError(f"expected training rows of each client ('train'), got none of client {shown(name)}")
    return [_part(name, number, which, part, rows[part]) for which, part in enumerate(PARTS) if part in rows]


def _part(name: Any, number: int, which: int, word: str, pair: Any) -> _Part:
    whose = word if number < 0 else f"{word} rows of client {shown(name)}"
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        got = f"an array {pair.shape}" if isinstance(pair, np.ndarray) else shown(pair)
        raise ValueError(f"expected a pair (x, y) as {whose}, got {got}")
    check_same_labels(0, {"x": pair[0], "y": pair[1]})
    columns, targets = (labels_along(table, 1) for table in pair)
    x, y = as_array("features", pair[0]), plain_labels(pair[1], whose)
    if which and number >= 0 and np.ndim(y) >= 1 and len(y) == 0 == len(x):
        return _Part(name, number, which, x, y)
    try:
        check_rows(x, y)
    except ValueError as error:
        raise ValueError(f"{whose}: {error}") from None
    check_finite(f"features of {whose}", x)
    check_finite(f"labels of {whose}", y)
    return _Part(name, number, which, x, y, columns, targets)


def _check_same_parts(parts: Sequence[_Part], clients: int) -> None:
    """Raises a ValueError if some clients have a validation or test part, and others have none."""
    for which, word in enumerate(PARTS):
        having = {part.owner for part in parts if part.which == which}
        if having and len(having) < clients:
            lacking = next(part.name for part in parts if part.owner not in having)
            raise ValueError(f"expected '{word}' of all clients or of none, got none of client {shown(lacking)}")


def _join_features(parts: Sequence[np.ndarray], names: Sequence[Any]) -> np.ndarray:
    """All rows in one array."""
    first = parts[0]
    for part, name in zip(parts, names, strict=True):
        if part.shape[1:] != first.shape[1:] or (part.dtype == np.uint8) != (first.dtype == np.uint8):
            one, other = (f"rows {rows.shape[1:]} of {rows.dtype}" for rows in (first, part))
            raise ValueError(
                f"expected features alike in all clients, got {one} of {shown(names[0])} and {other} of {shown(name)}"
            )
    return np.concatenate(parts)


class ClientCounts(NamedTuple):
    """What each client of a federation has, first the seen clients and then the unseen ones.

    Attributes:
      clients: the user's name of each client; the client's number if it has no name.
      unseen: whether a client never trains, ``[N]``.
      train: number of training rows, ``[N]``.
      valid: number of validation rows, ``[N]``.
      test: number of test rows, ``[N]``; all clients have the same ones if the test set is global.
      deployment: number of validation rows when clients use their models, ``[N]``; 0 if their data do not change.
      later: number of training rows once clients' data have changed during training, ``[N]``; 0 if they do not.
      labels: training rows of each label, ``[N, classes]``; None if labels are not classes.
      classes: the user's name of each class; the class's number if it has no name. Empty if labels are not classes.
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
        **{part: sizes(part) for part in ROW_PARTS},
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
