"""Reputations over rounds: printed numbers, and the definitions in NumPy."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import RunRecord
from fljax.contributions.estimators import cffl_reputation, fedce, rffl_reputation
from fljax.contributions.estimators.directions import _normal, cffl_update, rffl_update
from tests.contributions.estimators.runs import found

pytestmark = pytest.mark.usefixtures("quick_compilation", "x64")
ALL = np.ones(3, bool)


def test_printed_numbers_of_cffl():
    accuracy = jnp.asarray([0.8, 0.6, 0.2])
    rule = functools.partial(cffl_update, here=jnp.asarray(ALL), accuracy=accuracy, alpha=5, threshold=1 / 3)
    reputation, members = rule(jnp.zeros(3), jnp.asarray(ALL))
    np.testing.assert_allclose(reputation, (0.505784, 0.372572, 0.121643), atol=6e-7)
    assert members.all()
    before = cffl_update(reputation, members, jnp.asarray(ALL), accuracy, alpha=5, threshold=0.0)[0]
    np.testing.assert_allclose(before, (0.619644, 0.315286, 0.065070), atol=6e-7)
    reputation, members = rule(reputation, members)
    np.testing.assert_allclose(reputation, (0.619644, 0.315286, 0), atol=6e-7)
    assert members.tolist() == [True, True, False]
    reputation, members = rule(reputation, members)
    assert reputation[2] == 0  # for ever


@pytest.mark.in_turn
def test_cffl_judges_the_model_with_one_update():
    """Accuracies .8, .6, .2 come from a model of one number; then the same with absent clients."""
    updates = jnp.asarray([[0.8, 0.6, 0.2], [0.8, 0.6, 0.2]])
    record = RunRecord(jnp.zeros(3), updates, jnp.ones((2, 3)))
    rule = cffl_reputation(utility=lambda w: w)
    result = found(rule, record)
    np.testing.assert_allclose(result.by_round[0], (0.505784, 0.372572, 0.121643), atol=6e-7)
    np.testing.assert_allclose(result.worth, (0.619644, 0.315286, 0), atol=6e-7)
    assert (result.details["members"].tolist(), result.cost.evaluations) == ([True, True, False], 6)
    present = jnp.asarray([[True, True, True], [True, False, False]])
    part = found(rule, record._replace(present=present))
    first = np.sinh(5 * 0.2 * np.array([0.8, 0.6, 0.2]) / 1.6)
    first /= first.sum()
    second = first.copy()
    second[0] = np.sinh(5 * (0.8 * first[0] + 0.2))
    np.testing.assert_allclose(part.worth, second / second.sum(), rtol=1e-10)
    assert part.cost.evaluations == 4


def test_printed_numbers_of_rffl():
    angle = jnp.asarray([0.9, 0.8, -0.1])
    reputation, _ = rffl_update(jnp.zeros(3), jnp.asarray(ALL), jnp.asarray(ALL), angle, alpha=0.95, threshold=-jnp.inf)
    np.testing.assert_allclose(reputation, (0.5625, 0.5, -0.0625), rtol=1e-12)
    np.testing.assert_allclose(reputation / reputation.max(), (1, 0.888889, -0.111111), atol=6e-7)


@pytest.mark.in_turn
def test_rffl_removes_clients_after_the_warm_up():
    random = np.random.default_rng(0)
    updates = random.normal(size=(6, 4, 5)) + np.array([1.0, 1.0, 1.0, -0.5])[None, :, None]
    present = random.random((6, 4)) < 0.8
    present[4] = True
    weights = np.array([1.0, 2.0, 1.0, 3.0])
    record = RunRecord(
        jnp.zeros((7, 5)), jnp.asarray(updates), jnp.asarray(np.tile(weights, (6, 1))), jnp.asarray(present)
    )
    result = found(rffl_reputation(alpha=0.8, warm_up=4), record)
    r, members = np.zeros(4), np.ones(4, bool)
    for t in range(6):
        here = present[t] & members
        total = (weights * here) @ updates[t]
        for i in np.flatnonzero(here):
            angle = updates[t, i] @ total / np.linalg.norm(updates[t, i]) / np.linalg.norm(total)
            r[i] = 0.8 * r[i] + 0.2 * angle
        r = r / r.sum()
        if t >= 4:
            falls = here & (r < 1 / 3 / members.sum())
            members, r = members & ~falls, np.where(falls, 0, r)
        np.testing.assert_allclose(result.by_round[t], np.where(present[t], r, 0), atol=1e-10)
    np.testing.assert_allclose(result.worth, r, atol=1e-10)
    assert result.details["members"].tolist() == members.tolist()
    assert not members.all()
    np.testing.assert_allclose(result.details["quota"], r / r.max(), atol=1e-10)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("combined", "expected"),
    [("times", (0.184699, 0.184699, 0.630602)), ("plus", (0.259016, 0.259016, 0.481968))],
)
def test_printed_numbers_of_fedce(combined, expected):
    updates = jnp.asarray([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    record = RunRecord(jnp.zeros((2, 2)), updates, jnp.ones((1, 3)))
    rule = fedce(client_metric=lambda models, ids: jnp.zeros(3), combined=combined)
    result = found(rule, record)
    np.testing.assert_allclose(result.worth, expected, atol=6e-7)
    np.testing.assert_allclose(result.details["gradient_share"], (0.184699, 0.184699, 0.630602), atol=6e-7)
    np.testing.assert_allclose(result.details["error_share"], 1 / 3)
    assert result.cost.evaluations == 0  # the metric is 0 in the first round


def test_shares_of_fedce_need_not_add_up_to_one():
    """They are at least 1e-3 after the last division."""
    share = _normal(jnp.asarray([5e-7, 5e-7, 1.0, 9.0]), jnp.asarray([True, True, True, False]))
    np.testing.assert_allclose(share, (1e-3, 1e-3, 1 / (1 + 1e-6), 0), rtol=1e-9)
    assert share.sum() > 1 + 1e-3


@pytest.mark.in_turn
def test_fedce_over_rounds_with_absent_clients():
    random = np.random.default_rng(1)
    updates, models = random.normal(size=(4, 3, 2)), random.normal(size=(5, 2))
    present = np.array([[True, True, True], [True, False, True], [True, True, False], [True, True, True]])
    goals = random.normal(size=(3, 2))

    def metric(model, id):
        return 1 / (1 + np.sum((model - goals[id]) ** 2))

    def client_metric(models, ids):
        return 1 / (1 + jnp.sum((models - jnp.asarray(goals)[ids]) ** 2, axis=1))

    record = RunRecord(jnp.asarray(models), jnp.asarray(updates), jnp.ones((4, 3)), jnp.asarray(present))
    result = found(fedce(client_metric=client_metric), record)
    c, last, angles, metrics = np.full(3, 1 / 3), {}, [[] for _ in range(3)], [[] for _ in range(3)]
    normal = lambda values: np.maximum(values / values.sum(), 1e-3)  # noqa: E731
    for t in range(4):
        rows = np.flatnonzero(present[t])
        for i in rows:
            others = sum(c[j] * updates[t, j] for j in rows if j != i)
            angles[i].append(updates[t, i] @ others / np.linalg.norm(updates[t, i]) / np.linalg.norm(others))
            metrics[i].append(metric((models[t] - c[i] * last[i]) / (1 - c[i]), i) if i in last else 0.0)
        for i in rows:
            last[i] = models[t] + updates[t, i]
        g = normal(np.array([1 - np.mean(each) for each in angles]))
        e = normal(np.array([1 - np.mean(each) for each in metrics]))
        c = normal(g * e)
        np.testing.assert_allclose(result.by_round[t], np.where(present[t], c, 0), atol=1e-10)
    np.testing.assert_allclose(result.worth, c, atol=1e-10)
    np.testing.assert_allclose(result.details["error_share"], e, atol=1e-10)
    assert result.cost.evaluations == present[1:].sum()
