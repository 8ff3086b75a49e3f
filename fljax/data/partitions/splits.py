"""The training, validation and test rows of one client."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fljax.data.partitions.assignment import Partition, Row


class Split(NamedTuple):
    """The rows of one client, by what they are for."""

    train: Row
    valid: Row
    test: Row


def split_rows(rows: Row, train_fraction: float, valid_fraction: float, rng: np.random.Generator) -> Split:
    """Splits rows by a random permutation that is not stratified; of two rows or more, one at least is a test row."""
    rows = rng.permutation(rows)
    # Guarantee one training row first, then one test row, then apply the fraction.
    kept = max(min(round(train_fraction * len(rows)), len(rows) - 1), min(1, len(rows)))
    train, valid = _without_valid(rows[:kept], valid_fraction)
    return Split(train, valid, rows[kept:])


def split_client(
    made: Partition,
    client: int,
    train_fraction: float,
    valid_fraction: float,
    test: str,
    rng: np.random.Generator,
) -> Split:
    """The rows of a client of a partition; the partition's own validation and test rows stay what they are.

    Args:
      made: the partition.
      client: the client's place in it.
      train_fraction: as for ``federate``.
      valid_fraction: as for ``federate``.
      test: "own", or "global" if clients have no test rows of their own.
      rng: draws the order of rows.
    """
    if made.test is None and test == "own":
        found = split_rows(made.rows[client], train_fraction, 0.0, rng)
        train, tests = found.train, found.test
    else:
        train = rng.permutation(made.rows[client])
        tests = train[:0] if made.test is None else made.test[client]
    if made.valid is not None:
        return Split(train, made.valid[client], tests)
    train, valid = _without_valid(train, valid_fraction)
    return Split(train, valid, tests)


def split_unseen(
    split: Split, own: Row, made: Partition, train_fraction: float, valid_fraction: float, rng: np.random.Generator
) -> Split:
    """The rows of an unseen client, of which some are training rows and some test rows, if it has two rows or more.

    Args:
      split: the client's rows by the partition.
      own: all rows of a client without training rows, whom the partition gives none.
      made: the partition.
      train_fraction: as for ``federate``.
      valid_fraction: as for ``federate``.
      rng: draws the order of rows.
    """
    if not len(split.train):
        return split_rows(np.concatenate([*split, own]), train_fraction, valid_fraction, rng)
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
