"""Views of a federation that programs use: stored by id, as vectors, one client's data; whether tests are shared."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax.engine.devices.client_mapping import Spread
from fljax.engine.devices.layout import Layout
from fljax.protocol import (
    AbsentRows,
    Census,
    ClientData,
    Examples,
    Features,
    Federation,
    LaterData,
    LocalData,
    Names,
    Rows,
    Spans,
    Subset,
    Vectors,
)
from fljax.protocol.lists import RowLists
from fljax.training.evaluation import SIDE_BY_SIDE


def by_id(federation: Federation) -> Federation:
    """The federation, or stacked ones, with seen clients sorted by id: their original order does not matter."""
    # Names and raw features are left out: federations that differ in these alone run the same programs.
    federation = federation._replace(names=Names(), features=Features())
    try:
        if np.all(np.diff(np.asarray(federation.clients.id), axis=-1) > 0):
            return federation
    except jax.errors.TracerArrayConversionError:  # ids are unknown while tracing
        pass
    order = jnp.argsort(federation.clients.id, axis=-1)

    def sort(leaf: Array) -> Array:
        index = order.reshape(order.shape + (1,) * (jnp.ndim(leaf) - order.ndim))
        return jnp.take_along_axis(jnp.asarray(leaf), index, axis=order.ndim - 1)

    return federation._replace(clients=jax.tree.map(sort, federation.clients))


def as_vectors(federation: Federation) -> Federation:
    """The federation with each example as a vector; called once in a program, outside its loops."""
    # A TPU lays images out with the examples innermost, and would collect each row pixel by pixel.
    x: Any = Vectors.of(federation.examples.x)  # stands for an array wherever it is read by index
    return federation._replace(examples=federation.examples._replace(x=x))


def with_least(federation: Federation) -> Federation:
    """The federation with the least number of training rows (``Spans.least``), if it is near the largest one."""
    # Elsewhere it would be of no use, and federations with other numbers would need programs of their own.
    train = federation.clients.train
    if not isinstance(train.index, Spans):
        return federation
    least = int(np.min(np.asarray(train.size), initial=train.index.capacity))
    least = least if 2 * least > train.index.capacity else 0
    marked = train._replace(index=dataclasses.replace(train.index, least=least))
    return federation._replace(clients=federation.clients._replace(train=marked))


def without_rows(federation: Federation) -> Federation:
    """The federation without the rows of clients and server: sizes, moments and shapes alone."""

    def absent(array: Any) -> Any:
        return AbsentRows((0, *array.shape[1:]), np.dtype(array.dtype))

    def blank(rows: Rows) -> Rows:
        index: Any = rows.index
        if isinstance(index, Spans):
            return rows._replace(index=dataclasses.replace(index, start=jnp.zeros_like(jnp.asarray(index.start))))
        return rows._replace(index=jnp.zeros(index.shape, jnp.int32))

    examples = federation.examples
    return federation._replace(
        examples=Examples(absent(examples.x), absent(examples.y)),
        clients=federation.clients.map_rows(blank),
        unseen=None if federation.unseen is None else federation.unseen.map_rows(blank),
        held={name: blank(rows) for name, rows in federation.held.items()},
        lists=None if federation.lists is None else jnp.zeros(1, jnp.int32),
    )


def without_shared(federation: Federation) -> Federation:
    """The parts of a stacked federation with an axis of seeds; ``with_shared`` puts examples and lists back."""
    return federation._replace(examples=None, lists=None)  # type: ignore[arg-type]


def with_shared(client_parts: Federation, federation: Federation) -> Federation:
    """One seed's parts with the examples and lists of a stacked federation."""
    return client_parts._replace(examples=federation.examples, lists=federation.lists)


def census(federation: Federation) -> Census:
    """Sample counts by id, of a federation stored by id."""
    return Census(federation.clients.train.size, federation.clients.valid.size)


def local_data(federation: Federation, client: ClientData, *, deployed: bool = False) -> LocalData:
    """One client's data; only training features have noise. ``deployed``: deployment rows are the validation rows."""

    moments = federation.moments if client.moments is None else client.moments

    def subset(rows: Rows, noise: Any = None) -> Subset:
        index = rows.index
        if isinstance(index, Spans):
            assert federation.lists is not None
            index = index.of(federation.lists, rows.size)
        return Subset(federation.examples, Rows(index, rows.size), noise, moments=moments)

    valid = client.deployment if deployed and client.deployment is not None else client.valid
    data = LocalData(subset(client.train, client.noise), subset(valid), subset(client.test))
    if client.later is None:
        return data
    validation = None if client.deployment is None else subset(client.deployment)
    return data._replace(later=LaterData(subset(client.later, client.noise), validation))


def held_data(federation: Federation, layout: Layout) -> dict[str, Subset]:
    """The server's own examples by name; devices share the models that are judged on them."""
    spread = None if layout.devices == 1 else Spread(1 if layout.platform == "cpu" else SIDE_BY_SIDE, layout.devices)
    held = federation.held.items()
    return {
        name: Subset(federation.examples, Rows(*rows), spread=spread, moments=federation.moments) for name, rows in held
    }


def same_tests(federation: Federation) -> bool:
    """Whether all clients with test rows, seen and unseen, have the same in the same order, in each federation."""
    populations = [clients for clients in (federation.clients, federation.unseen) if clients is not None]
    tests = [RowLists.of(clients.test, federation.lists) for clients in populations]
    return all(_same(tests, place) for place in range(len(tests[0].size)))


# Lists of rows that are compared at a time on the host.
_COMPARED = 1024


def _same(tests: list[RowLists], place: int) -> bool:
    """Whether all clients of one federation with test rows have the same; ``place`` is that of the federation."""
    seen = tests[0]
    first = np.flatnonzero(seen.size[place])
    if not first.size:
        return False
    count, begin = int(seen.size[place, first[0]]), int(seen.start[place, first[0]])
    expected = seen.table[begin : begin + count]  # without padding
    for table, starts, sizes, _ in tests:
        has_tests = sizes[place] > 0
        if np.any(sizes[place][has_tests] != count):
            return False
        start = np.unique(starts[place][has_tests])  # a list that clients share is stored once
        if np.any(table[start] != expected[0]):
            return False
        for some in np.split(start, range(_COMPARED, len(start), _COMPARED)):
            if np.any(table[some[:, None] + np.arange(count)[None, :]] != expected[None, :]):
                return False
    return True
