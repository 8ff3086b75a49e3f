"""Federations: a data set assigned to clients, as index tables of one shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fljax.core import users
from fljax.core.names import (
    check_same_labels,
    check_text,
    describe,
    is_labelled,
    names_of_columns,
    plain,
    shown,
    unknown,
)
from fljax.core.values import arguments_for, is_whole, parameters_of, takes_anything
from fljax.data.arrays import (
    as_array,
    as_text,
    check_classes,
    check_count,
    check_finite,
    check_fraction,
    check_keywords,
    check_known,
    check_numbers,
    check_unchanged,
    check_wide,
    choose,
    number_labels,
    number_owners,
    stored_labels,
    whole_numbers,
)
from fljax.data.datasets import Dataset, check_rows, dataset, training_moments
from fljax.data.partitions.assignment import (
    Partition,
    RowsApart,
    Split,
    Unseen,
    chosen_owners,
    owners_left,
    owners_of,
    rows_apart,
    split_client,
    split_unseen,
)
from fljax.data.partitions.partition import PARTITIONERS
from fljax.data.tables import ListStore, client_lists, held_rows
from fljax.protocol import ClientData, Examples, Features, Federation, Names, Rows, Spans
from fljax.protocol.data import Seeds, seeds_of

Place = Literal["auto", "device", "host"]
_ALWAYS = ("clients", "unseen", "seed")
# Kinds of integer dtypes that labels and test labels may mix: signed and unsigned.
_ALIKE = {"i": "u", "u": "i"}


def federate(
    dataset: Dataset,
    partition: str | Callable[..., Partition | Sequence[Any]] = "iid",
    *,
    clients: int | None = None,
    unseen: Unseen = 0,
    seed: int = 0,
    train_fraction: float = 0.6,
    valid_fraction: float = 0.0,
    test: str = "own",
    held_fraction: float = 0.0,
    examples: Place = "auto",
    **partition_parameters: Any,
) -> Federation:
    """Assigns a data set to clients and splits each client's rows into training, validation and test rows.

    Clients share upstream's training part; upstream's test part, if there is one, is ``held["test"]``. The server's own
    rows, ``held["validation"]``, are set aside before rows are assigned to clients. They are upstream's validation rows
    that have no owner, or drawn by ``held_fraction``.

    Args:
      dataset: the data set. To make several federations from one data set, put it on the device first
        (``fljax.data.place``); the federations then share one copy.
      partition: a name in PARTITIONERS, or a function ``(labels, *, clients, unseen, seed, ...) -> Partition``. If the
        function has parameters ``classes``, ``owner``, ``part``, ``test_fraction``, ``deployment_fraction`` or
        ``unseen_owners``, it also gets the data set's classes, owners and parts, ``1 - train_fraction``,
        ``valid_fraction``, and the owners that ``unseen`` chooses, in the order of the unseen clients. It may also
        return a list of row lists.
      clients: number of seen clients, with ids 0..clients-1. With the partition "natural", None means all owners with
        ``minimum`` training rows, counted without the rows of the server and of a global test set.
      unseen: number of clients that never train, with separate ids 0..unseen-1, drawn from ``seed``. A list chooses
        owners by name (by number, if they have no names), and "test" chooses all owners with test rows and without
        training rows. Only the partition "natural" takes these two. All rows of a chosen owner without training rows
        are the client's own and not part of ``held["test"]``; ``train_fraction`` and ``valid_fraction`` split them,
        since a client's thresholds and its personalised models need training rows of its own. They also split the rows
        of an unseen client without test rows, if others have their own. If an owner without training rows is not an
        unseen client, ``held["test"]`` has its test rows, and ``held["validation"]`` its validation rows.
      train_fraction: share of a client's rows used for training; the others are test rows. A client with two rows or
        more has at least one of each. Not used if the partition chooses the test rows. With a global test set, it is
        the share of all rows that clients get, and is used only if upstream has no test part.
      valid_fraction: share of each client's training rows that become its validation rows. Not used if the partition
        chooses the validation rows. If the partition changes clients' data after training (``mixture`` with
        ``complement``), it is also the share of the new rows that are for validation when clients use their models.
      test: "own" (each client is tested on its own rows) or "global" (all clients are tested on ``held["test"]``).
      held_fraction: share of the training part that the server keeps.
      examples: where examples are: "device" puts them on the device. "host" leaves them in the host's memory, or in a
        memory-mapped file; a run then moves the rows of the clients that train, block by block. "auto" leaves a
        memory-mapped file on the host.
      **partition_parameters: keywords of the partition itself, e.g. ``beta``.

    Returns:
      A Federation whose clients have lists of rows (``row_numbers`` reads them). ``names`` has the data set's names of
      classes, and names of clients that are owners (the partition "natural").

    Raises:
      ValueError: if an argument is out of range, the partition has no such keyword or is impossible, examples are not
        finite, labels are not classes of the data set, or clients have their own test or validation rows with
        ``test="global"``.
    """
    check_count("seed", seed, 0)
    check_fraction("train_fraction", train_fraction, zero=False)
    check_fraction("valid_fraction", valid_fraction)
    check_fraction("held_fraction", held_fraction)
    if test not in ("own", "global"):
        raise ValueError(unknown("test", str(test), ("own", "global")))
    given, dataset = dataset, place(dataset, examples)  # the caller's labels may be on the host
    owners = owners_of(dataset)
    chosen = chosen_owners(owners, unseen)
    if clients is None and (partition != "natural" or not len(owners.training)):
        raise ValueError("expected clients, the number of clients, got none; only owners of rows can be counted")
    unseen = check_count("unseen", unseen if chosen is None else len(chosen), 0)
    draw = np.random.default_rng((seed, 1))
    apart = rows_apart(dataset, owners, chosen, held_fraction)
    pool, part, held = _set_apart(dataset, apart, test, train_fraction, held_fraction, draw)
    facts = {
        "classes": dataset.classes,
        "owner": None if dataset.owner is None else np.asarray(dataset.owner)[pool],
        "part": None if part is None else part[pool],
        "test_fraction": 1 - train_fraction,
        "deployment_fraction": valid_fraction,
        "unseen_owners": chosen,
    }
    if clients is None:
        minimum = check_count("minimum", partition_parameters.get("minimum", 1))
        left = len(owners_left(facts["owner"], facts["part"], minimum, chosen)) - (unseen if chosen is None else 0)
        clients = check_count(f"the number of owners less unseen, of {minimum} training rows or more,", left)
    clients = check_count("clients", clients)
    labels = np.asarray(given.y).astype(dataset.y.dtype)[pool]
    made = _deal(partition, labels, clients, unseen, seed, facts, partition_parameters)
    x, y = _examples(dataset, made, pool)
    # The partition numbers rows within the pool; rotated copies come after the data set's rows.
    numbers = np.concatenate([pool, len(dataset.y) + np.arange(len(made.rotated))])
    held |= {name: numbers[rows] for name, rows in made.held.items()}
    splits = []
    for client in range(clients + unseen):
        split = split_client(made, client, train_fraction, valid_fraction, test, draw)
        split = Split(*(numbers[rows] for rows in split))
        if client >= clients and test == "own" and (chosen is not None or made.owner is not None):
            rows_of_owner = apart.unseen[client - clients] if chosen is not None else pool[:0]
            split = split_unseen(split, rows_of_owner, made, train_fraction, valid_fraction, draw)
        splits.append(split if test == "own" else split._replace(test=held["test"]))
    store = ListStore()
    seen, others = (
        _clients(store, splits, made, numbers, group) for group in (slice(0, clients), slice(clients, clients + unseen))
    )
    names = _names(dataset, made.owner, clients)
    for kind, texts in (*vars(names).items(), ("features", dataset.features.names)):
        check_text(kind, texts or ())
    trains, words = [split.train for split in splits[:clients]], dataset.features.words
    moments = training_moments(x, trains, words) if dataset.standardise else None
    lists = {name: held_rows(rows) for name, rows in held.items()}
    assert seen is not None
    return Federation(Examples(x, y), seen, others, lists, names, store.lists(), moments, dataset.features)


def _set_apart(
    dataset: Dataset,
    apart: RowsApart,
    test: str,
    train_fraction: float,
    held_fraction: float,
    draw: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
    """The rows that clients share, the part of all rows if its author chose it, and the server's rows by name."""
    held = {name: rows for name, rows in (("validation", apart.validation), ("test", apart.test)) if len(rows)}
    pool = np.setdiff1d(
        np.arange(dataset.train_size), np.concatenate([*apart.unseen, *held.values(), np.zeros(0, int)])
    )
    part = None if dataset.part is None else np.asarray(dataset.part)
    part = part if part is not None and part[pool].any() else None
    if test == "global" and (part is not None or any(map(len, apart.unseen))):
        raise ValueError('expected test="own" for data whose clients have rows of their own to test on, got "global"')
    if test == "global" and "test" not in held:
        order = draw.permutation(pool)
        count = min(max(round(train_fraction * len(pool)), 1), len(pool) - 1)
        pool, held["test"] = np.sort(order[:count]), np.sort(order[count:])
    if held_fraction > 0:
        order = draw.permutation(pool if part is None else pool[part[pool] == 0])
        held["validation"] = np.sort(order[: max(round(held_fraction * len(order)), 1)])
        pool = np.setdiff1d(pool, held["validation"])
    return pool, part, held


