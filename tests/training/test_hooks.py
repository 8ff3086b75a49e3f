"""Local training: hooks, reading examples and evaluation, against closed forms."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import training
from fljax.core import trees
from fljax.protocol import Examples, Rows, Subset, Task
from fljax.training import Local
from tests.local_tools import (
    EPOCHS,
    KEY,
    LINEAR,
    START,
    STEPS,
    close,
    drawn_by_train,
    examples,
    linear_task,
    logistic_task,
    numpy_rows,
    numpy_sgd,
    same,
    start,
    subset,
    trained,
)
from tests.platforms import forms_of

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.in_turn
def test_proximal_closed_form():
    """With ``F(w) = |w - c|^2 / 2`` SGD contracts to ``(c + mu a) / (1 + mu)`` by ``1 - rate (1 + mu)`` a step."""
    task = Task(lambda key: {}, lambda params, x, key=None: x - params["w"][None, :], lambda r, y: 0.5 * (r**2).sum(-1))
    own = subset(range(5))
    anchor, mu, rate, steps = {"w": jnp.array([2.0, 0.0])}, 0.5, 0.2, 6
    how = Local(rate, 5, steps=steps)
    found = trained(own, how, task=task, adjust=training.proximal(anchor, mu)).params["w"]
    fixed = (numpy_rows(own)[0].mean(axis=0) + mu * np.asarray(anchor["w"])) / (1 + mu)
    np.testing.assert_allclose(found, fixed + (1 - rate * (1 + mu)) ** steps * (START - fixed), rtol=1e-5)
    same(
        trained(own, how, task=task, adjust=training.proximal(anchor, 0.0)).params, trained(own, how, task=task).params
    )


def test_corrected_closed_form():
    own, how, shift = subset(range(6)), STEPS, np.array([1.0, -2.0])
    found = trained(own, how, adjust=training.with_correction({"w": jnp.asarray(shift, jnp.float32)})).params["w"]
    expected = numpy_sgd(START, own, drawn_by_train(own, how), 0.1, pull=lambda w: shift)
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.in_turn
def test_a_loss_that_weighs_rows_by_position():
    own, how, task = subset([1, 4, 7, 9, 2]), EPOCHS, linear_task()
    weight = np.array([0.0, 1.0, 2.0, 0.5, 3.0] + [np.nan] * 7)

    def loss(params, x, y, position, key):
        return jnp.asarray(weight, jnp.float32)[position] * task.loss(task.logits(params, x, key), y)

    found = trained(own, how, loss=loss).params["w"]
    x, y = numpy_rows(own)
    w = START
    for rows in drawn_by_train(own, how):
        w = w - 0.1 * x[rows].T @ (weight[rows] * (x[rows] @ w - y[rows])) / len(rows)
    np.testing.assert_allclose(found, w, rtol=2e-6)


def test_default_loss_and_gradient():
    task, own, params = linear_task(), subset([1, 4, 7]), start()
    position, mask = jnp.array([2, 0, 1]), jnp.array([True, True, False])
    x, y = numpy_rows(own)
    expected = x[[2, 0]].T @ (x[[2, 0]] @ START - y[[2, 0]]) / 2
    gradient = jax.jit(functools.partial(training.gradient, task))
    found = gradient(params, own, position, mask, KEY)["w"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    nothing = gradient(params, own, position, jnp.zeros(3, bool), KEY)["w"]
    same(nothing, jnp.zeros(2))


def test_masked_mean():
    values = jnp.array([1.0, 2.0, jnp.nan])
    assert float(training.masked_mean(values, jnp.array([True, True, False]))) == 1.5
    assert float(training.masked_mean(values, jnp.zeros(3, bool))) == 0.0


def test_descend_counts_and_keys():
    batches = training.Batches(jnp.zeros((4, 1), jnp.int32), jnp.ones((4, 1), bool), None)

    def step(carry, position, mask, key):
        count, _ = carry
        return count + 1, jax.random.key_data(key)

    zero = (jnp.int32(0), jax.random.key_data(KEY))
    (count, last), taken = training.descend(step, zero, batches, KEY)
    assert int(count) == int(taken) == 4
    same(last, jax.random.key_data(jax.random.fold_in(KEY, 3)))
    (count, _), taken = training.descend(step, zero, batches._replace(steps=jnp.int32(2)), KEY)
    assert int(count) == int(taken) == 2


def test_fetch_prepares_and_stays_within_the_rows():
    task = linear_task(prepare=lambda x: 2 * x)
    own = subset([3, 5], 4, fill=11)
    x, y = training.fetch(task, own, jnp.array([1, 0, 3]))
    data = examples()
    same(x, 2 * data.x[jnp.array([5, 3, 5])])
    same(y, data.y[jnp.array([5, 3, 5])])


def test_noise_is_keyed_by_row():
    fetch = jax.jit(functools.partial(training.fetch, LINEAR))
    own = subset([3, 5, 8], noise=jnp.float32(0.5))
    clean, _ = fetch(own, jnp.arange(3))
    same(clean, examples().x[jnp.array([3, 5, 8])])
    noisy, _ = fetch(own, jnp.arange(3), KEY)
    delta = noisy - clean
    assert np.abs(delta).min() > 0
    assert len(np.unique(delta)) == 6
    # The place in the batch, the order of the client's rows and padding do not matter; the key does.
    turned, _ = fetch(own, jnp.array([2, 0, 0]), KEY)
    same(turned, np.asarray(noisy)[[2, 0, 0]])
    other = subset([8, 3], noise=jnp.float32(0.5))
    same(fetch(other, jnp.array([0, 1, 1]), KEY)[0], np.asarray(noisy)[[2, 0, 0]])
    assert not np.array_equal(fetch(own, jnp.arange(3), jax.random.key(9))[0], noisy)
    same(fetch(own._replace(noise=jnp.float32(0.0)), jnp.arange(3), KEY)[0], clean)
    same(fetch(own._replace(noise=None), jnp.arange(3), KEY)[0], clean)


@pytest.mark.in_turn
def test_noise_has_the_standard_deviation_in_prepared_units():
    data = Examples(jnp.zeros((400, 5), jnp.uint8), jnp.zeros(400, jnp.int32))
    own = subset(range(400), 400, data=data, noise=jnp.float32(0.5))
    task = linear_task(prepare=lambda x: x.astype(jnp.float32) / 255)
    x, _ = jax.jit(functools.partial(training.fetch, task))(own, jnp.arange(400), KEY)
    assert abs(float(x.std()) - 0.5) < 0.03
    assert abs(float(x.mean())) < 0.03


@pytest.mark.in_turn
def test_noise_reaches_training_alone():
    how, own = STEPS, subset(range(6))
    noisy = own._replace(noise=jnp.float32(1.0))
    assert not np.array_equal(trained(noisy, how).params["w"], trained(own, how).params["w"])
    same(trained(own._replace(noise=jnp.float32(0.0)), how).params, trained(own, how).params)
    evaluate = jax.jit(
        lambda own, key=None: training.evaluate(LINEAR, lambda x: LINEAR.logits(start(), x), own, key=key)
    )
    same(evaluate(noisy), evaluate(own))
    assert not np.array_equal(evaluate(noisy, KEY), evaluate(own))


@pytest.mark.in_turn
def test_augment_gets_a_key_of_its_own_in_every_step():
    seen = []

    def augment(key, x):
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        jax.debug.callback(lambda data: seen.append(tuple(np.asarray(data).tolist())), jax.random.key_data(key))
        return x + 1

    task, own = linear_task(augment=augment), subset(range(3))
    found = trained(own, Local(0.1, 3, steps=3), task=task).params["w"]
    jax.effects_barrier()
    assert len(set(seen)) == 3
    data = examples()
    moved = subset(range(3), data=data._replace(x=data.x + 1))
    np.testing.assert_allclose(found, trained(moved, Local(0.1, 3, steps=3)).params["w"], rtol=1e-6)
    predict = functools.partial(task.logits, start())
    same(training.evaluate(task, predict, own), training.evaluate(linear_task(), predict, own))


def test_a_key_means_training_mode():
    keys = []

    def logits(params, x, key=None):
        keys.append(key)
        return (x @ params["w"])[:, None]

    task, own = linear_task(logits=logits), subset(range(3))
    trained(own, Local(0.1, 3, steps=1), task=task)
    assert keys
    assert all(key is not None for key in keys)


@pytest.mark.in_turn
@pytest.mark.parametrize("capacity", [4, 12])
def test_evaluate_is_a_masked_mean(capacity):
    task, data = logistic_task(), examples()
    own = subset([1, 4, 7, 2], capacity, data=data._replace(x=data.x.at[11].set(jnp.nan)), fill=11)
    params = task.init(KEY)
    loss, accuracy = jax.jit(lambda own: training.evaluate(task, lambda x: task.logits(params, x), own))(own)
    index = np.array([1, 4, 7, 2])
    logits = task.logits(params, data.x[index])
    np.testing.assert_allclose(loss, task.loss(logits, data.y[index]).mean(), rtol=1e-6)
    np.testing.assert_allclose(accuracy, (np.argmax(logits, axis=1) == np.asarray(data.y)[index]).mean(), rtol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [training.AT_ONCE, training.AT_ONCE + 1, 3 * training.AT_ONCE - 1])
def test_many_rows_are_evaluated_in_parts(size):
    task, data = logistic_task(), examples()
    params, index = task.init(KEY), np.arange(size) % len(data.y)
    seen = []

    def predict(x):
        seen.append(x.shape[0])
        return task.logits(params, x)

    loss, accuracy = training.evaluate(task, predict, subset(index.tolist(), size + 5))
    assert max(seen) <= training.AT_ONCE
    logits = task.logits(params, data.x[index])
    np.testing.assert_allclose(loss, task.loss(logits, data.y[index]).mean(), rtol=1e-5)
    np.testing.assert_allclose(accuracy, (np.argmax(logits, axis=1) == np.asarray(data.y)[index]).mean(), rtol=1e-6)


@pytest.mark.in_turn
def test_evaluate_without_rows_is_nan():
    task = logistic_task()
    params = task.init(KEY)
    loss, accuracy = training.evaluate(task, lambda x: task.logits(params, x), subset([]))
    assert np.isnan(loss)
    assert np.isnan(accuracy)


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_each_of_several_models_is_judged_as_alone(platform):
    task, rows = logistic_task(), subset([1, 4, 7, 2], 6)
    models = jax.vmap(task.init)(jax.random.split(KEY, 11))
    with forms_of(platform):
        loss, accuracy = training.evaluate_each(task, models, rows)
    alone = [training.evaluate(task, functools.partial(task.logits, trees.take(models, k)), rows) for k in range(11)]
    np.testing.assert_allclose(loss, [each[0] for each in alone], rtol=1e-6)
    np.testing.assert_array_equal(accuracy, [each[1] for each in alone])


@pytest.mark.in_turn
def test_maps_over_clients():
    """A batch of ragged clients gives what each of them gives alone."""
    task, data = logistic_task(), examples()
    index = jnp.array([[0, 1, 2, 3, 4], [5, 6, 7, 0, 0], [8, 0, 0, 0, 0]], jnp.int32)
    size = jnp.array([5, 3, 1], jnp.int32)
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(3))
    params = task.init(KEY)
    how = Local(0.1, 2, epochs=2)

    def one(key, index, size):
        own = Subset(data, Rows(index, size))
        return training.train(key, params, own, task=task, local=how)

    together = jax.jit(jax.vmap(one))(keys, index, size)
    assert together.steps.tolist() == [6, 4, 2]
    for k in range(3):
        alone = jax.jit(one)(keys[k], index[k], size[k])
        close(trees.take(together.params, k), alone.params, rtol=1e-5)
