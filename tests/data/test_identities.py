"""Clients that split into several identities."""

from __future__ import annotations

import numpy as np
import pytest

from fljax import trees
from fljax.data import row_numbers, split_identities, stack
from fljax.protocol import Federation
from fljax.testing.federation import with_lists
from tests.games.test_retraining import few


def rows_of(federation: Federation, part: str) -> list[list[int]]:
    return [list(map(int, rows)) for rows in row_numbers(federation, part)]


def disordered() -> Federation:
    """Clients in another order than that of their ids."""
    federation = few(3)
    return federation._replace(clients=trees.take(federation.clients, np.array([2, 0, 1])))


@pytest.mark.parametrize("as_lists", [False, True])
def test_rows_are_dealt_to_the_client_and_to_places(as_lists: bool) -> None:
    """In order, the first identities get one more; test rows stay."""
    federation, client = with_lists(disordered(), 0) if as_lists else disordered(), 1
    order = np.argsort(np.asarray(federation.clients.id))
    split = split_identities(federation, client, 3)
    assert np.asarray(split.clients.id).tolist() == [0, 1, 2, 3, 4]
    for part in ("train", "valid"):
        before, after = rows_of(federation, part), rows_of(split, part)
        own = before[order[client]]
        assert (after[0], after[2]) == (before[order[0]], before[order[2]])
        pieces = [after[1], after[3], after[4]]
        assert [list(map(int, rows)) for rows in np.array_split(own, 3)] == pieces
    before, after = rows_of(federation, "test"), rows_of(split, "test")
    assert after == [*(before[place] for place in order), [], []]


def test_places_are_empty_where_nobody_splits() -> None:
    federation = few(3)
    split = split_identities(federation, None, 2)
    for part in ("train", "valid", "test"):
        before = rows_of(federation, part)
        assert rows_of(split, part) == [*(before[place] for place in np.argsort(np.asarray(federation.clients.id))), []]


def test_federations_of_several_seeds() -> None:
    stacked = split_identities(stack([few(3), few(3)]), 2, 2)
    alone = split_identities(few(3), 2, 2)
    assert stacked.clients.id.shape == (2, 4)
    np.testing.assert_array_equal(np.asarray(stacked.clients.train.size), np.tile(alone.clients.train.size, (2, 1)))