def _examples(dataset: Dataset, made: Partition, pool: np.ndarray) -> tuple[Any, Any]:
    """The rows of a data set, in a form that takes noise if there is some, and rotated copies after them."""
    x: Any = dataset.x
    y: Any = dataset.y
    if made.noise is not None and dataset.vocabulary is not None:
        raise ValueError("expected a partition without noise on features for texts, got one with noise")
    if made.noise is not None and jnp.issubdtype(x.dtype, jnp.integer) and x.dtype != jnp.uint8:
        x = x.astype(jnp.float32)
    if not len(made.rotated):
        return x, y
    if x.ndim < 3 or x.shape[1] != x.shape[2]:
        raise ValueError(f"expected square images [n, s, s, ...] to turn by 90 degrees, got shape {x.shape}")
    numpy: Any = np if isinstance(dataset.x, np.ndarray) else jnp
    rows = pool[made.rotated]
    return numpy.concatenate([x, numpy.rot90(x[rows], axes=(1, 2))]), numpy.concatenate([y, y[rows]])


def _clients(
    store: ListStore, splits: Sequence[Split], made: Partition, numbers: np.ndarray, group: slice
) -> ClientData | None:
    """The seen or the unseen clients, with their lists of rows; None if there are none."""
    if not splits[group]:
        return None
    noise = None if made.noise is None else made.noise[group]
    deployment, later = (
        None if lists is None else [numbers[rows] for rows in lists[group]] for lists in (made.deployment, made.later)
    )
    trains, valids, tests = zip(*splits[group], strict=True)
    return client_lists(store, trains, valids, tests, noise, deployment, later)


