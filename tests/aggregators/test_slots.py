"""From a schedule to updates and back to clients: a round of IP-FL without a scatter by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import aggregators
from fljax.aggregators import Schedule, member_accuracy, record_slots, slot_rows

N, C = 5, 2
# Client 3 trains both models; the last slot of cluster 1 is empty, and its id is that of a client that did not train.
CHOSEN = Schedule(jnp.array([[3, 0, 4], [1, 3, 2]]), jnp.array([[True, True, True], [True, True, False]]))


def test_a_row_for_each_slot():
    rows = slot_rows(CHOSEN)
    assert rows.id.tolist() == [3, 0, 4, 1, 3, 2]
    assert rows.cluster.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.present.tolist() == [True] * 5 + [False]
    assert rows.membership.astype(int).tolist() == [[1, 0]] * 3 + [[0, 1]] * 2 + [[0, 0]]


def test_one_value_for_all_slots_makes_the_members():
    members = record_slots(jnp.zeros((N, C), bool), CHOSEN, True)
    assert members.astype(int).tolist() == [[1, 0], [0, 1], [0, 0], [1, 1], [1, 0]]
    counts = record_slots(jnp.full((N, C), 7), CHOSEN, 2)
    assert counts.dtype == jnp.int32
    assert counts.tolist() == [[2, 7], [7, 2], [7, 7], [2, 2], [2, 7]]


def test_values_by_cluster_and_row_go_to_their_clients():
    values = jnp.arange(12.0).reshape(C, 6).at[1, 5].set(jnp.nan)
    found = record_slots(jnp.full((N, C), -1.0), CHOSEN, values)
    assert found.tolist() == [[1, -1], [-1, 9], [-1, -1], [0, 10], [2, -1]]


def test_a_member_that_does_not_answer_is_no_member():
    answers = jnp.array([True, True, True, False, True])
    chosen = CHOSEN._replace(present=CHOSEN.present & answers[CHOSEN.id])
    assert record_slots(jnp.zeros((N, C), bool), chosen, True).astype(int).tolist() == [
        [1, 0], [0, 1], [0, 0], [0, 0], [1, 0],
    ]  # fmt: skip
    assert not slot_rows(chosen).membership[jnp.array([0, 4])].any()


def test_more_slots_than_clients():
    bids = jnp.ones((3, C), bool)
    chosen = aggregators.schedule(jax.random.key(0), bids, bids * 1.0, bids * 1, jnp.full(C, 0.5), slots=9)
    assert slot_rows(chosen).id.shape == (6,)
    assert record_slots(jnp.zeros((3, C), bool), chosen, True).all()


def test_member_accuracy_is_the_mean_over_members():
    accuracy = jnp.array([[0.5, 0.1], [0.7, jnp.nan], [jnp.nan, jnp.nan]])
    members = jnp.array([[True, False], [True, False], [False, False]])
    found = member_accuracy(accuracy, members)
    np.testing.assert_allclose(found, [0.6, np.nan], rtol=1e-6)


def test_gradients_pass_and_an_empty_cluster_has_none():
    members = jnp.array([[True, False], [True, False]])
    found = jax.grad(lambda a: jnp.nansum(member_accuracy(a, members)))(jnp.full((2, 2), 0.5))
    assert found.tolist() == [[0.5, 0], [0.5, 0]]
    found = jax.grad(lambda v: record_slots(jnp.zeros((N, C)), CHOSEN, v).sum())(jnp.zeros((C, 6)))
    assert found.tolist() == [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0]]


def test_values_and_tables_of_another_shape():
    with pytest.raises(ValueError, match=r"expected values of shape \[C, S\], which is \[2, 6\] here, got \[6, 2\]"):
        record_slots(jnp.zeros((N, C)), CHOSEN, jnp.zeros((6, C)))
    with pytest.raises(ValueError, match=r"expected table of shape \[N, C\], which is \[5, 2\] here, got \[5, 3\]"):
        record_slots(jnp.zeros((N, 3)), CHOSEN, 1.0)
    with pytest.raises(ValueError, match=r"expected members of shape \[N, C\], which is \[5, 2\] here, got \[6, 2\]"):
        member_accuracy(jnp.zeros((N, C)), jnp.zeros((6, C), bool))
