"""Index lists and tables: construction, reading, padding, stacking, and counts of rows."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from fljax.core.names import unknown
from fljax.data.arrays import check_unchanged
from fljax.protocol import Census, ClientData, Examples, Features, Federation, Moments, Names, Rows, Spans
from fljax.protocol.data import AnyArray, RowLists

ROW_PARTS = ("train", "valid", "test", "deployment", "later")


def held_rows(rows: np.ndarray) -> Rows:
    """One index list of the server; it has at least one entry, as reading row 0 of an empty one would be an error."""
    index = _numbers_of_rows(rows) if len(rows) else np.zeros(1, np.int32)
    return Rows(jnp.asarray(index), jnp.asarray(len(rows), jnp.int32))


def _numbers_of_rows(rows: np.ndarray) -> np.ndarray:
    """As int32, in which larger numbers would wrap to other rows."""
    rows = np.asarray(rows)
    if rows.dtype != np.int32 and rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < 2**31:
        raise ValueError(f"expected numbers of rows from 0 to 2^31 - 1, got {int(rows.min())} to {int(rows.max())}")
    return rows.astype(np.int32)


class ListStore:
    """Collects index lists of clients, one after another, for ``Federation.lists``."""

    def __init__(self) -> None:
        # Entry 0 is what an empty list reads.
        self._parts, self._total = [np.zeros(1, np.int32)], 1
        self._shared: dict[int, tuple[np.ndarray, int]] = {}  # by identity; the list is kept so that its id is

    def add(self, lists: Sequence[np.ndarray]) -> Rows:
        """The Rows of clients with these lists. A list that all of them share is stored once."""
        size = np.fromiter((len(rows) for rows in lists), np.int32, len(lists))
        if len(lists) > 1 and all(rows is lists[0] for rows in lists):
            if id(lists[0]) not in self._shared:
                self._shared[id(lists[0])] = lists[0], self._append(lists[:1], int(size[0]))
            start = np.full(len(lists), self._shared[id(lists[0])][1])
        else:
            start = self._append(lists, int(size.sum(dtype=np.int64))) + np.cumsum(size, dtype=np.int64) - size
        start = np.where(size > 0, start, 0)
        return Rows(Spans(jnp.asarray(start, jnp.int32), max(int(size.max()), 1)), jnp.asarray(size))

    def _append(self, lists: Sequence[np.ndarray], count: int) -> int:
        """Stores the lists; returns the place of the first."""
        place = self._total
        if place + count > np.iinfo(np.int32).max:
            raise ValueError(f"expected fewer than 2^31 rows of all clients, got {place + count}")
        self._parts.append(_numbers_of_rows(np.concatenate(lists)))
        self._total += count
        return place

    def lists(self) -> Int[Array, " total"]:
        """All lists, one after another."""
        return jnp.asarray(np.concatenate(self._parts))


def client_lists(
    store: ListStore,
    train: Sequence[np.ndarray],
    valid: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    noise: np.ndarray | None = None,
    deployment: Sequence[np.ndarray] | None = None,
    later: Sequence[np.ndarray] | None = None,
) -> ClientData:
    """Clients 0..len(train)-1 with these index lists, which go to the store."""
    spread = None if noise is None else jnp.asarray(noise, jnp.float32)
    ids = jnp.asarray(np.arange(len(train), dtype=np.int32))
    deployed = None if deployment is None else store.add(deployment)
    splits = store.add(train), store.add(valid), store.add(test)
    return ClientData(ids, *splits, spread, deployed, None if later is None else store.add(later))


def row_numbers(federation: Federation, part: str = "train", *, unseen: bool = False) -> list[np.ndarray]:
    """The numbers of each client's rows in ``federation.examples``, in the order in which clients are stored.

    Args:
      federation: one federation; of several stacked, the clients of each seed one after another.
      part: "train", "valid", "test", or "deployment": validation rows when clients use their models, where their data
        have changed since training; or "later": training rows once data have changed during training.
      unseen: whether to read the lists of clients that never train.

    Raises:
      ValueError: if there is no such part, clients have none, or there is no client that never trains.
    """
    clients = federation.unseen if unseen else federation.clients
    if part not in ROW_PARTS:
        raise ValueError(unknown("part", part, ROW_PARTS))
    if clients is None:
        raise ValueError("expected a federation with unseen clients, got one without")
    if part not in clients.parts:
        means = "complement" if part == "deployment" else "drift_fraction"
        raise ValueError(f"expected a partition that chooses {part} rows, such as mixture with {means}, got none")
    rows = clients.parts[part]
    return RowLists.of(rows, federation.lists).by_client()


def pad(federation: Federation, n_max: int, *, fill: int = 0) -> Federation:
    """Lets every client have up to ``n_max`` rows, and lengthens tables to it; real rows do not change.

    Args:
      federation: one federation, or several stacked.
      n_max: new length of the tables; longer tables keep their length.
      fill: the index of an example, used as padding of tables. Clients that ``federate`` makes have lists without
        padding.
    """

    def lengthen(rows: Rows) -> Rows:
        if isinstance(rows.index, Spans):
            return rows._replace(index=Spans(rows.index.start, max(n_max, rows.index.capacity)))
        return _lengthen(rows, max(n_max, rows.index.shape[-1]), fill)

    return _map_rows(lengthen, federation)


def stack(federations: Sequence[Federation]) -> Federation:
    """Stacks federations, one per seed: every leaf except the examples gets a leading axis ``[seeds]``.

    Lists of rows are concatenated, and tables are padded with 0 to one shape. Equal examples are stored once; different
    examples are concatenated, and the indices are shifted accordingly. Names of clients are kept if they are the same
    in all federations.

    Args:
      federations: at least one; all with the same numbers of seen and unseen clients and the same names in ``held``.

    Raises:
      ValueError: if there is no federation, or federations differ in more than their rows.
    """
    federations = list(federations)
    if not federations:
        raise ValueError("expected at least one federation to stack, got none")
    shapes = {_describe(federation) for federation in federations}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise ValueError(f"expected federations alike in clients and held rows, got {first} beside {second}")
    examples, offsets = _join([federation.examples for federation in federations])
    lists, places = _join_lists([federation.lists for federation in federations], offsets)
    moved = [_move(federation, *by) for federation, *by in zip(federations, offsets, places, strict=True)]
    moved = [_with_noise(federation, federations) for federation in moved]

    def join(*nodes: Any) -> Any:
        if isinstance(nodes[0], Rows):
            longest = max(rows.index.shape[-1] for rows in nodes)
            if isinstance(nodes[0].index, Spans):
                nodes = tuple(rows._replace(index=Spans(rows.index.start, longest)) for rows in nodes)
            else:
                nodes = tuple(_lengthen(rows, longest, 0) for rows in nodes)
        return jax.tree.map(lambda *leaves: _compute(lambda numpy: jnp.asarray(numpy.stack(leaves))), *nodes)

    parts = [(federation.clients, federation.unseen, dict(federation.held)) for federation in moved]
    clients, unseen, held = jax.tree.map(join, *parts, is_leaf=lambda node: isinstance(node, Rows))
    names = shared_names([federation.names for federation in federations])
    return Federation(examples, clients, unseen, held, names, lists, _moments(federations), _features(federations))


def choose(
    federation: Federation, place: SupportsIndex | Sequence[SupportsIndex] | Integer[AnyArray, "*places"]
) -> Federation:
    """Some of several stacked federations, or one of them. Examples and lists of rows are shared, not copied.

    All choices of one number have the shapes of the stack, so that runs on them share compiled programs. If epochs
    decide the number of steps, this needs a fixed number ``Execution.clients``. ``jax.vmap(lambda place:
    fljax.rollout(algorithm, fljax.data.choose(stacked, place), rounds=9))(places)`` computes runs side by side.

    Args:
      federation: of ``stack``.
      place: of the federations in the stack, from 0, also traced: ``[n]`` gives a stack of n, in this order; a whole
        number gives a federation that is not stacked.

    Raises:
      ValueError: if federations are not stacked, a place that is not traced is none of theirs, or several have features
        that were standardised before they were stored.
    """
    shape, features = np.shape(federation.clients.id), each_of(federation.features)
    if len(shape) != 2:
        raise ValueError("expected several federations to choose from, as fljax.data.stack gives, got one")
    if len({part for part in features if part.read is not None}) > 1:  # which rows are whose would be lost
        raise ValueError(
            "expected federations of one data set, such as fljax.data.dataset_from_frame gives, whose features are "
            "standardised where they are read, got several of from_frame"
        )
    own = features if len(features) == 1 else (Features(),)
    with contextlib.suppress(jax.errors.TracerArrayConversionError):
        places = np.asarray(place)
        is_number = places.dtype.kind in "iu" and places.ndim < 2 and places.size
        if not is_number or not 0 <= places.min() <= places.max() < shape[0]:
            raise ValueError(f"expected places from 0 to {shape[0] - 1} of stacked federations, got {place!r}")
        own = own if len(features) == 1 else tuple(features[each] for each in places.ravel())
    train = federation.clients.train
    if isinstance(train.index, Spans):
        with contextlib.suppress(jax.errors.TracerArrayConversionError):
            least = int(np.min(np.asarray(train.size), initial=train.index.most_least))
            train = train._replace(index=dataclasses.replace(train.index, most_least=least))

    def chosen(leaf: Any) -> Any:
        return jnp.asarray(_compute(lambda np: np.take(np.asarray(leaf), np.asarray(place), 0, mode="clip")))

    rest = federation._replace(examples=None, lists=None, clients=federation.clients._replace(train=train))
    shared = {"examples": federation.examples, "lists": federation.lists}
    return jax.tree.map(chosen, rest)._replace(**shared, features=own[0] if len(set(own)) == 1 else own)


def _moments(federations: Sequence[Federation]) -> Moments | None:
    """The moments of all federations, ``[seeds, ...]``; 0 and 1 for those without."""
    moments = [leaf.moments for leaf in federations]
    first = next((leaf for leaf in moments if leaf is not None), None)
    if first is None:
        return None
    plain = Moments(jnp.zeros_like(first.mean), jnp.ones_like(first.std))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(plain if leaf is None else leaf for leaf in moments))


def _features(federations: Sequence[Federation]) -> Features | tuple[Features, ...]:
    """What raw features become; one for each federation if they differ."""
    by_federation = [features for federation in federations for features in each_of(federation.features)]
    return by_federation[0] if len(set(by_federation)) == 1 else tuple(by_federation)


def each_of(features: Features | tuple[Features, ...]) -> tuple[Features, ...]:
    """The features of each federation, where they differ."""
    return (features,) if isinstance(features, Features) else features


def shared_names(names: Sequence[Names]) -> Names:
    """The names that are the same in all federations; None in place of others."""

    def shared(values: list[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
        return values[0] if all(value == values[0] for value in values) else None

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
    return federation._replace(
        clients=federation.clients.map_rows(function),
        unseen=None if federation.unseen is None else federation.unseen.map_rows(function),
        held={name: function(rows) for name, rows in federation.held.items()},
    )


def _describe(federation: Federation) -> str:
    clients = [None if group is None else group.id.shape for group in (federation.clients, federation.unseen)]
    x, y = federation.examples.x, federation.examples.y
    held, labels = sorted(federation.held), f"labels {y.dtype} {y.shape[1:]}"
    people = f"clients {clients[0]} with {'tables' if federation.lists is None else 'lists'}, unseen {clients[1]}"
    people += "" if federation.clients.deployment is None else ", deployment rows"
    people += "" if federation.clients.later is None else ", later rows"
    return f"{people}, held {held}, examples {x.dtype} {x.shape[1:]}, {labels}"


def _join(parts: list[Examples]) -> tuple[Examples, list[int]]:
    """Concatenates all different examples; also returns the offset of each part's examples."""
    unique: list[Examples] = []
    which = []
    for part in parts:
        place = next((i for i, examples in enumerate(unique) if _same(part, examples)), len(unique))
        if place == len(unique):
            unique.append(part)
        which.append(place)
    if len(unique) == 1:
        return unique[0], [0] * len(parts)
    starts = np.cumsum([0] + [len(examples.y) for examples in unique])
    for examples in unique:
        check_unchanged(examples.x, examples.y)
    numpy: Any = np if all(isinstance(examples.x, np.ndarray) for examples in unique) else jnp
    joined = Examples(numpy.concatenate([e.x for e in unique]), numpy.concatenate([e.y for e in unique]))
    return joined, [int(starts[place]) for place in which]