def _names(dataset: Dataset, owner: np.ndarray | None, clients: int) -> Names:
    """The names of a federation whose clients are these owners, first the seen ones; None: clients are not owners."""
    if owner is None or dataset.owner_names is None:
        return Names(dataset.class_names)
    names = tuple(dataset.owner_names[number] for number in owner.tolist())
    return Names(dataset.class_names, names[:clients], names[clients:] or None)


def place(dataset: Dataset, examples: Place = "auto") -> Dataset:
    """Checks a data set and puts its examples on the device, once for all federations made from it.

    ``examples`` is as for ``federate``: "host" leaves them on the host, as "auto" does with a memory-mapped file.

    Raises:
      ValueError: if lengths differ, features or labels are not finite or lose bits, labels are not classes of the data
        set, or ``examples`` is not a valid name.
    """
    if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance] - a user may err
        raise ValueError(f"expected a fljax.data.Dataset, as fljax.data.dataset makes, got {type(dataset).__name__}")
    if examples not in get_args(Place):
        raise ValueError(f"expected examples to be auto, device or host, got {examples!r}")
    owner = dataset.owner
    check_rows(dataset.x, dataset.y, owner)
    check_unchanged(dataset.x)
    check_numbers("features", dataset.x)
    check_finite("features", dataset.x, owner, missing=dataset.standardise)
    check_finite("labels", dataset.y, owner)
    check_wide("features", dataset.x)
    y = dataset.y if isinstance(dataset.y, jax.Array) else stored_labels(np.asarray(dataset.y))
    if dataset.classes is not None:
        check_classes(y, dataset.classes)
    features: Any = dataset.x
    labels: Any = y
    if examples == "host" or (examples == "auto" and Examples(features, labels).is_mapped):
        return dataset._replace(x=np.asarray(dataset.x), y=np.asarray(y))
    return dataset._replace(x=jnp.asarray(dataset.x), y=jnp.asarray(y))


