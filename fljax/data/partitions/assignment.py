"""The type Partition, which assigns rows to clients, helpers for partitioners, and the parts of a client's rows.

Rows with owners: who has training rows, and which owners a user chooses as unseen clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.core.names import did_you_mean, shown
from fljax.core.values import is_whole
from fljax.data.arrays import check_count, text_of
from fljax.data.datasets import Dataset, training_owners
from fljax.protocol import NumpyArray

Row = Int[np.ndarray, " rows"]


class Partition(NamedTuple):
    """The result of a partitioner: rows by client, first the seen clients and then the unseen clients.

    Each row is used at most once. Rows are numbered from 0 in the order of the partitioner's labels. Row ``n + j`` is
    the copy of row ``rotated[j]``, rotated by 90 degrees; the original is then not used.

    Attributes:
      rows: the rows of each client; training rows only if ``test`` is given.
      test: the test rows of each client, if the partitioner chooses them; None: test rows are split off ``rows``.
      noise: standard deviation of the noise on each client's standardised training features; None: no noise.
      group: the group (cluster, source distribution) of each client; None: no groups.
      rotated: rows that are replaced by rotated copies.
      held: rows that stay with the server, by name.
      valid: the validation rows of each client, if the partitioner chooses them; None: they are split off ``rows``.
      owner: the data set's owner whose rows a client has; None: clients are not owners.
      deployment: the validation rows that each client has when it uses its model, if its data have changed by then;
        None: they have not.
      later: the training rows that each client has once its data have changed during training (the scenario ``drift``);
        None: they do not change.
    """

    rows: tuple[Row, ...]
    test: tuple[Row, ...] | None = None
    noise: Float[np.ndarray, " clients"] | None = None
    group: Int[np.ndarray, " clients"] | None = None
    rotated: Row = np.zeros(0, np.int64)
    held: Mapping[str, Row] = {}
    valid: tuple[Row, ...] | None = None
    owner: Int[np.ndarray, " clients"] | None = None
    deployment: tuple[Row, ...] | None = None
    later: tuple[Row, ...] | None = None


def rows_by_owner(owner: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> tuple[Row, ...]:
    """The rows of each wanted owner among ``rows``, in their order; ``owner`` has the owner of every row."""
    order = rows[np.argsort(owner[rows], kind="stable")]
    starts, ends = (np.searchsorted(owner[order], wanted, side) for side in ("left", "right"))
    return tuple(order[a:b] for a, b in zip(starts, ends, strict=True))


def begin(
    labels: np.ndarray, clients: int, unseen: int, seed: int, minimum: int = 1
) -> tuple[np.ndarray, int, np.random.Generator]:
    """The labels, the number of all clients, a generator; raises a ValueError if there are too few rows."""
    labels, everybody = np.asarray(labels), clients + unseen
    if everybody * minimum > len(labels):
        raise ValueError(
            f"expected at least {minimum} samples for each of {everybody} clients, got {len(labels)} in all"
        )
    return labels, everybody, np.random.default_rng(seed)


def count_classes(labels: np.ndarray, classes: int | None) -> int:
    """Returns ``classes``, or the largest label plus one if ``classes`` is None."""
    check_class_labels(labels)
    return int(labels.max()) + 1 if classes is None else classes


def check_class_labels(labels: np.ndarray) -> None:
    """Raises a ValueError unless labels are whole numbers ``[n]``, one class for each row."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            "expected one whole-number label for each row, since this partition deals by classes, got labels of "
            f"{labels.dtype} with shape {labels.shape}; iid, quantity, noise and natural take any labels"
        )


def relative_order(clients: int, unseen: int) -> tuple[np.ndarray, np.ndarray]:
    """Each client's position among the seen or the unseen clients, to which rules apply apart, and their number."""
    position = np.concatenate([np.arange(clients), np.arange(unseen)])
    return position, np.repeat([clients, unseen], [clients, unseen])


def cut(fractions: np.ndarray, total: int | NumpyArray) -> np.ndarray:
    """Returns whole counts that sum to ``total``: the differences of ``floor(cumsum(fractions) * total)``."""
    # The small number corrects rounding errors of the sum, which would move a sample to the next client.
    edges = np.floor(np.cumsum(fractions) * total + 1e-9).astype(int)
    edges[-1] = total
    return np.diff(np.minimum(edges, total), prepend=0)


def largest_remainders(shares: Sequence[float] | NumpyArray, total: int) -> np.ndarray:
    """Returns whole counts that sum to ``total``: ``floor(share * total)``, plus 1 where the remainders are largest."""
    shares = np.asarray(shares, float)
    # Rounding makes quotas of the same remainder equal, and 28.999999999999996 = 0.29 * 100 a whole number.
    quotas = np.round(shares / shares.sum() * total, 9)
    counts = np.floor(quotas).astype(int)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts


