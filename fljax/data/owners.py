"""Owners of rows: who has training rows, and which owners a user chooses as unseen clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fljax.arguments import is_whole
from fljax.data.assignment import rows_by_owner
from fljax.data.checks import check_count
from fljax.data.datasets import Dataset, training_owners
from fljax.naming import nearest, shown
from fljax.types import NumpyArray

# A number of clients, the owners themselves, or "test": all owners without training rows.
Unseen = int | Sequence[Any] | Literal["test"]
# The number of owners that an error message names.
_NAMED = 10


class Owners(NamedTuple):
    """The owners of a data set's rows, as numbers in ascending order.

    Attributes:
      training: those with training rows.
      tested: those whose rows are all for validation or test.
      names: what the user calls each owner, by number; None: owners have no names.
    """

    training: NumpyArray
    tested: NumpyArray
    names: tuple[Any, ...] | None


def owners_of(dataset: Dataset) -> Owners:
    """The owners of a data set; both lists are empty if rows have no owners."""
    training = training_owners(dataset)
    everybody = np.unique(np.asarray(dataset.owner)) if dataset.owner is not None else training
    return Owners(training, np.setdiff1d(everybody[everybody >= 0], training), dataset.owner_names)


def chosen_owners(owners: Owners, unseen: Unseen) -> np.ndarray | None:
    """The numbers of the owners that are unseen clients, in ascending order.

    Args:
      owners: of the data set.
      unseen: a number of clients, a list of owners by name, or "test": all owners without training rows. Where no name
        is equal to an entry, the texts of both are compared; owners without names are chosen by number.

    Returns:
      The numbers; None if ``unseen`` is a number of clients, which a partition draws.

    Raises:
      ValueError: if an owner does not exist or is named twice, or no owner is chosen.
    """
    if is_whole(unseen):
        check_count("unseen", unseen, 0)
        return None
    if isinstance(unseen, str) and unseen == "test":
        if not len(owners.tested):
            raise ValueError("expected owners whose rows are all test rows for unseen='test', got none")
        return owners.tested
    if isinstance(unseen, str) or not isinstance(unseen, Sequence | np.ndarray):
        raise ValueError(f"expected unseen to be a number of clients, a list of owners or 'test', got {shown(unseen)}")
    if not len(unseen):
        raise ValueError("expected the owners that are unseen clients, or 0 for none, got an empty list")
    everybody = np.sort(np.concatenate([owners.training, owners.tested])).tolist()
    if not everybody:
        raise ValueError("expected data whose rows have owners, to choose unseen clients by name, got data without")
    names = {number if owners.names is None else owners.names[number]: number for number in everybody}
    texts = {str(name): number for name, number in names.items()}
    given = np.asarray(unseen).tolist() if isinstance(unseen, np.ndarray) else list(unseen)
    found = [_number(each, names, texts) for each in given]
    if len(set(found)) < len(found):
        twice = next(each for place, each in enumerate(given) if found[place] in found[:place])
        raise ValueError(f"expected different owners as unseen clients, got {shown(twice)} twice")
    return np.sort(found)


def _number(given: Any, names: dict[Any, int], texts: dict[str, int]) -> int:
    """The number of the owner that the user calls so."""
    plain = isinstance(given, str | int | float) and not isinstance(given, bool)
    number = names.get(given) if plain else None
    number = texts.get(str(given)) if number is None else number
    if number is not None:
        return number
    listed = ", ".join(list(texts)[:_NAMED]) + (f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")
    close = nearest(str(given), texts)
    question = "" if close is None else f" (did you mean {close!r}?)"
    raise ValueError(f"expected one of the owners {listed} as an unseen client, got {shown(given)}{question}")


def count_seen(owners: Owners, unseen: Unseen, chosen: np.ndarray | None) -> int:
    """The number of owners that may train, where ``chosen`` are the unseen ones; None: ``unseen`` of them."""
    if chosen is None:
        return len(owners.training) - check_count("unseen", unseen, 0)
    return int(np.sum(~np.isin(owners.training, chosen)))


def tests_of(dataset: Dataset, owners: Owners, chosen: np.ndarray | None) -> list[np.ndarray]:
    """The rows of upstream's test part that each chosen unseen owner has, if that owner has no training rows."""
    if chosen is None:
        return []
    rows = np.arange(dataset.train_size, len(dataset.y))
    found = rows_by_owner(np.asarray(dataset.owner), rows, chosen)
    untrained = np.isin(chosen, owners.tested)
    return [own if alone else own[:0] for own, alone in zip(found, untrained, strict=True)]


def validation_of_the_server(dataset: Dataset, held_fraction: float) -> np.ndarray:
    """The validation rows of upstream's training part that have no owner; they are the server's."""
    if dataset.part is None:
        return np.zeros(0, int)
    free = np.asarray(dataset.part) == 1
    if dataset.owner is not None:
        free &= np.asarray(dataset.owner) < 0
    found = np.flatnonzero(free[: dataset.train_size])
    if len(found) and held_fraction > 0:
        raise ValueError(
            f"expected held_fraction of 0 for data with validation rows of the server, got {held_fraction}"
        )
    return found