def from_arrays(
    x: Any,
    y: Any,
    owners: Any,
    *,
    test_data: tuple[Any, Any] | None = None,
    classes: int | None = None,
    vocabulary: int | None = None,
    **options: Any,
) -> Federation:
    """Makes a federation from arrays: every owner becomes a client.

    Args:
      x: features ``[n, ...]``; uint8 stays uint8, other whole numbers (tokens) become int32, and floats float32.
      y: labels. Whole numbers ``[n]`` are classes, counted from 0, or -1 and 1; floats, and several numbers of a row
        ``[n, ...]``, are for tasks without classes (``fljax.models.task_from_module(..., loss=...)``).
      owners: owner of each row, ``[n]``: whole numbers or anything that can be sorted, e.g. names. Clients are numbered
        in the sorted order of owners, which ``names.clients`` has. Rows with a negative owner belong to no client.
      test_data: ``(x, y)`` of a global test set, kept as ``held["test"]``.
      classes: number of classes; the largest label plus one if not given.
      vocabulary: number of different tokens in ``x [n, length]``, for a check of the tokens; None: not checked.
      **options: as for ``federate``, e.g. ``unseen``, ``train_fraction``, ``test="global"``.

    Raises:
      ValueError: if lengths differ, labels are out of range, or floats are not finite (the message names clients); and
        as for ``federate``.
    """
    check_same_labels(0, {"x": x, "y": y, "owners": owners})
    given = Features(names_of_columns(x))
    if test_data is not None:
        check_same_labels(0, dict(zip(("test features", "test labels"), test_data, strict=True)))
        check_same_labels(1, {"x": x, "test features": test_data[0]})
        check_same_labels(1, {"y": y, "test labels": test_data[1]})
    x, y, array = as_array("features", x), as_array("labels", y), as_array("owners", owners)
    owners = as_text(owners if isinstance(owners, list | tuple) and len({*map(type, owners)}) > 1 else array)
    check_rows(x, y, owners)
    numbers = number_owners(owners)
    check_finite("features", x, owners)
    check_finite("labels", y, owners)
    names = tuple(np.unique(owners[numbers >= 0]).tolist())
    size = len(y)
    if test_data is not None:
        test_x, test_y = as_array("test features", test_data[0]), as_array("test labels", test_data[1])
        if test_x.shape[1:] != x.shape[1:] or test_x.dtype != x.dtype:
            raise ValueError(f"expected test features like {x.dtype} {x.shape}, got {test_x.dtype} {test_x.shape}")
        check_rows(test_x, test_y)
        check_finite("test features", test_x)
        check_finite("test labels", test_y)
        if test_y.shape[1:] != y.shape[1:] or test_y.dtype.kind not in (y.dtype.kind, *_ALIKE.get(y.dtype.kind, "")):
            raise ValueError(f"expected test labels like {y.dtype} {y.shape}, got {test_y.dtype} {test_y.shape}")
        if y.dtype != test_y.dtype and y.dtype.kind in "iu":  # joining int64 and uint64 would give floats
            y, test_y = whole_numbers("labels", y), whole_numbers("test labels", test_y)
        x, y = np.concatenate([x, test_x]), np.concatenate([y, test_y])
        numbers = np.concatenate([numbers, np.full(len(test_y), -1)])
    signs = None
    if classes is None and y.ndim == 1 and y.dtype.kind == "i" and y.min() == -1 == -y.max() and y.all():
        check_known(y, np.arange(len(y)) >= size)
        y, classes, signs = number_labels(y)
    made = dataset(x, y, owner=numbers, classes=classes, train_size=size, vocabulary=vocabulary)
    made = made._replace(owner_names=names, features=given, class_names=signs)
    return federate(made, options.pop("partition", "natural"), **options)