def draw_groups(
    shares: Sequence[float], sizes: Sequence[int], clients: int, unseen: int, minimum: int, rng: np.random.Generator
) -> np.ndarray:
    """The group of each client, where groups of ``sizes`` rows have their ``shares`` of seen and of unseen clients."""
    _check_shares(shares, len(sizes))
    counts = [largest_remainders(shares, population) for population in (clients, unseen)]
    for group, (size, number) in enumerate(zip(sizes, np.sum(counts, axis=0), strict=True)):
        if size < number * minimum:
            raise ValueError(
                f"expected {minimum} samples for each of {number} clients of group {group}, got {size} in all"
            )
    return np.concatenate([rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int32), n)) for n in counts])


def take(order: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cuts ``order`` into consecutive pieces of the given lengths."""
    return np.split(order[: int(np.sum(counts))], np.cumsum(counts)[:-1])


def repair(rows: Sequence[np.ndarray], minimum: int) -> list[np.ndarray]:
    """Moves rows from the largest clients to clients with fewer than ``minimum`` rows; needs enough rows in all."""
    # Each move fills a client or reduces the largest one to ``minimum``: there are at most 2 moves per client.
    rows = list(rows)
    sizes = np.array([len(part) for part in rows])
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
    """Raises a ValueError if a client has fewer than ``minimum`` rows."""
    least = min(len(part) for part in rows)
    if least < minimum:
        raise ValueError(f"expected at least {minimum} samples for each client, got one with {least}; {remedy}")


def _check_shares(shares: Sequence[float], groups: int) -> None:
    """Raises a ValueError unless there is a share in [0, 1] for each group, and their sum is 1."""
    if len(shares) != groups:
        raise ValueError(f"expected a share for each of {groups} groups, got {len(shares)} shares")
    for share in shares:
        number = isinstance(share, int | float | np.number) and not isinstance(share, bool)
        if not number or not 0 <= share <= 1:
            raise ValueError(f"expected shares that are numbers from 0 to 1, got {share!r}")
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"expected shares with the sum 1, got {sum(shares):.7g}")


class Split(NamedTuple):
    """The rows of one client, by what they are for."""

    train: Row
    valid: Row
    test: Row


def split_rows(rows: Row, train_fraction: float, valid_fraction: float, rng: np.random.Generator) -> Split:
    """Splits rows by a random permutation that is not stratified; of two rows or more, one at least is a test row."""
    rows = rng.permutation(rows)
    # Guarantee one training row first, then one test row, then apply the fraction.
    count = max(min(round(train_fraction * len(rows)), len(rows) - 1), min(1, len(rows)))
    train, valid = _without_valid(rows[:count], valid_fraction)
    return Split(train, valid, rows[count:])


def split_client(
    made: Partition, client: int, train_fraction: float, valid_fraction: float, test: str, rng: np.random.Generator
) -> Split:
    """The rows of a client, by the arguments of ``federate``; the partition's own validation and test rows stay."""
    if made.test is None and test == "own":
        split = split_rows(made.rows[client], train_fraction, 0.0, rng)
        train, tests = split.train, split.test
    else:
        train = rng.permutation(made.rows[client])
        tests = train[:0] if made.test is None else made.test[client]
    if made.valid is not None:
        return Split(train, made.valid[client], tests)
    train, valid = _without_valid(train, valid_fraction)
    return Split(train, valid, tests)


def split_unseen(
    split: Split,
    unassigned: Row,
    made: Partition,
    train_fraction: float,
    valid_fraction: float,
    rng: np.random.Generator,
) -> Split:
    """The rows of an unseen client, of which some are training rows and some test rows, if it has two rows or more."""
    # ``unassigned`` are all rows of a client without training rows, whom the partition gives none.
    if not len(split.train):
        return split_rows(np.concatenate([*split, unassigned]), train_fraction, valid_fraction, rng)
    if made.test is None or len(split.test):
        return split
    if made.valid is None:
        return split_rows(np.concatenate([split.train, split.valid]), train_fraction, valid_fraction, rng)
    return split_rows(split.train, train_fraction, 0.0, rng)._replace(valid=split.valid)


def _without_valid(
    train: Row, valid_fraction: float
) -> tuple[Int[np.ndarray, " training"], Int[np.ndarray, " validation"]]:
    """Training rows without the share of them that is for validation, and that share."""
    valid = max(min(round(valid_fraction * len(train)), len(train) - 1), 0)
    return train[valid:], train[:valid]


# A number of clients, the owners themselves, or "test": all owners without training rows.
Unseen = int | Sequence[Any] | Literal["test"]
# The number of owners that an error message names.
_NAMED = 10


class Owners(NamedTuple):
    """The owners of a data set's rows, as numbers in ascending order."""

    training: NumpyArray
    tested: NumpyArray  # those whose rows are all for validation or test
    validated: NumpyArray  # those of ``tested`` whose rows are all for validation
    names: tuple[Any, ...] | None  # what the user calls each owner, by number; None: owners have no names


class RowsApart(NamedTuple):
    """Rows that belong to no client that trains."""

    unseen: list[NumpyArray]  # by chosen unseen owner; none of one that has training rows
    validation: NumpyArray  # the server's, ``held["validation"]``
    test: NumpyArray  # of the global test set, ``held["test"]``


def owners_of(dataset: Dataset) -> Owners:
    """The owners of a data set; both lists are empty if rows have no owners."""
    training = training_owners(dataset)
    if dataset.owner is None:
        return Owners(training, training, training, dataset.owner_names)
    owner = np.asarray(dataset.owner)
    tested = np.setdiff1d(owner[owner >= 0], training)
    return Owners(training, tested, np.setdiff1d(tested, owner[_are_tests(dataset)]), dataset.owner_names)


def _are_tests(dataset: Dataset) -> np.ndarray:
    """Which rows are test rows by their author: of upstream's test part, or of their owner's."""
    upstream = np.arange(len(dataset.y)) >= dataset.train_size
    return upstream if dataset.part is None else upstream | (np.asarray(dataset.part) == 2)


def chosen_owners(owners: Owners, unseen: Unseen) -> np.ndarray | None:
    """The numbers of the owners that are unseen clients; None if ``unseen`` is a number, for a partition."""
    # Where no name is equal to an entry, the texts of both are compared; owners without names are chosen by number.
    if is_whole(unseen):
        check_count("unseen", unseen, 0)
        return None
    if isinstance(unseen, str) and unseen == "test":
        tested = np.setdiff1d(owners.tested, owners.validated)
        if not len(tested):
            raise ValueError("expected owners whose rows are all test rows for unseen='test', got none")
        return tested
    if isinstance(unseen, str) or not isinstance(unseen, Sequence | np.ndarray):
        raise ValueError(f"expected unseen to be a number of clients, a list of owners or 'test', got {shown(unseen)}")
    if not len(unseen):
        raise ValueError("expected the owners that are unseen clients, or 0 for none, got an empty list")
    everybody = np.sort(np.concatenate([owners.training, owners.tested])).tolist()
    if not everybody:
        raise ValueError("expected data whose rows have owners, to choose unseen clients by name, got data without")
    names = {number if owners.names is None else owners.names[number]: number for number in everybody}
    texts = {str(name): number for name, number in names.items()}
    asked = np.asarray(unseen).tolist() if isinstance(unseen, np.ndarray) else list(unseen)
    numbers = [_number(name, names, texts) for name in asked]
    if len(set(numbers)) < len(numbers):
        twice = next(name for place, name in enumerate(asked) if numbers[place] in numbers[:place])
        raise ValueError(f"expected different owners as unseen clients, got {shown(twice)} twice")
    return np.sort(numbers)


def _number(name: Any, names: dict[Any, int], texts: dict[str, int]) -> int:
    """The number of the owner that the user calls so."""
    name = text_of(name)
    plain = isinstance(name, str | int | float) and not isinstance(name, bool)
    number = names.get(name) if plain else None
    number = texts.get(str(name)) if number is None else number
    if number is not None:
        return number
    listed = ", ".join(list(texts)[:_NAMED]) + (f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")
    question = did_you_mean(str(name), texts)
    raise ValueError(f"expected one of the owners {listed} as an unseen client, got {shown(name)}{question}")


def count_seen(owners: Owners, unseen: Unseen, chosen: np.ndarray | None) -> int:
    """The number of owners that may train, where ``chosen`` are the unseen ones; None: ``unseen`` of them."""
    if chosen is None:
        return len(owners.training) - check_count("unseen", unseen, 0)
    return int(np.sum(~np.isin(owners.training, chosen)))


def owners_left(owner: np.ndarray, part: np.ndarray | None, minimum: int, chosen: np.ndarray | None) -> np.ndarray:
    """The owners of so many training rows among some rows, in ascending order, without the ``chosen`` unseen ones."""
    names, sizes = np.unique(owner[(owner >= 0) & (True if part is None else part == 0)], return_counts=True)
    return np.setdiff1d(names[sizes >= minimum], [] if chosen is None else chosen)


def rows_apart(dataset: Dataset, owners: Owners, chosen: np.ndarray | None, held_fraction: float) -> RowsApart:
    """The rows that no client trains on, since their owner has no training rows or since they have no owner."""
    # If their owner is no unseen client, validation rows are the server's, and test rows are in the global test set.
    tests, part, unseen_rows = _are_tests(dataset), dataset.part, list[np.ndarray]()
    upstream = np.arange(len(tests)) >= dataset.train_size
    free, global_tests = np.ones(len(tests), bool), upstream
    if dataset.owner is not None:
        owner = np.asarray(dataset.owner)
        free = (owner < 0) | np.isin(owner, owners.tested)
        if chosen is not None:
            owned = rows_by_owner(owner, np.arange(len(owner)), chosen)
            unseen_rows = [
                rows if number in owners.tested else rows[:0] for rows, number in zip(owned, chosen, strict=True)
            ]
            taken = np.concatenate(unseen_rows)
            free[taken] = upstream[taken] = False
        global_tests = upstream | (free & tests)
    validation = np.flatnonzero(free & ~tests & (np.asarray(part) == 1)) if part is not None else np.zeros(0, int)
    if len(validation) and held_fraction > 0:
        raise ValueError(
            f"expected held_fraction of 0 for data with validation rows of the server, got {held_fraction}"
        )
    return RowsApart(unseen_rows, validation, np.flatnonzero(global_tests))
