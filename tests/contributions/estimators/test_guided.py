"""GTG-Shapley: all orders, the rule of truncation and convergence one order after another, and what it counts."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import RunRecord, agreement
from fljax.contributions.estimators import estimate_run, gtg_shapley, multi_round
from tests.contributions.estimators import runs
from tests.contributions.estimators.runs import found

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quick_compilation", "x64")]

ORDERS = np.array(list(itertools.permutations(range(3))))


def test_all_orders_without_truncation_are_the_shapley_values_of_rounds():
    whole = gtg_shapley(utility=runs.utility, round_tolerance=0.0, order_tolerance=0.0, orders=ORDERS)
    result = found(whole, runs.record(runs.THREE))
    np.testing.assert_allclose(result.worth, (0.463542, 0.205729, -0.450521), atol=6e-7)
    assert (result.cost.evaluations, result.details["orders"]) == (16, 12)
    assert agreement(result.worth, runs.truth(runs.THREE)).kendall == pytest.approx(1)


def additive(worth):
    """One round whose game is additive: every client moves a coordinate of its own, weights undo the mean."""
    clients = len(worth)
    record = RunRecord(jnp.zeros((2, clients)), jnp.eye(clients)[None], jnp.ones((1, clients)))
    return record, lambda w: jnp.sum(jnp.where(w > 1e-9, jnp.asarray(worth), 0))


def test_an_additive_game_is_exact_after_the_least_number_of_orders():
    record, utility = additive([0.3, -0.1, 0.2, 0.4])
    for least, orders in ((1, 4), (30, 30)):
        rule = gtg_shapley(utility=utility, order_tolerance=0.0, least_orders=least, most_orders=100)
        result = found(rule, record, key=jax.random.key(0))
        np.testing.assert_allclose(result.worth, [0.3, -0.1, 0.2, 0.4], atol=1e-12)
        assert result.details["orders"] == orders


def test_who_leads_one_order_more_is_drawn():
    """All that a model is worth goes to who leads; with four orders of three clients, one leads twice."""
    record, _ = additive([1.0, 1.0, 1.0])
    rule = gtg_shapley(utility=lambda w: jnp.any(w > 1e-9).astype(float), order_tolerance=0.0, most_orders=4)
    result = jax.vmap(lambda key: estimate_run(rule, record, key=key).worth)(jax.random.split(jax.random.key(0), 30))
    np.testing.assert_allclose(np.sort(result, axis=1), [[0.25, 0.25, 0.5]] * 30)
    assert set(np.argmax(result, axis=1).tolist()) == {0, 1, 2}


def test_a_round_without_gain_is_skipped():
    record, utility = additive([5e-4, 0.0, 0.0])
    result = found(gtg_shapley(utility=utility), record, key=jax.random.key(0))
    assert result.worth.tolist() == [0, 0, 0]
    assert (result.cost.evaluations, result.details["orders"]) == (2, 0)


def sequential(value, rows, order_tolerance, orders):
    """The rule in NumPy: one order after another, each value once."""
    whole, empty = value(rows), value([])
    known, total = {frozenset(), frozenset(rows)}, np.zeros(5)
    for order in orders:
        before = empty
        for count, client in enumerate(order):
            if abs(whole - before) < order_tolerance:
                break
            prefix = order[: count + 1]
            known.add(frozenset(prefix))
            now = value(prefix)
            total[client] += now - before
            before = now
    return total / len(orders), len(known)


@pytest.mark.parametrize("order_tolerance", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("seed", range(2))
def test_truncation_is_that_of_the_sequential_rule(seed, order_tolerance):
    record = runs.drawn(seed)
    orders = np.array(list(itertools.permutations(range(4))))[::5]
    rule = gtg_shapley(utility=runs.tree_utility, round_tolerance=0.0, order_tolerance=order_tolerance, orders=orders)
    result = found(rule, record, clients=5)
    count = 0
    for t in range(3):
        ids, here = np.asarray(record.ids)[t], np.asarray(record.present)[t]
        own = [[int(ids[s]) for s in order if here[s]] for order in orders]
        value = functools.partial(runs.value_in_round, record, t)
        expected, evaluations = sequential(value, [int(i) for i in ids[here]], order_tolerance, own)
        np.testing.assert_allclose(result.by_round[t], expected, atol=1e-10)
        count += max(evaluations, 2)
    assert result.cost.evaluations == count


def test_drawn_orders_converge():
    record = runs.record(runs.FOUR)
    exact: Any = {"round_tolerance": 0.0, "order_tolerance": 0.0}
    rule = gtg_shapley(utility=runs.utility, most_orders=400, convergence=0.01, **exact)
    truth = found(multi_round(utility=runs.utility), record)
    result = found(rule, record, key=jax.random.key(1))
    np.testing.assert_allclose(result.by_round.sum(axis=1), truth.by_round.sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(result.worth, truth.worth, atol=0.1)
    assert 5 * 30 <= result.details["orders"] < 5 * 400
    assert result.cost.evaluations <= truth.cost.evaluations
    few = gtg_shapley(utility=runs.utility, round_tolerance=0.0, most_orders=7)
    assert found(few, record, key=jax.random.key(1)).details["orders"] == 35


def test_values_may_be_rescaled():
    record, utility = additive([0.3, -0.1, 0.2])
    result = found(gtg_shapley(utility=utility, order_tolerance=0.0, rescale=True), record, key=jax.random.key(0))
    np.testing.assert_allclose(result.worth, np.array([0.3, -0.1, 0.2]) * 0.4 / 0.5, atol=1e-12)


def test_many_rows_have_no_table():
    record, utility = additive(np.arange(20.0))
    rule = gtg_shapley(utility=utility, order_tolerance=0.0, most_orders=2)
    result = found(rule, record, key=jax.random.key(0))
    np.testing.assert_allclose(result.worth, np.arange(20.0), atol=1e-9)
    assert result.cost.evaluations == 2 + 2 * 19


def test_any_number_of_rows_may_be_drawn():
    record, utility = additive(np.arange(2000.0))
    shapes = jax.eval_shape(lambda: estimate_run(gtg_shapley(utility=utility), record, key=jax.random.key(0)))
    assert shapes.worth.shape == (2000,)