def _deal(
    partition: str | Callable[..., Partition | Sequence[Any]],
    labels: np.ndarray,
    clients: int,
    unseen: int,
    seed: int,
    facts: dict[str, Any],
    parameters: dict[str, Any],
) -> Partition:
    function = partition if callable(partition) else choose("partition", partition, PARTITIONERS)
    name = partition if isinstance(partition, str) else getattr(partition, "__name__", "given")
    if not takes_anything(function):
        check_keywords("partition", name, parameters, set(list(parameters_of(function))[1:]) - set(_ALWAYS))
    if facts["unseen_owners"] is not None and "unseen_owners" not in parameters_of(function):
        raise ValueError(
            f"expected the partition natural for unseen clients by name, or a number as unseen, got {name}"
        )
    if facts["part"] is not None and "part" not in parameters_of(function):
        raise ValueError(
            f"expected a partition that keeps each client's own training, validation and test rows, such as natural, "
            f"got {name}"
        )
    offered = arguments_for(function, facts, parameters)
    how: dict[str, Any] = {"clients": clients, "unseen": unseen, "seed": seed, **offered}
    made = users.call("the partition", f"(labels, *, {', '.join(how)})", function, labels, **how)
    if not isinstance(made, Partition):
        _check_lists(name, made)
        made = Partition(tuple(_row_numbers(name, client, rows) for client, rows in enumerate(made)))
    plain(made.noise, "the partition's noise")
    lists_of_clients = (made.rows, made.valid, made.test, made.deployment, made.later)
    everything = [rows for lists in (*lists_of_clients, tuple(made.held.values())) for rows in lists or ()]
    used = np.concatenate(everything)
    limit = len(labels) + len(made.rotated)
    served = [len(lists) for lists in lists_of_clients if lists is not None]
    wrong = [number for number in served if number != clients + unseen]
    if wrong:
        raise ValueError(f"expected the partition {name} to serve {clients + unseen} clients, got {wrong[0]}")
    if len(used) and (used.min() < 0 or used.max() >= limit or np.bincount(used).max() > 1):
        raise ValueError(f"expected the partition {name} to use each row in 0..{limit - 1} at most once, got others")
    return made


def _check_lists(name: str, made: Any) -> None:
    """Raises a ValueError if a partition returned a mapping, or one number for each row."""
    if isinstance(made, Mapping):
        got = f"a mapping of {len(made)} keys; list(found.values()) of it is such a list"
    elif isinstance(made, np.ndarray | jax.Array) and made.ndim == 1 and made.dtype != object:
        got = (
            f"an array of {len(made)} numbers; if they are the owner of each row, give them to fljax.data.dataset(..., "
            "owner=) and take the partition natural"
        )
    elif is_labelled(made):
        got = f"a {type(made).__name__} with labels; list(found) of it has the lists alone"
    elif not isinstance(made, Iterable) or (isinstance(made, Sized) and len(made) == 0):
        got = shown(made)
    else:
        return
    raise ValueError(
        f"expected the partition {name} to return a list with the row numbers of each client, no mapping, got {got}"
    )


def _row_numbers(name: str, client: int, rows: Any) -> np.ndarray:
    """What a partition gives one client, as row numbers."""
    try:
        numbers = np.asarray(rows)
    except ValueError:  # lists of different lengths
        numbers = np.empty((1, 1), object)
    numbers = np.atleast_2d(numbers) if numbers.ndim == 0 else numbers
    fractional = numbers[:0].ravel()
    if numbers.dtype.kind == "f":
        fractional = numbers[~np.isfinite(numbers) | (numbers != np.floor(numbers))]
    if numbers.ndim != 1 or len(fractional) or (numbers.size and numbers.dtype.kind not in "iuf"):
        got = f"{fractional[0]:g}" if len(fractional) else describe(rows)
        raise ValueError(
            f"expected the partition {name} to give each client a list of whole row numbers, got {got} "
            f"for client {client}"
        )
    return numbers.astype(int)


