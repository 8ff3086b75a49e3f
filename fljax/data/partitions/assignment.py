"""The type Partition, which assigns rows to clients, helpers for partitioners, and the parts of a client's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fljax.data.checks import check_count
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
    """Checks common arguments of partitioners; returns the labels, the number of all clients, a generator."""
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
    """Returns ``classes``, or the largest label plus one if ``classes`` is None."""
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
    shares: Sequence[float],
    sizes: Sequence[int],
    clients: int,
    unseen: int,
    minimum: int,
    rng: np.random.Generator,
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
    made: Partition,
    client: int,
    train_fraction: float,
    valid_fraction: float,
    test: str,
    rng: np.random.Generator,
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
