"""Cosines with sums of updates that cancel, in programs with all optimisations: these round sums in their own ways."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.aggregators import cgsv_normalised, cgsv_reputation, weighted_sum
from fljax.contributions import RunRecord
from fljax.contributions.estimators import cosine, estimate_run, fedce, rffl_reputation, shapfed

pytestmark = [pytest.mark.optimised, pytest.mark.usefixtures("x64")]


def of_others(angle, seen):
    """FedCE's shares of ``1 - cos`` after one round, at least 1e-3."""
    differs = np.where(seen, 1 - angle, 0)
    return np.maximum(differs / differs.sum(axis=1, keepdims=True), 1e-3)


def as_shares(angle, seen):
    return angle / np.where(seen, angle, 0).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("estimator", "expected", "how"),
    [
        (cosine(), lambda angle, seen: angle, ""),
        (cosine(normalised=True), lambda angle, seen: angle, "normalised"),
        (shapfed(head=lambda updates: updates[:, None]), lambda angle, seen: angle, ""),
        (rffl_reputation(), as_shares, ""),
        (fedce(client_metric=lambda models, ids: ids * 0.5), of_others, "others"),
    ],
)
def test_the_cosine_with_a_sum_that_cancels_is_0(estimator, expected, how, dtype):
    """Whole numbers times odd ones: products with weights are rounded, so a rest of a sum of 0 has a direction."""
    random = np.random.default_rng(0)
    rows = random.integers(-9, 10, (60, 5, 40)).astype(float)
    rows[:20, 1] = -rows[:20, 0]
    rows[20:40, 2:] = 0
    seen = (random.random((60, 5)) < 0.5) | (np.arange(5) == random.integers(0, 5, (60, 1)))
    updates = jnp.asarray(rows * random.uniform(0.1, 10, (60, 1, 1)), dtype)

    def one(row):
        record = RunRecord(jnp.zeros((2, 40), dtype), row[0][None], jnp.full((1, 5), 0.7, dtype), row[1][None])
        result = estimate_run(estimator, record)
        return result.details["gradient_share"] if how == "others" else result.worth

    result = np.asarray(jax.jit(functools.partial(jax.lax.map, one))((updates, jnp.asarray(seen))))
    rows = rows * seen[..., None]
    if how == "normalised":
        rows = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1)
    total = rows.sum(axis=1, keepdims=True) - (rows if how == "others" else 0)
    length = np.linalg.norm(rows, axis=-1) * np.linalg.norm(total, axis=-1)
    angle = np.where(length > 1e-9, (rows * total).sum(axis=-1) / np.maximum(length, 1e-9), 0)
    assert (seen & (length < 1e-9)).sum() > 20
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = expected(angle, seen)
    clear = seen & np.isfinite(wanted) & (np.abs(wanted) < 100)  # shares of a sum of 0 are not
    np.testing.assert_allclose(result[clear], wanted[clear], atol=1e-4)


@pytest.mark.parametrize("weights", [(1 / 3, 1 / 3, 1 / 3), (0.4, 0.4, 0.2), (0.1, 0.1, 0.8)])
def test_a_total_of_cgsv_that_cancels_has_no_direction(weights):
    """Two opposite updates and an empty one; products with weights are rounded."""
    move = np.random.default_rng(0).normal(size=50)
    updates = jnp.asarray(np.stack([move, -move, 0 * move]), jnp.float32)

    def one(updates):
        unit = cgsv_normalised(updates, length=0.5)
        a = jnp.asarray(weights)
        return cgsv_reputation(jnp.full(3, 1 / 3), unit, weighted_sum(unit, a), alpha=0.5, weights=a)

    np.testing.assert_allclose(jax.jit(one)(updates), 1 / 3, rtol=1e-6)


def test_a_total_of_cgsv_keeps_its_direction():
    """Beside a long update without weight, at any scale; NaN stays visible."""
    long, some = np.array([[1.0, 0], [-1.0, 0], [1e8, 0]]), np.array([[1.0, 0], [0.5, 1]])

    def one(updates, weights):
        updates, weights = jnp.asarray(updates, jnp.float32), jnp.asarray(weights, jnp.float32)
        total = weighted_sum(updates, weights)
        return cgsv_reputation(jnp.zeros(len(weights)), updates, total, alpha=0.5, weights=weights)

    np.testing.assert_allclose(one(long, [0.8, 0.2, 0.0]), [0.4995, 0.0010, 0.4995], atol=1e-4)
    for scale in (1e-2, 1e7):
        np.testing.assert_allclose(one(scale * some, [0.3, 0.7]), one(some, [0.3, 0.7]), rtol=1e-5)
    assert np.isnan(one([[1.0, 0], [0, np.nan]], [0.5, 0.5])).all()
