"""The data of clients and server: examples, stored once on the device, and index lists into them.

Index lists are stored one after another in one array ``[total]``, so a client costs what it holds. ``Spans`` and
``IndexList`` are read in programs, ``RowLists`` on the host. With ``Spans.least``, and equally many batches, the loop
over local steps has a fixed length: 1,000 MLPs on an H100 are 1.5 times as fast. It holds for the ``size`` that came
with the list alone, so an algorithm that trains on fewer rows gets the other loop.

Seeds that a user gives are a list of whole numbers, or how many.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, SupportsIndex, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer, Shaped

_ADVICE = (
    'expected fljax.data.row_numbers(federation, "train"), which gives the row numbers of each client, to read '
    "clients' rows, got a look into the places of their lists"
)


class AsArray:
    """Stands for an array, which functions of ``jax.numpy`` make of it where they read all of it."""

    shape: Any  # that of the array

    def __jax_array__(self) -> Array:
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of axes of the array."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.__jax_array__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.__jax_array__(), dtype)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("start",), meta_fields=("capacity", "least", "most_least")
)
@dataclass(frozen=True, eq=False)
class Spans:
    """Where the index lists of clients are in ``Federation.lists``: in place of a table ``[*batch, capacity]``.

    Client k's list is ``lists[start[k] : start[k] + size[k]]``. ``fljax.data.row_numbers`` reads the lists of all
    clients; ``of`` gives an ``IndexList``.

    Attributes:
      start: ``[*batch]``, whole numbers; of NumPy, too, before a run.
      capacity: the length of the longest list, static.
      least: so many rows every client is known to have, static; 0: nothing is known.
      most_least: ``least`` is at most this, static: all federations that are chosen out of a stack have the same.
    """

    start: Any
    capacity: int
    least: int = 0
    most_least: int = 2**31 - 1

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
class IndexList(AsArray):
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
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.lists.dtype

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


# An array of JAX, which may be traced, or of NumPy.
AnyArray = jax.Array | np.ndarray

# NumPy makes a number of an array without axes. For type checkers it is an array, too.
if TYPE_CHECKING:
    NumpyArray = np.ndarray
else:
    NumpyArray = np.ndarray | np.generic


# Whole numbers of Python, NumPy or JAX.
Seeds = SupportsIndex | Sequence[SupportsIndex] | Integer[AnyArray, "*seeds"]


def seeds_of(seeds: Seeds) -> list[int]:
    """The list of seeds: the given seeds, or the seeds 0 to n - 1 for a number n."""

    count = _whole(seeds)
    if count is not None:
        if count < 1:
            raise ValueError(f"expected a positive number of seeds, or a list of them, got {count}")
        return list(range(count))
    expected = "expected seeds to be distinct integers from 0 to 2**32 - 1, or a number of seeds, got"
    values = cast(Any, seeds)  # a user may give anything
    if isinstance(values, str | bytes) or np.ndim(values) != 1:
        raise ValueError(f"{expected} {seeds!r}")
    entries = list(values)
    whole_numbers = [whole for whole in map(_whole, entries) if whole is not None]
    if not entries or len(whole_numbers) < len(entries):
        raise ValueError(f"{expected} {entries}")
    if min(whole_numbers) < 0 or max(whole_numbers) >= 2**32 or len(set(whole_numbers)) != len(whole_numbers):
        raise ValueError(f"{expected} {whole_numbers}")
    return whole_numbers


def _whole(value: Any) -> int | None:
    """A whole number as Python's int; None for anything else, True and 1.0 included."""
    if np.ndim(value) > 0 or isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


