"""Lists of rows in one array: a client costs what it holds, and reads what it read in a table."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import data
from fljax.core import trees
from fljax.data.tables import ListStore
from fljax.engine.rounds.states import same_tests
from fljax.protocol import IndexList, Rows, Spans
from fljax.protocol.data import choose_list

LISTS = jnp.asarray([0, 5, 3, 9, 7, 2], jnp.int32)


@pytest.mark.in_turn
def test_an_index_list_reads_as_its_array() -> None:
    own, table = IndexList(LISTS, jnp.int32(2), 3), np.array([3, 9, 7])
    assert (own.shape, own.ndim, own.dtype, len(own)) == ((3,), 1, jnp.int32, 3)
    np.testing.assert_array_equal(own, table)
    np.testing.assert_array_equal(list(own), table)
    for index in (1, -1, slice(1, None), np.array([[0, 2], [1, -3]]), np.array([True, False, True]), None, ...):
        np.testing.assert_array_equal(own[index], table[index])
    assert int(own[7]) == 7, "as JAX reads an array beyond its end"
    np.testing.assert_array_equal(jnp.sort(jnp.asarray(own)), np.sort(table))


def test_under_vmap_the_lists_are_not_copied() -> None:
    spans = Spans(jnp.asarray([1, 3], jnp.int32), 2)
    read = jax.vmap(lambda each: each.of(LISTS)[jnp.arange(2)])
    np.testing.assert_array_equal(read(spans), [[5, 3], [9, 7]])
    assert spans.shape == (2, 2)
    assert trees.take(spans, 1).shape == (2,)
    looks: list[Any] = [np.asarray, jnp.asarray, list, len, lambda spans: spans[0], lambda spans: spans[:, 0]]
    for look in looks:
        with pytest.raises(TypeError, match=r"expected fljax.data.row_numbers"):
            look(spans)


def test_one_of_two_lists_is_chosen() -> None:
    some, other = IndexList(LISTS, jnp.int32(1), 2), IndexList(LISTS, jnp.int32(3), 3)
    for first, expected in ((True, [5, 3, 9]), (False, [9, 7, 2])):
        chosen = choose_list(jnp.asarray(first), some, other)
        assert isinstance(chosen, IndexList)
        np.testing.assert_array_equal(chosen, expected)
        array = choose_list(jnp.asarray(first), jnp.array([5, 3]), jnp.array([9, 7, 2]))
        np.testing.assert_array_equal(array, [5, 3, 0] if first else expected)


def test_lists_that_all_share_are_stored_once_and_empty_ones_read_example_0() -> None:
    store, everybody = ListStore(), np.array([4, 8, 6])
    own = store.add([np.array([1, 2]), np.zeros(0, int), np.array([3])])
    shared, again = store.add([everybody] * 4), store.add([everybody] * 2)
    np.testing.assert_array_equal(store.lists(), [0, 1, 2, 3, 4, 8, 6])
    np.testing.assert_array_equal(own.index.start, [1, 0, 3])
    np.testing.assert_array_equal(own.size, [2, 0, 1])
    assert own.index.capacity == 2
    np.testing.assert_array_equal(shared.index.start, [4] * 4)
    np.testing.assert_array_equal(again.index.start, [4] * 2)


def test_one_large_client_costs_its_own_rows() -> None:
    """20,000 clients of 4 to 10 rows and one with 2,000: a padded table would be 160 MB."""
    size = np.append(np.random.default_rng(0).integers(4, 11, 20_000), 2_000)
    owner = np.repeat(np.arange(len(size)), size)
    made = data.from_arrays(np.zeros((len(owner), 1), np.float32), np.arange(len(owner)) % 2, owner)
    tables = trees.bytes_of((made.clients, made.lists))
    assert tables == 4 * (1 + len(owner) + 7 * len(size))
    assert made.clients.train.index.shape == (20_001, 1_200)
    assert [len(rows) for rows in data.row_numbers(made)] == made.clients.train.size.tolist()


def test_the_same_test_rows_are_found_without_a_table() -> None:
    blobs = data.load("blobs", samples=60, test_samples=20)
    whole: Any = data.federate(blobs, clients=5, unseen=2, test="global")
    assert same_tests(whole)
    assert whole.lists.shape == (1 + 60 + 20,)
    assert not same_tests(data.federate(blobs, clients=5))
    assert same_tests(data.stack([whole, data.federate(blobs, clients=5, unseen=2, test="global", seed=1)]))
    start = whole.clients.test.index.start
    moved = Rows(Spans(start.at[2].add(-1), 20), whole.clients.test.size)
    assert not same_tests(whole._replace(clients=whole.clients._replace(test=moved)))
