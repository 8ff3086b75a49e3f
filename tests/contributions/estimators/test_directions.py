"""Estimators from gradients and directions: printed numbers, and the definitions in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.contributions import RunRecord, agreement
from fljax.contributions.estimators import cosine, digfl, estimate_run, first_order, shapfed
from tests.contributions.estimators import runs
from tests.contributions.estimators.runs import found

pytestmark = pytest.mark.usefixtures("quick_compilation", "x64")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("estimator", "expected", "tau"),
    [
        (digfl(), (0.282407, 0.129630, -0.175926), -0.333333),
        (first_order(), (0.175926, 0.043981, -0.219907), -0.666667),
    ],
)
def test_printed_numbers(estimator, expected, tau):
    result = found(estimator, runs.record(runs.THREE))
    np.testing.assert_allclose(result.worth, expected, atol=6e-7)
    assert result.cost.gradients == 2
    assert agreement(result.worth, runs.truth(runs.THREE)).kendall == pytest.approx(1)
    other = found(estimator, runs.record(runs.FOUR)).worth
    np.testing.assert_allclose(agreement(other, runs.truth(runs.FOUR)).kendall, tau, atol=6e-7)


def flat(record):
    """``[T, S, d]``, absent rows 0, and gradients ``[T + 1, d]``."""
    updates = np.concatenate([np.asarray(record.updates["w"]), np.asarray(record.updates["b"])[..., None]], axis=-1)
    gradients = [np.asarray(record.gradients[name]) for name in "wb"]
    return np.nan_to_num(updates), np.concatenate([gradients[0], gradients[1][:, None]], axis=-1)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_the_definitions_with_absent_rows_and_a_tree(seed):
    record = runs.drawn(seed)
    updates, gradients = flat(record)
    expected = np.zeros((4, 3, 5))
    for t in range(3):
        ids, here = np.asarray(record.ids)[t], np.asarray(record.present)[t]
        rows = np.flatnonzero(here)
        if not len(rows):
            continue
        a = np.asarray(record.weights)[t] * here
        a = a / a.sum()
        total = a @ updates[t]
        for s in rows:
            step = updates[t, s]
            slope = -gradients[t] @ step / len(rows)
            expected[0, t, ids[s]] = slope
            expected[1, t, ids[s]] = max(slope, 0)
            expected[2, t, ids[s]] = -a[s] * gradients[t + 1] @ (step - total)
            expected[3, t, ids[s]] = step @ total / np.linalg.norm(step) / np.linalg.norm(total)
        expected[1, t] /= expected[1, t].sum() + 1e-5
    for estimator, numbers in zip((digfl(), digfl(clipped=True), first_order(), cosine()), expected, strict=True):
        result = found(estimator, record, clients=5)
        np.testing.assert_allclose(result.by_round, numbers, atol=1e-10)
        np.testing.assert_allclose(np.nan_to_num(result.worth), numbers.sum(axis=0), atol=1e-10)
    np.testing.assert_allclose(found(first_order(), record, clients=5).by_round.sum(axis=1), 0, atol=1e-10)


def test_equal_directions_and_zero_updates():
    same = RunRecord(jnp.zeros((4, 2)), jnp.ones((3, 3, 2)), jnp.ones((3, 3)))
    np.testing.assert_allclose(found(cosine(), same).worth, [3, 3, 3])
    zero = same._replace(updates=same.updates * jnp.asarray([1.0, 0.0, 2.0])[None, :, None])
    np.testing.assert_allclose(found(cosine(), zero).worth, [3, 0, 3])
    nothing = same._replace(updates=jnp.zeros((3, 3, 2)))
    assert found(cosine(), nothing).worth.tolist() == [0, 0, 0]


def test_absent_in_all_rounds_is_unknown():
    present = np.array([[True, False, True], [False, False, True]])
    result = found(cosine(), runs.record(runs.THREE, present))
    assert np.isnan(result.worth).tolist() == [False, True, False]
    nobody = found(digfl(), runs.record(runs.THREE, np.zeros((2, 3), bool)))
    assert np.isnan(nobody.worth).all()
    assert not nobody.by_round.any()


@pytest.mark.in_turn
def test_printed_numbers_of_heads():
    heads = jnp.eye(2)[None, :, None]  # two clients, one class
    record = RunRecord(jnp.zeros((2, 1, 2)), heads, jnp.asarray([[0.8, 0.2]]))
    result = found(shapfed(head=lambda updates: updates), record)
    np.testing.assert_allclose(result.worth, (0.970143, 0.242536), atol=6e-7)
    np.testing.assert_allclose(result.details["weights"], np.array([0.970143, 0.242536]) / 1.212679, atol=1e-6)


@pytest.mark.thorough
def test_heads_are_smoothed_over_the_rounds_of_a_client():
    random = np.random.default_rng(0)
    updates = random.normal(size=(3, 3, 4, 2))
    present = np.array([[True, True, False], [True, False, True], [True, True, True]])
    record = RunRecord(jnp.zeros((4, 4, 2)), jnp.asarray(updates), jnp.ones((3, 3)), jnp.asarray(present))
    result = found(shapfed(head=lambda updates: updates, momentum=0.7), record)
    gamma = np.full(3, np.nan)
    for t in range(3):
        total = updates[t][present[t]].sum(axis=0)
        for i in np.flatnonzero(present[t]):
            norms = np.linalg.norm(updates[t, i], axis=1) * np.linalg.norm(total, axis=1)
            now = ((updates[t, i] * total).sum(axis=1) / norms).mean()
            np.testing.assert_allclose(result.by_round[t, i], now, rtol=1e-10)
            gamma[i] = now if np.isnan(gamma[i]) else 0.7 * gamma[i] + 0.3 * now
    np.testing.assert_allclose(result.worth, gamma, rtol=1e-10)
    with pytest.raises(ValueError, match=r"expected head to give \[clients, classes, parameters\], got shape \(3,\)"):
        estimate_run(shapfed(head=lambda updates: updates[:, 0, 0]), record)
