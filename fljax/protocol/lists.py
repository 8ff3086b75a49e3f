"""Index lists of clients, stored one after another in one array ``[total]``: a client costs what it holds.

``Spans`` and ``IndexList`` are read in programs, ``RowLists`` on the host. With ``Spans.least``, and equally many
batches, the loop over local steps has a fixed length: 1,000 MLPs on an H100 are 1.5 times as fast. It holds for the
``size`` that came with the list alone, so an algorithm that trains on fewer rows gets the other loop.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

_ADVICE = (
    'expected fljax.data.row_numbers(federation, "train"), which gives the row numbers of each client, to read '
    "clients' rows, got a look into the places of their lists"
)


@functools.partial(jax.tree_util.register_dataclass, data_fields=("start",), meta_fields=("capacity", "least"))
@dataclass(frozen=True, eq=False)
class Spans:
    """Where the index lists of clients are in ``Federation.lists``: in place of a table ``[*batch, capacity]``.

    Client k's list is ``lists[start[k] : start[k] + size[k]]``. ``fljax.data.row_numbers`` reads the lists of all
    clients; ``of`` gives an ``IndexList``.

    Attributes:
      start: ``[*batch]``, whole numbers; of NumPy, too, before a run.
      capacity: the length of the longest list, static.
      least: so many rows every client is known to have, static; 0: nothing is known.
    """

    start: Any
    capacity: int
    least: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table that it stands for."""
        return (*self.start.shape, self.capacity)

    def of(self, lists: Int[Array, " total"], size: Int[Array, ""] | None = None) -> IndexList:
        """The index list of one client, whose ``start`` is ``[]`` and which has ``size`` rows."""
        return IndexList(lists, self.start, self.capacity, size, self.least)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(_ADVICE)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(_ADVICE)

    def __len__(self) -> NoReturn:
        raise TypeError(_ADVICE)


@dataclass(frozen=True, eq=False)
class IndexList:
    """One client's index list, an array ``[capacity]`` that is read by index: entry i is ``lists[start + i]``.

    Entries beyond the client's number of rows belong to other clients. Functions of ``jax.numpy`` take it as the array
    that it stands for. Under ``vmap`` over clients only ``start`` is batched.

    Attributes:
      lists: ``[total]``, the lists of all clients.
      start: ``[]``.
      capacity: the length of the longest list, static.
      size: the client's number of rows, for which ``least`` holds; None: not known.
      least: so many rows every client is known to have, static.

    ``size`` and ``least`` are lost where JAX takes the list apart, as in an inner ``jit``.
    """

    lists: Int[Array, " total"]
    start: Int[Array, ""]
    capacity: int
    size: Int[Array, ""] | None = None
    least: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (self.capacity,)

    @property
    def ndim(self) -> int:
        """The number of axes of the array."""
        return 1

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.lists.dtype

    def __len__(self) -> int:
        return self.capacity

    def __iter__(self) -> Iterator[Array]:
        return iter(self.__jax_array__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.__jax_array__(), dtype)

    def __jax_array__(self) -> Array:
        return self[jnp.arange(self.capacity, dtype=jnp.int32)]

    def __getitem__(self, index: Any) -> Array:
        if index is None or index is Ellipsis or isinstance(index, tuple | slice):
            return self.__jax_array__()[index]
        index = jnp.asarray(index)
        if index.dtype == bool:
            return self.__jax_array__()[index]
        # As in every JAX gather, a negative index counts from the end and a too large one reads the last entry.
        index = jnp.clip(jnp.where(index < 0, index + self.capacity, index), 0, self.capacity - 1)
        return self.lists.at[self.start + index].get(mode="clip")


def _list_of(capacity: int, leaves: Any) -> IndexList:
    lists, start = leaves
    return IndexList(lists, start, capacity)


# Not by ``register_dataclass``, whose ``drop_fields`` refuses names of several letters in JAX 0.6.1.
jax.tree_util.register_pytree_with_keys(
    IndexList,
    lambda index: (
        ((jax.tree_util.GetAttrKey("lists"), index.lists), (jax.tree_util.GetAttrKey("start"), index.start)),
        index.capacity,
    ),
    _list_of,
)


def least_rows(rows: Any) -> int:
    """So many rows every client is known to have, if ``rows`` of a client are as the engine made them; else 0."""
    # An algorithm may train on fewer rows of the same list (``rows._replace(size=...)``), of which nothing is known.
    index = rows.index
    return index.least if isinstance(index, IndexList) and index.size is rows.size else 0


def choose_list(first: Any, some: Any, other: Any) -> Any:
    """``some`` if ``first [] `` is True, else ``other``: index lists of one client, of which the shorter is padded."""
    if isinstance(some, IndexList) and isinstance(other, IndexList):  # lists of one federation
        return IndexList(some.lists, jnp.where(first, some.start, other.start), max(some.capacity, other.capacity))
    width = max(some.shape[-1], other.shape[-1])
    some, other = (jnp.pad(jnp.asarray(index), (0, width - index.shape[-1])) for index in (some, other))
    return jnp.where(first, some, other)


class RowLists(NamedTuple):
    """Clients' index lists on the host; list k is ``table[start[k] : start[k] + size[k]]``."""

    table: np.ndarray  # [total], row numbers; padding of a table is part of it
    start: np.ndarray  # [federations, clients]
    size: np.ndarray  # [federations, clients]
    capacity: int  # the length that the lists have in programs

    @classmethod
    def of(cls, rows: Any, lists: Any) -> RowLists:
        """The lists of clients' ``Rows`` (one list of the server's), of one federation or several stacked ones."""
        # ``lists`` is not read where ``rows.index`` is an array.
        size = np.atleast_1d(np.asarray(rows.size))
        size = size.reshape(-1, size.shape[-1])
        if isinstance(rows.index, Spans):
            return cls(np.asarray(lists), np.asarray(rows.index.start).reshape(size.shape), size, rows.index.capacity)
        table = np.asarray(rows.index)
        start = np.arange(size.size).reshape(size.shape) * table.shape[-1]
        return cls(table.reshape(-1), start, size, table.shape[-1])

    def by_client(self) -> list[np.ndarray]:
        """The row numbers of each client, without padding; clients of all federations one after another."""
        places = zip(self.start.reshape(-1), self.size.reshape(-1), strict=True)
        return [self.table[first : first + count] for first, count in places]

    def most(self, clients: int) -> int:
        """The largest number of rows that so many clients have; a list that clients share counts once."""
        largest = 0
        for start, size in zip(self.start, self.size, strict=True):
            order = np.lexsort((size, start))
            last = np.append(start[order][1:] != start[order][:-1], True)  # the longest of equal starts
            longest = np.sort(size[order][last])[::-1]
            largest = max(largest, int(longest[:clients].sum(dtype=np.int64)))
        return largest
