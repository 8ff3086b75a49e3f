"""What algorithms with clusters share: which rows a client judges on, and judging them no further than they go."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.algorithms.clustered import initial_models, least_loss_shares, most_accurate, row_losses, validation
from fljax.protocol import Examples, LocalData, Rows, Subset
from tests.toys.task import CLASSES, FEATURES, logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")

TASK = logistic_regression()
RNG = np.random.default_rng(0)
ROWS = 700
EXAMPLES = Examples(
    jnp.asarray(RNG.normal(size=(ROWS, FEATURES)), jnp.float32), jnp.asarray(RNG.integers(0, CLASSES, ROWS), jnp.int32)
)


def subset(start, size, capacity, noise=None):
    index = np.full(capacity, ROWS - 1)
    index[:size] = start + np.arange(size)
    return Subset(EXAMPLES, Rows(jnp.asarray(index, jnp.int32), jnp.int32(size)), noise)


def models(count):
    return initial_models(TASK, jax.random.key(3), count)


@pytest.mark.parametrize(("valid", "train"), [(40, 300), (0, 300), (300, 5), (0, 0)])
def test_clients_judge_on_validation_rows_or_else_on_training_rows(valid, train):
    noise = jnp.asarray(5.0)
    data = LocalData(subset(0, train, 320, noise), subset(350, valid, 310), subset(0, 0, 1))
    chosen = validation(data)
    assert int(chosen.rows.size) == (valid or train)
    loss, accuracy = jax.jit(lambda: training.evaluate_each(TASK, models(3), validation(data), ragged=True))()
    expected = training.evaluate_each(TASK, models(3), (data.valid if valid else data.train)._replace(noise=None))
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(accuracy, expected[1], rtol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [0, 1, 128, 129, 400])
def test_ragged_evaluation_is_evaluation(size):
    rows, model = subset(10, size, 400), TASK.init(jax.random.key(0))
    predict = lambda x: TASK.logits(model, x)  # noqa: E731
    whole = training.evaluate(TASK, predict, rows)
    ragged = jax.jit(lambda: training.evaluate(TASK, predict, rows, ragged=True))()
    np.testing.assert_allclose(ragged, whole, rtol=1e-5)
    losses = jax.jit(lambda: row_losses(TASK, models(2), rows))()
    assert losses.shape == (2, 400)
    np.testing.assert_array_equal(losses[:, size:], 0)
    if size:
        np.testing.assert_allclose(
            losses[0].sum() / size, training.evaluate_each(TASK, models(2), rows)[0][0], rtol=1e-5
        )


def test_the_first_model_is_that_of_an_algorithm_with_one():
    alike = initial_models(TASK, jax.random.key(3), 3, alike=True)
    first = TASK.init(jax.random.key(3))
    for one, other, same in zip(first, models(3), alike, strict=True):
        np.testing.assert_array_equal(other[0], one)
        np.testing.assert_array_equal(same[0], same[2])
    assert not np.array_equal(models(3).weight[1], models(3).weight[2])


INFINITE, NOTHING = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("losses", "size", "lower", "shared"),
    [
        ([[1, 2, 3, 0], [2, 1, 4, 9]], 4, [3 / 4, 1 / 4], [3 / 4, 1 / 4]),
        ([[1, 2, 3, 0], [2, 1, 4, 9]], 2, [1 / 2, 1 / 2], [1 / 2, 1 / 2]),  # the others are padding
        ([[1, 0, 2], [1, 0, 1], [2, 0, 1]], 3, [2 / 3, 1 / 3, 0], [5 / 18, 8 / 18, 5 / 18]),
        ([[NOTHING, INFINITE], [5, NOTHING]], 2, [1 / 2, 1 / 2], [1 / 4, 3 / 4]),
        ([[1, 2], [2, 1]], 0, [0, 0], [0, 0]),
    ],
)
def test_shares_of_the_least_loss(losses, size, lower, shared):
    losses = jnp.asarray(losses, jnp.float32)
    np.testing.assert_allclose(least_loss_shares(losses, jnp.int32(size)), lower, rtol=1e-6)
    np.testing.assert_allclose(least_loss_shares(losses, jnp.int32(size), "shared"), shared, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "accuracy", "expected"),
    [
        ([1, 0, 2], [0.5, 0.25, 0.75], [0, 0, 1]),
        ([1, 0, 2], [0.75, 0.25, 0.75], [1, 0, 0]),
        ([1, 1, 0], [0.75, 0.75, 0.5], [1 / 2, 1 / 2, 0]),
        ([NOTHING, INFINITE, 0], [0.75, 0.75, 0.5], [1 / 2, 1 / 2, 0]),
        ([NOTHING, 3, 0], [0, 0, 0], [0, 0, 1]),
    ],
)
def test_the_most_accurate_model(loss, accuracy, expected):
    found = most_accurate(jnp.asarray(loss, jnp.float32), jnp.asarray(accuracy, jnp.float32))
    np.testing.assert_allclose(found, expected)