@functools.partial(jax.tree_util.register_dataclass, data_fields=("vectors",), meta_fields=("row_shape",))
@dataclass(frozen=True, eq=False)
class Vectors(AsArray):
    """An array whose rows lie in memory as vectors, read by index: ``Vectors.of(x)[index]`` is ``x[index]``.

    A TPU lays images ``[n, 28, 28]`` out with the examples innermost, and would collect a row pixel by pixel. Functions
    of ``jax.numpy`` take it as the array that it stands for.

    Attributes:
      vectors: ``[n, entries]``.
      row_shape: the shape of one row, static.
    """

    vectors: Shaped[Array, "n entries"]
    row_shape: tuple[int, ...]

    @classmethod
    def of(cls, x: Any) -> Vectors:
        """The rows of ``x``, as vectors; absent rows stay absent."""
        if isinstance(x, Vectors | AbsentRows):
            return x  # type: ignore[return-value]
        return cls(x.reshape(x.shape[0], math.prod(x.shape[1:])), x.shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (self.vectors.shape[0], *self.row_shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.vectors.dtype

    def __jax_array__(self) -> Array:
        return self.vectors.reshape(self.shape)

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            return self.__jax_array__()[index]
        rows = self.vectors[index]
        return rows.reshape(*rows.shape[:-1], *self.row_shape)


class RowsAbsent(ValueError):
    """Rows of clients are read where there are none: in a saved model or in a pickled result."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class AbsentRows(AsArray):
    """Stands for the features or labels of a federation without rows. It has a shape and a dtype, and no numbers."""

    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, index: Any) -> NoReturn:
        _raise_absent()

    def __jax_array__(self) -> NoReturn:
        _raise_absent()

    def __len__(self) -> NoReturn:
        _raise_absent()


def _raise_absent() -> NoReturn:
    raise RowsAbsent(
        "expected the rows of the client for a model that depends on them when it is used, got none: pickled results "
        "have no rows, and result.predict.with_rows(federation) gives them back"
    )


def mapped_file(array: Any) -> np.memmap[Any, Any] | None:
    """The memory-mapped array that NumPy made of a file and of which this one is a view, or is it; else None."""
    mapped = None
    while isinstance(array, np.ndarray):
        mapped = array if isinstance(array, np.memmap) else mapped
        array = array.base
    return mapped


class Examples(NamedTuple):
    """All examples of a federation, stored once; clients are index lists into them.

    Attributes:
      x: ``[n, ...]``; images stay uint8 until ``Task.prepare``. In a run's programs it is ``Vectors``, read by index.
        Arrays of NumPy, such as memory-mapped files, are on the host.
      y: ``[n, ...]``; class labels are whole numbers ``[n]``, other tasks have labels of their own shape and dtype.
      number: ``[n]``, the row of the federation that each of these examples is, where they are some of them that were
        moved to a device; None: they are all.
    """

    x: Array
    y: Array
    number: Int[Array, " n"] | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether ``x`` is a memory-mapped file."""
        return mapped_file(self.x) is not None


class Moments(NamedTuple):
    """How features are standardised when they are read: ``(x - mean) / std``, and 0 for a missing number, NaN.

    Attributes:
      mean: ``[*batch, ...]``, of one example's shape: of the training rows of the clients that train; in a run of some
        members (``fljax.runs``), of theirs. Numbers that are declared, not learnt, belong to ``Task.prepare``.
      std: the standard deviation of the same rows, positive. Columns of words have mean 0 and std 1.
    """

    mean: Float[Array, "*batch"]
    std: Float[Array, "*batch"]


class Rows(NamedTuple):
    """Index lists of a fixed length, of which only the first ``size`` entries are real.

    Attributes:
      index: ``[*batch, n_max]``, an array, or what stands for one. Of the clients of a federation, ``Spans`` into
        ``Federation.lists``; of one client in a ``Subset``, an ``IndexList``, which is read by index.
      size: ``[*batch]``.
    """

    index: Any  # pyright: ignore[reportIncompatibleMethodOverride] - tuple.index is not needed
    size: Int[Array, "*batch"]


class ClientData(NamedTuple):
    """One client's data as index lists; stacked over clients inside a Federation.

    ``id`` is a permutation of 0..N-1 for seen clients. Unseen clients have separate ids (0..U-1), used only for their
    random keys: algorithms see the id -1 for them.

    Attributes:
      id: of the client.
      train: the rows that it trains on.
      valid: its rows for validation.
      test: its rows for tests.
      noise: standard deviation of noise on prepared training features; None: no noise.
      deployment: its validation rows when it uses its model, where its data have changed since training; None: they
        have not, and ``valid`` is also for then. The engine shows them to ``Algorithm.personal`` as ``data.valid``
        before test rows are predicted, and at no other time.
      later: the rows that it trains on once its data have changed during training (the scenario ``drift``); None: they
        do not change before the end.
      moments: in place of those of the federation, for models that it trains alone; None: those of the federation.
    """

    id: Int[Array, "*batch"]
    train: Rows
    valid: Rows
    test: Rows
    noise: Float[Array, "*batch"] | None = None
    deployment: Rows | None = None
    later: Rows | None = None
    moments: Moments | None = None

    @property
    def parts(self) -> dict[str, Rows]:
        """The index lists by name; "deployment" and "later" only if there are such rows."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        splits |= {} if self.deployment is None else {"deployment": self.deployment}
        return splits if self.later is None else splits | {"later": self.later}

    def map_rows(self, function: Callable[[Rows], Rows]) -> ClientData:
        """The data with each index list replaced by the function of it."""
        return self._replace(**{part: function(rows) for part, rows in self.parts.items()})


@jax.tree_util.register_static
@dataclass(frozen=True)
class Names:
    """What a user calls the classes and clients of a federation; fljax numbers them from 0.

    Names have no leaves: they are static in JAX's transformations, and no program of the engine sees them.

    Attributes:
      classes: the label that class c has in the user's data, at place c; None if labels are numbers of classes
        already, or are not classes.
      clients: what the user calls seen client i, at place i; None if clients have no names.
      unseen: the same for unseen clients.
    """

    classes: tuple[Any, ...] | None = None
    clients: tuple[Any, ...] | None = None
    unseen: tuple[Any, ...] | None = None


@jax.tree_util.register_static
@dataclass(frozen=True)
class Features:
    """What raw features of a table become before they are stored: ``(float32(raw - shift) - mean) / std``.

    Columns of words become one-hot columns before that. It has no leaves, as ``Names``; predictions on raw examples
    read it.

    Attributes:
      names: the columns, in the order of the features; None if they have no names.
      shift: of each feature; None: 0.
      mean: of each shifted feature; None: 0.
      std: of each shifted feature; None: 1.
      words: of each column, the words that have a one-hot column each, before one for all others and missing words;
        None for a column of numbers. None: no column has words.
      read: ``[n, d]``, the shifted features where those that are stored are standardised, on the host; None elsewhere.
    """

    names: tuple[Any, ...] | None = None
    shift: tuple[float, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    words: tuple[tuple[str, ...] | None, ...] | None = None
    read: Any = field(default=None, compare=False, repr=False)


class Federation(NamedTuple):
    """A partitioned data set: examples, seen clients [N], unseen clients [U] (None: none), the server's rows by name.

    ``names`` has what the user calls classes and clients. ``lists`` has the index lists of all clients, one after
    another; None: clients have tables (``Rows`` of arrays). ``moments`` standardise the features of every row that is
    read; None: features are read as they are stored. ``features`` has what raw features become before that; of several
    federations that differ in it, one for each. Several federations (one per seed) that share ``examples`` may be
    stacked: see ``fljax.data.stack``.
    """

    examples: Examples
    clients: ClientData
    unseen: ClientData | None = None
    held: Mapping[str, Rows] = {}
    names: Names = Names()
    lists: Int[Array, " total"] | None = None
    moments: Moments | None = None
    features: Features | tuple[Features, ...] = Features()

    def __repr__(self) -> str:
        """Numbers of clients and examples. Only shapes are read, so it works for tracers and for shapes alone."""
        ids = _shape(self.clients, "id")
        seeds = f"{ids[0]} seeds, " if len(ids) == 2 else ""
        unseen = _shape(self.unseen, "id")
        strangers = f", {unseen[-1]} unseen" if unseen else ""
        x = _shape(self.examples, "x")
        dtype = getattr(getattr(self.examples, "x", None), "dtype", "")
        rows = _shape(getattr(self.clients, "train", None), "index")
        examples = f"{x[0]} examples {dtype}[{','.join(map(str, x[1:]))}]" if x else "no examples"
        most = f", at most {rows[-1]} training rows each" if rows else ""
        held = f"; held: {', '.join(sorted(self.held))}" if self.held else ""
        return f"Federation({seeds}{ids[-1] if ids else 'no'} clients{strangers}, {examples}{most}{held})"

    def _repr_html_(self) -> str:
        """The text of ``repr`` and, where the numbers are there, a table of rows by client: least, mean, most."""
        from fljax.core import pages

        lines = [("clients", "rows", "least", "mean", "most")]
        for kind, clients in (("seen", self.clients), ("unseen", self.unseen)):
            for part in ("train", "valid", "test", "deployment", "later"):
                numbers = _numbers(getattr(getattr(clients, part, None), "size", None))
                if numbers is None or not numbers.size:
                    continue
                lines.append((kind, part, f"{numbers.min()}", f"{numbers.mean():.1f}", f"{numbers.max()}"))
        return pages.joined(pages.note(repr(self), kind=""), *([pages.table(lines)] if len(lines) > 1 else []))


def _shape(node: Any, name: str) -> tuple[int, ...]:
    """The shape of a field; empty where it has none, as a transformed federation may."""
    return tuple(getattr(getattr(node, name, None), "shape", ()))


def _numbers(array: Any) -> np.ndarray | None:
    """The numbers of an array; None if it has none: for a tracer, a shape alone, or an array that was deleted."""
    if not isinstance(array, np.ndarray | jax.Array):
        return None
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError):
        return None


class Subset(NamedTuple):
    """Some rows of the shared examples, for one client or the server: see ``fljax.training.fetch``.

    Attributes:
      examples: all examples of the federation.
      rows: which of them.
      noise: ``[]``, the standard deviation of noise on prepared training features; None: no noise.
      spread: of the server's rows, how ``(function, models)`` is computed for each of several models where several
        devices share them (static); None: on one device.
      moments: standardise the features that are read; None: they are read as they are stored.
      rate_factor: ``[]``, of the learning rate with which the client trains on them; None: 1.
      steps: ``[]``, the most steps that the client trains on them at a time; None: as its training says.
      epochs: ``[]``, the most epochs; None: as its training says.
    """

    examples: Examples
    rows: Rows
    noise: Float[Array, ""] | None = None
    spread: Any = None
    moments: Moments | None = None
    rate_factor: Float[Array, ""] | None = None
    steps: Int[Array, ""] | None = None
    epochs: Int[Array, ""] | None = None


class LaterData(NamedTuple):
    """A client's rows once its data have changed during training.

    Attributes:
      train: the rows that it then trains on.
      valid: its validation rows then; None: it has none.
    """

    train: Subset
    valid: Subset | None


class LocalData(NamedTuple):
    """Everything that one client can read: the ``data`` argument of the protocol's functions.

    Attributes:
      train: the rows that the client trains on.
      valid: its rows for validation; they may be none. When a client whose data have changed uses its model
        (``ClientData.deployment``), they are of its new data.
      test: its rows for tests.
      later: its rows once its data have changed during training; None: they do not. The scenario ``drift`` puts them in
        place of ``train`` and ``valid``; algorithms do not read them.
    """

    train: Subset
    valid: Subset
    test: Subset
    later: LaterData | None = None


# The server's own examples, by name.
Held = Mapping[str, Subset]
