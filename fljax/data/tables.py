"""Index tables: construction, padding, stacking, and counts of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.types import Census, ClientData, Examples, Federation, Names, Rows


def row_table(lists: Sequence[np.ndarray], n_max: int | None = None) -> Rows:
    """Packs index lists into one table ``[len(lists), n_max]``, padded with 0; None: the longest length."""
    size = np.array([len(each) for each in lists], np.int32)
    # The second axis has at least one entry, as reading row 0 of an empty table would be an error.
    index = np.zeros((len(lists), max(int(size.max()), 1) if n_max is None else n_max), np.int32)
    for row, each in zip(index, lists, strict=True):
        row[: len(each)] = each
    return Rows(jnp.asarray(index), jnp.asarray(size))


def client_table(
    train: Sequence[np.ndarray],
    valid: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    noise: np.ndarray | None = None,
) -> ClientData:
    """Packs the index lists of clients 0..len(train)-1."""
    spread = None if noise is None else jnp.asarray(noise, jnp.float32)
    ids = jnp.arange(len(train), dtype=jnp.int32)
    return ClientData(ids, row_table(train), row_table(valid), row_table(test), spread)


def pad(federation: Federation, n_max: int, *, fill: int = 0) -> Federation:
    """Lengthens every index table to ``n_max`` and sets all padding to example ``fill``; real rows do not change.

    Args:
      federation: one federation, or several stacked.
      n_max: new length of the tables; longer tables keep their length.
      fill: the index of an example, used as padding.
    """

    def lengthen(rows: Rows) -> Rows:
        return _lengthen(rows, max(n_max, rows.index.shape[-1]), fill)

    return _map_rows(lengthen, federation)


def stack(federations: Sequence[Federation]) -> Federation:
    """Stacks federations, one per seed: every leaf except the examples gets a leading axis ``[seeds]``.

    Index tables are padded with 0 to one shape. Equal examples are stored once; different examples are concatenated,
    and the indices are shifted accordingly. Names of clients are kept if they are the same in all federations.

    Args:
      federations: at least one; all with the same numbers of seen and unseen clients and the same names in ``held``.

    Raises:
      ValueError: if there is no federation, or federations differ in more than their rows.
    """
    federations = list(federations)
    if not federations:
        raise ValueError("expected at least one federation to stack, got none")
    shapes = {_describe(each) for each in federations}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise ValueError(f"expected federations alike in clients and held rows, got {first} beside {second}")
    examples, offsets = _join([each.examples for each in federations])
    moved = [_move(each, offset) for each, offset in zip(federations, offsets, strict=True)]
    moved = [_with_noise(each, federations) for each in moved]
    is_rows: Callable[[Any], bool] = lambda node: isinstance(node, Rows)  # noqa: E731

    def join(*nodes: Any) -> Any:
        if isinstance(nodes[0], Rows):
            longest = max(rows.index.shape[-1] for rows in nodes)
            nodes = tuple(_lengthen(rows, longest, 0) for rows in nodes)
        return jax.tree.map(lambda *leaves: _compute(lambda numpy: jnp.asarray(numpy.stack(leaves))), *nodes)

    parts = [(each.clients, each.unseen, dict(each.held)) for each in moved]
    clients, unseen, held = jax.tree.map(join, *parts, is_leaf=is_rows)
    return Federation(examples, clients, unseen, held, _shared_names([each.names for each in federations]))


def _shared_names(names: Sequence[Names]) -> Names:
    """The names that are the same in all federations; None in place of others."""

    def shared(values: list[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
        return values[0] if all(each == values[0] for each in values) else None

    return Names(*(shared([getattr(each, field) for each in names]) for field in ("classes", "clients", "unseen")))


def census(federation: Federation) -> Census:
    """Counts each client's training and validation rows, by client id and not by the order of storage.

    Args:
      federation: one federation; use ``jax.vmap`` for stacked federations.
    """
    clients = federation.clients

    def by_id(size: Any) -> Any:
        size = jnp.asarray(size)
        return jnp.zeros_like(size).at[clients.id].set(size)

    return Census(by_id(clients.train.size), by_id(clients.valid.size))


def _compute(function: Callable[[Any], Any]) -> Any:
    """``function(numpy)``, or ``function(jax.numpy)`` while tracing. JAX would compile each small operation."""
    try:
        return function(np)
    except jax.errors.TracerArrayConversionError:
        return function(jnp)


def _lengthen(rows: Rows, n_max: int, fill: int) -> Rows:
    def lengthened(numpy: Any) -> Any:
        index = numpy.asarray(rows.index)
        index = numpy.pad(index, [(0, 0)] * (index.ndim - 1) + [(0, n_max - index.shape[-1])])
        real = numpy.broadcast_to(numpy.arange(n_max), index.shape) < numpy.asarray(rows.size)[..., None]
        return jnp.asarray(numpy.where(real, index, numpy.asarray(fill, index.dtype)))

    return rows._replace(index=_compute(lengthened))


def _map_rows(function: Callable[[Rows], Rows], federation: Federation) -> Federation:
    def clients(data: ClientData) -> ClientData:
        return data._replace(train=function(data.train), valid=function(data.valid), test=function(data.test))

    return federation._replace(
        clients=clients(federation.clients),
        unseen=None if federation.unseen is None else clients(federation.unseen),
        held={name: function(rows) for name, rows in federation.held.items()},
    )


def _describe(federation: Federation) -> str:
    clients = [None if each is None else each.id.shape for each in (federation.clients, federation.unseen)]
    x, y = federation.examples
    held, labels = sorted(federation.held), f"labels {y.dtype} {y.shape[1:]}"
    return f"clients {clients[0]}, unseen {clients[1]}, held {held}, examples {x.dtype} {x.shape[1:]}, {labels}"


def _join(parts: list[Examples]) -> tuple[Examples, list[int]]:
    """Concatenates all different examples; also returns the offset of each part's examples."""
    unique: list[Examples] = []
    which = []
    for part in parts:
        place = next((i for i, each in enumerate(unique) if _same(part, each)), len(unique))
        if place == len(unique):
            unique.append(part)
        which.append(place)
    if len(unique) == 1:
        return unique[0], [0] * len(parts)
    starts = np.cumsum([0] + [len(each.y) for each in unique])
    joined = Examples(jnp.concatenate([e.x for e in unique]), jnp.concatenate([e.y for e in unique]))
    return joined, [int(starts[place]) for place in which]


def _same(one: Examples, other: Examples) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return a is b or (a.shape == b.shape and a.dtype == b.dtype and bool(jnp.array_equal(a, b)))

    return equal(one.x, other.x) and equal(one.y, other.y)


def _move(federation: Federation, offset: int) -> Federation:
    if offset == 0:
        return federation

    def move(rows: Rows) -> Rows:
        return _lengthen(rows._replace(index=rows.index + offset), rows.index.shape[-1], 0)

    return _map_rows(move, federation)


def _with_noise(federation: Federation, others: list[Federation]) -> Federation:
    """Sets absent noise to zeros if another federation has noise, since stacking needs the same leaves."""
    if all(each.clients.noise is None for each in others):
        return federation

    def filled(data: ClientData | None) -> ClientData | None:
        if data is None or data.noise is not None:
            return data
        return data._replace(noise=jnp.zeros(data.id.shape, jnp.float32))

    clients = filled(federation.clients)
    assert clients is not None
    return federation._replace(clients=clients, unseen=filled(federation.unseen))
