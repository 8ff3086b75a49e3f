"""Owners of rows: who has training rows, and which owners a user chooses as unseen clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.core.names import nearest, shown
from fljax.core.signatures import is_whole
from fljax.data.arrays import text_of
from fljax.data.checks import check_count
from fljax.data.datasets import Dataset, training_owners
from fljax.data.partitions.assignment import rows_by_owner
from fljax.protocol import NumpyArray

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
    close = nearest(str(name), texts)
    question = "" if close is None else f" (did you mean {close!r}?)"
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
