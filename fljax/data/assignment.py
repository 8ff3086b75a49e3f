"""Partition: which rows each client gets; and the steps that partitioners are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.data.checks import check_count

Row = Int[np.ndarray, " rows"]


class Partition(NamedTuple):
    """What a partitioner returns: rows by client, the seen clients first and then the unseen ones.

    No row stands twice. Rows count from 0 within the labels that the partitioner was given; row ``n + j`` is
    the copy of row ``rotated[j]``, turned by 90 degrees, whose original then stands nowhere.

    Attributes:
      rows: the rows of each client; training rows only where ``test`` is given.
      test: the test rows of each client, where the recipe fixes them; None: they are split off ``rows``.
      noise: standard deviation of the noise on each client's standardised training features; None: no noise.
      group: the group (cluster, source distribution) that each client belongs to; None where there are none.
      rotated: rows whose turned copies are used in place of the originals.
      held: rows that stay with the server, by name.
    """

    rows: tuple[Row, ...]
    test: tuple[Row, ...] | None = None
    noise: Float[np.ndarray, " clients"] | None = None
    group: Int[np.ndarray, " clients"] | None = None
    rotated: Row = np.zeros(0, np.int64)
    held: Mapping[str, Row] = {}


def begin(
    labels: np.ndarray, clients: int, unseen: int, seed: int, minimum: int = 1
) -> tuple[np.ndarray, int, np.random.Generator]:
    """Checks what all partitioners take; returns the labels as an array, the number of all clients, a
    generator.

    Raises:
      ValueError: a count is out of range, or there are too few samples for ``minimum`` each.
    """
    labels = np.asarray(labels)
    everybody = check_count("clients", clients) + check_count("unseen", unseen, 0)
    check_count("minimum", minimum)
    check_count("seed", seed, 0)
    if everybody * minimum > len(labels):
        raise ValueError(
            f"expected at least {minimum} samples for each of {everybody} clients, got {len(labels)} in all"
        )
    return labels, everybody, np.random.default_rng(seed)


def count_classes(labels: np.ndarray, classes: int | None) -> int:
    """Returns ``classes``, or the largest label plus one where it is None.

    Raises:
      ValueError: labels are no classes.
    """
    check_class_labels(labels)
    return int(labels.max()) + 1 if classes is None else check_count("classes", classes)


def check_class_labels(labels: np.ndarray) -> None:
    """Raises a ValueError unless labels are whole numbers ``[n]``, one class for each row."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            "expected one whole-number label for each row, since this partition deals by classes, got labels of "
            f"{labels.dtype} with shape {labels.shape}; iid, quantity, noise and natural take any labels"
        )


def relative_order(clients: int, unseen: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns each client's position among its own kind, and how many there are of that kind.

    Recipes that go by the client's number treat unseen clients as a population of their own, made alike.
    """
    position = np.concatenate([np.arange(clients), np.arange(unseen)])
    return position, np.repeat([clients, unseen], [clients, unseen])


def cut(fractions: np.ndarray, total: int) -> np.ndarray:
    """Returns whole counts that sum to ``total``: the differences of ``floor(cumsum(fractions) * total)``."""
    # The small number undoes rounding in the sum, which would otherwise lose a sample to the next client.
    edges = np.floor(np.cumsum(fractions) * total + 1e-9).astype(int)
    edges[-1] = total
    return np.diff(np.minimum(edges, total), prepend=0)


def take(order: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cuts ``order`` into consecutive pieces of the given lengths."""
    return np.split(order[: int(np.sum(counts))], np.cumsum(counts)[:-1])


def repair(rows: Sequence[np.ndarray], minimum: int) -> list[np.ndarray]:
    """Moves rows from the largest client to each that is short of ``minimum``; needs enough rows in all.

    Each move fills a short client or brings the largest down to ``minimum``, so there are at most 2 moves per
    client.
    """
    rows = list(rows)
    sizes = np.array([len(each) for each in rows])
    for client in np.flatnonzero(sizes < minimum):
        while sizes[client] < minimum:
            donor = int(np.argmax(sizes))
            moved = int(min(minimum - sizes[client], sizes[donor] - minimum))
            rows[client] = np.concatenate([rows[client], rows[donor][-moved:]])
            rows[donor] = rows[donor][:-moved]
            sizes[client] += moved
            sizes[donor] -= moved
    return rows


def require(rows: Sequence[np.ndarray], minimum: int, remedy: str) -> None:
    """Raises a ValueError where a client has fewer than ``minimum`` rows."""
    least = min(len(each) for each in rows)
    if least < minimum:
        raise ValueError(f"expected at least {minimum} samples for each client, got one with {least}; {remedy}")
