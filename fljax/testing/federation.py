"""A tiny ragged federation, a Task for it, and changes of it that leave a result as it is, or have a known effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.core import trees
from fljax.models import correct
from fljax.protocol import ClientData, Examples, Federation, Rows, Spans, Task
from fljax.protocol.data import RowLists

FEATURES, CLASSES = 4, 3  # of the examples
# Sizes by client id; the second half of each line belongs to the unseen clients.
TRAIN, UNSEEN_TRAIN = (7, 3, 5, 9, 4), (6, 4)
VALID, UNSEEN_VALID = (3, 2, 4, 3, 2), (2, 3)
TEST, UNSEEN_TEST = (6, 4, 5, 3, 6), (4, 5)
HELD = {"validation": 5, "test": 6}
STORED = (2, 0, 4, 1, 3)  # the ids in the order in which the clients are stored


def tiny_federation(seed: int = 0, *, extra: int = 0, dtype: Any = np.float32) -> Federation:
    """5 seen and 2 unseen clients, each with rows of its own; the last example is NaN and belongs to nobody.

    Args:
      seed: of the examples.
      extra: columns of padding beyond what the largest client needs.
      dtype: of the features.
    """
    rng = np.random.default_rng(seed)
    counts = np.array([[*TRAIN, *UNSEEN_TRAIN], [*VALID, *UNSEEN_VALID], [*TEST, *UNSEEN_TEST]])
    total = int(counts.sum()) + sum(HELD.values())
    x = rng.normal(size=(total, FEATURES))
    teacher = 2 * rng.normal(size=(FEATURES, CLASSES))
    starts = np.cumsum(counts.ravel()).reshape(counts.shape) - counts
    # Clients differ in what they prefer, so that personal models and clusters have something to find.
    shift = np.zeros((total, CLASSES))
    for part, client in np.ndindex(*counts.shape):
        rows_of_client = slice(starts[part, client], starts[part, client] + counts[part, client])
        shift[rows_of_client, client % CLASSES] = 0.5
    y = np.argmax(x @ teacher + shift, axis=1)

    def rows(part: int, clients: slice) -> Rows:
        size = counts[part, clients]
        column = np.arange(size.max() + extra)
        index = np.where(column[None, :] < size[:, None], starts[part, clients][:, None] + column[None, :], 0)
        return Rows(jnp.asarray(index, jnp.int32), jnp.asarray(size, jnp.int32))

    def population(clients: slice, count: int) -> ClientData:
        train, valid, test = (rows(part, clients) for part in range(3))
        # Once data have changed (the scenario drift), clients train on these validation rows.
        return ClientData(jnp.arange(count, dtype=jnp.int32), train, valid, test, later=valid)

    server_rows, start = {}, int(counts.sum())
    for name, size in HELD.items():
        server_rows[name] = Rows(jnp.arange(start, start + size, dtype=jnp.int32), jnp.int32(size))
        start += size
    x = np.concatenate([x, np.full((1, FEATURES), np.nan)]).astype(dtype)
    examples = Examples(jnp.asarray(x), jnp.asarray(np.append(y, 0), jnp.int32))
    seen = population(slice(0, 5), 5)
    federation = Federation(examples, seen, population(slice(5, 7), 2), server_rows)
    return store_in_order(federation, STORED)


def store_in_order(federation: Federation, ids: Sequence[int]) -> Federation:
    """The same clients with the same ids, stored in another order."""
    position = np.argsort(np.asarray(federation.clients.id))[np.asarray(ids)]
    return federation._replace(clients=trees.take(federation.clients, position))


def pad_with_nan(federation: Federation) -> Federation:
    """Padding of all index lists points to the example that is NaN."""
    nan_row = federation.examples.x.shape[0] - 1

    def repad(rows: Rows) -> Rows:
        real = jnp.arange(rows.index.shape[-1])[None, :] < rows.size[:, None]
        return rows._replace(index=jnp.where(real, rows.index, nan_row))

    assert federation.unseen is not None
    return federation._replace(clients=federation.clients.map_rows(repad), unseen=federation.unseen.map_rows(repad))


def with_lists(federation: Federation, between: int) -> Federation:
    """The federation with lists of rows in place of tables; example ``between`` stands between every two lists."""
    parts, total = [np.full(1, between, np.int32)], 1

    def move(rows: Rows) -> Rows:
        nonlocal total
        start = []
        for rows_of_client in RowLists.of(rows, None).by_client():
            start.append(total)
            parts.append(np.append(rows_of_client, between).astype(np.int32))
            total += len(rows_of_client) + 1
        return rows._replace(index=Spans(jnp.asarray(start, jnp.int32), rows.index.shape[-1]))

    seen = federation.clients.map_rows(move)
    unseen = None if federation.unseen is None else federation.unseen.map_rows(move)
    return federation._replace(clients=seen, unseen=unseen, lists=jnp.asarray(np.concatenate(parts)))


def spoil_client(federation: Federation, id: int) -> Federation:
    """All examples of one seen client become NaN."""
    return change_client(federation, id, np.nan)


def change_client(federation: Federation, id: int, factor: float = -2) -> Federation:
    """The features of all examples of one seen client are multiplied by a factor."""
    position = int(np.flatnonzero(np.asarray(federation.clients.id) == id)[0])
    x, clients = np.array(federation.examples.x), federation.clients
    lists = [RowLists.of(rows, federation.lists).by_client()[position] for rows in clients.parts.values()]
    x[np.unique(np.concatenate(lists))] *= factor
    return federation._replace(examples=federation.examples._replace(x=jnp.asarray(x)))


def with_other_rows(federation: Federation, who: np.ndarray, factor: float) -> Federation:
    """Multiplies all features of some seen clients, ``[N]`` by id, and gives their rows the next label."""
    x, y = np.array(federation.examples.x), np.array(federation.examples.y)
    there = np.flatnonzero(who[np.asarray(federation.clients.id)])
    lists = [RowLists.of(rows, federation.lists).by_client() for rows in federation.clients.parts.values()]
    rows = np.unique(np.concatenate([part[place] for part in lists for place in there]))
    x[rows] *= factor
    y[rows] = (y[rows] + 1) % CLASSES
    return federation._replace(examples=Examples(jnp.asarray(x), jnp.asarray(y)))


def twin_clients(federation: Federation, id: int, twin: int) -> Federation:
    """Gives client ``twin`` the very rows of client ``id``, so that whatever ranks them meets a tie."""
    ids = np.asarray(federation.clients.id)
    source = np.arange(len(ids))
    source[np.flatnonzero(ids == twin)[0]] = np.flatnonzero(ids == id)[0]
    return federation._replace(clients=trees.take(federation.clients, source)._replace(id=federation.clients.id))


def client_rows(federation: Federation, id: int, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The examples ``(x, y)`` of one seen client, for NumPy."""
    position = int(np.flatnonzero(np.asarray(federation.clients.id) == id)[0])
    rows = getattr(federation.clients, part)
    index = RowLists.of(rows, federation.lists).by_client()[position]
    return np.asarray(federation.examples.x)[index], np.asarray(federation.examples.y)[index]


# --- The task ------------------------------------------------------------------------------------------------


class Linear(NamedTuple):
    """``logits = x @ weight + bias``."""

    weight: Any  # [FEATURES, CLASSES]
    bias: Any  # [CLASSES]


def _features(params: Linear, x: Any) -> Any:
    return x @ params.weight


def _logits(params: Linear, x: Any, key: Any = None) -> Any:
    return _features(params, x) + params.bias[None, :]


def _loss(logits: Any, y: Any) -> Any:
    chosen = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def logistic_regression(dtype: Any = jnp.float32) -> Task:
    """Logistic regression as a Task, by hand: 4 features, 3 classes, 15 parameters.

    Parameters and prepared examples are of ``dtype``. The bias counts as the head.
    """

    def init(key: Any) -> Linear:
        return Linear(0.3 * jax.random.normal(key, (FEATURES, CLASSES), dtype), jnp.zeros((CLASSES,), dtype))

    return Task(
        init=init,
        logits=_logits,
        loss=_loss,
        features=_features,
        prepare=lambda x: x.astype(dtype),
        roles=lambda tree: Linear("trained", "head"),
        classes=CLASSES,
        width=CLASSES,
        score=correct,
    )