def federations(dataset: Dataset, partition: Any = "iid", *, seeds: Seeds, **options: Any) -> list[Federation]:
    """Makes one federation per seed; all share one copy of the examples on the device.

    Args:
      dataset: as for ``federate``.
      partition: as for ``federate``.
      seeds: a seed for each federation; 3 means the seeds 0, 1 and 2.
      **options: as for ``federate``; without ``clients`` all seeds have the smallest number that a seed allows.
    """
    placed = place(dataset, options.get("examples", "auto"))
    made = [federate(placed, partition, seed=seed, **options) for seed in seeds_of(seeds)]
    counts = {each.clients.id.shape[-1] for each in made}
    if len(counts) > 1:
        return federations(placed, partition, seeds=seeds, **options | {"clients": min(counts)})
    return made


def split_identities(federation: Federation, client: int | None, identities: int = 2) -> Federation:
    """The federation with ``identities - 1`` further clients, which have rows of one client or none.

    The client is the first of K identities. Identity j has the rows ``ceil(n j / K)`` to ``ceil(n (j + 1) / K) - 1`` of
    the client's list of n, for training and for validation. Test rows stay with the client. Federations that differ in
    ``client`` have equal shapes, so their runs share a program.

    Args:
      federation: of N clients, one or one per seed (``fljax.data.stack``).
      client: the id of the client that splits; None: no client splits, and the places are empty.
      identities: K, at least 2.

    Returns:
      The federation of N + K - 1 clients in the order of ids, without names of clients.

    Raises:
      ValueError: if ``client`` is no id of a client, or ``identities`` is below 2.
    """
    ids = np.asarray(federation.clients.id)
    population, further = ids.shape[-1], check_count("identities", identities, 2) - 1
    if client is not None and (not is_whole(client) or not 0 <= client < population):
        raise ValueError(f"expected client to be the id of one of the clients 0 to {population - 1}, got {client!r}")
    owner = np.concatenate([np.arange(population), np.full(further, client or 0)])
    number = np.concatenate([np.zeros(population, int), 1 + np.arange(further)])  # of the identity
    source = np.argsort(ids, axis=-1)[..., owner]

    def of_owners(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return np.take_along_axis(array, source.reshape(source.shape + (1,) * (array.ndim - ids.ndim)), ids.ndim - 1)

    def dealt(part: str, rows: Rows) -> Rows:
        size, index = of_owners(rows.size), rows.index
        if part == "test" or client is None:
            begin, end = np.zeros_like(size), np.where(number > 0, 0, size)
        else:
            pieces = np.where(owner == client, identities, 1)
            begin, end = (-(-size * place // pieces) for place in (number, number + 1))
        if isinstance(index, Spans):
            shifted: Any = dataclasses.replace(index, start=jnp.asarray(of_owners(index.start) + begin, jnp.int32))
        else:
            shifted = jnp.asarray(_later(of_owners(index), begin))
        return Rows(shifted, jnp.asarray(end - begin, jnp.int32))

    clients = federation.clients
    parts = {part: dealt(part, rows) for part, rows in clients.parts.items()}
    noise = None if clients.noise is None else jnp.asarray(of_owners(clients.noise))
    numbered = jnp.asarray(np.broadcast_to(np.arange(len(owner)), source.shape), jnp.int32)
    names = dataclasses.replace(federation.names, clients=None)
    return federation._replace(clients=clients._replace(id=numbered, noise=noise, **parts), names=names)


def _later(table: Int[np.ndarray, "*N n_max"], begin: Int[np.ndarray, "*N"]) -> Int[np.ndarray, "*N n_max"]:
    """Every row of the table from the entry ``begin`` on; entries behind its end are the last one."""
    places = np.minimum(np.arange(table.shape[-1]) + begin[..., None], table.shape[-1] - 1)
    return np.take_along_axis(table, places, -1)