def _same(one: Examples, other: Examples) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if a is b or a.shape != b.shape or a.dtype != b.dtype:
            return a is b
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            check_unchanged(a, b)
            one, other = a.__array_interface__, b.__array_interface__
            return (one["data"], one["strides"]) == (other["data"], other["strides"]) or np.array_equal(a, b)
        return bool(jnp.array_equal(a, b))

    return equal(one.x, other.x) and equal(one.y, other.y)


def _join_lists(parts: list[Any], offsets: list[int]) -> tuple[Any, list[int]]:
    """Concatenates lists of federations whose examples moved by ``offsets``; also returns where each part begins."""
    if parts[0] is None:
        return None, [0] * len(parts)
    starts: dict[tuple[int, int], int] = {}  # equal lists of equal examples are stored once
    joined, places, total = [], [], 0
    for part, offset in zip(parts, offsets, strict=True):
        if (id(part), offset) not in starts:
            starts[id(part), offset] = total
            joined.append((part, offset))
            total += part.shape[0]
        places.append(starts[id(part), offset])
    if total > np.iinfo(np.int32).max:
        raise ValueError(f"expected fewer than 2^31 rows of all federations, got {total}")
    return _compute(
        lambda numpy: jnp.asarray(numpy.concatenate([numpy.asarray(part) + numpy.int32(by) for part, by in joined]))
    ), places


def _move(federation: Federation, offset: int, place: int) -> Federation:
    if offset == place == 0:
        return federation

    def move(rows: Rows) -> Rows:
        if isinstance(rows.index, Spans):
            start = _compute(lambda numpy: numpy.asarray(rows.index.start) + numpy.int32(place))
            return rows._replace(index=Spans(start, rows.index.capacity))
        if offset == 0:
            return rows
        return _lengthen(rows._replace(index=rows.index + offset), rows.index.shape[-1], 0)

    return _map_rows(move, federation)


def _with_noise(federation: Federation, others: list[Federation]) -> Federation:
    """Sets absent noise to zeros if another federation has noise, since stacking needs the same leaves."""
    if all(other.clients.noise is None for other in others):
        return federation

    def filled(data: ClientData | None) -> ClientData | None:
        if data is None or data.noise is not None:
            return data
        return data._replace(noise=jnp.zeros(data.id.shape, jnp.float32))

    clients = filled(federation.clients)
    assert clients is not None
    return federation._replace(clients=clients, unseen=filled(federation.unseen))
