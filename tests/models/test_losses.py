"""Losses, scores, and tasks that do not classify."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.models import correct, cross_entropy, squared_error, task_from_module
from tests.drawn import at_most

X = np.zeros((3, 5), np.float32)
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)


def test_a_text_counts_the_mean_over_its_places():
    y = jnp.array([[0, 1, 2], [3, 3, 0]])
    chances = jax.nn.log_softmax(LOGITS)
    expected = -np.take_along_axis(np.asarray(chances), np.asarray(y)[..., None], axis=2)[..., 0].mean(axis=1)
    np.testing.assert_allclose(cross_entropy(LOGITS, y), expected, rtol=1e-5)
    hits = (np.argmax(LOGITS, axis=2) == np.asarray(y)).mean(axis=1)
    np.testing.assert_allclose(correct(LOGITS, y), hits, rtol=1e-6)
    np.testing.assert_array_equal(correct(LOGITS[:, 0], jnp.argmax(LOGITS[:, 0], axis=1)), [1.0, 1.0])


@pytest.mark.parametrize("padding", [0, -1])
def test_places_with_the_label_of_padding_do_not_count(padding):
    y = jnp.array([[1, padding, 2], [3, 3, padding], [padding] * 3])
    out = jnp.concatenate([LOGITS, LOGITS[:1]])
    chances, real = np.asarray(jax.nn.log_softmax(out)), np.asarray(y) != padding
    picked = np.take_along_axis(chances, np.where(real, y, 0)[..., None], axis=2)[..., 0]
    hits = np.asarray(out).argmax(axis=2) == np.asarray(y)
    for judge, each in ((cross_entropy, -picked), (correct, hits)):
        expected = [row[kept].mean() for row, kept in zip(each[:2], real[:2], strict=True)]
        np.testing.assert_allclose(judge(out, y, padding=padding), [*expected, 0.0], rtol=1e-5)
    gradient = jax.grad(lambda out: cross_entropy(out, y, padding=padding).sum())(out)
    np.testing.assert_array_equal(np.asarray(gradient)[~real], 0.0)
    assert np.all(np.abs(np.asarray(gradient)[real]).sum(axis=-1) > 0)


def test_squared_error():
    prediction = jnp.array([[1.0], [2.0]])
    np.testing.assert_allclose(squared_error(prediction, jnp.array([3, 2])), [4.0, 0.0])
    np.testing.assert_allclose(squared_error(prediction, jnp.array([[3.0], [2.0]])), [4.0, 0.0])
    np.testing.assert_allclose(squared_error(jnp.array([[1.0, 3.0]]), jnp.array([[0.0, 0.0]])), [5.0])
    with pytest.raises(ValueError, match=r"of the shape of the model's predictions, \[2, 1\], got \[1\]"):
        squared_error(prediction, jnp.array([3.0]))


@pytest.mark.unchecked
@pytest.mark.parametrize("judge", [cross_entropy, correct])
@pytest.mark.parametrize("y", [jnp.zeros((2, 1), int), jnp.zeros(2), jnp.zeros(3, int)])
def test_labels_that_are_no_classes(judge, y):
    with pytest.raises(ValueError, match=r"expected a whole-number label for each vector of logits"):
        judge(LOGITS[:, 0], y)


def test_a_task_with_a_loss_of_its_own_has_no_accuracy_and_no_classes():
    task = task_from_module(nn.Dense(2), X, loss=squared_error)
    assert task.loss is squared_error
    assert task.score is None
    assert task.classes is None
    plain = task_from_module(nn.Dense(2), X)
    assert (plain.loss, plain.score, plain.classes) == (cross_entropy, correct, 2)
    own = task_from_module(nn.Dense(2), X, loss=cross_entropy, score=correct, classes=2)
    assert (own.loss, own.score, own.classes) == (cross_entropy, correct, 2)
    assert task_from_module(nn.Dense(2), X, loss=squared_error) is task


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": lambda out, y: jnp.mean(out)}, r"expected the loss to be one number per sample"),
        ({"loss": lambda out, y: (out - y[:, None]) ** 2}, r"expected the loss to be one number per sample"),
        (
            {"loss": squared_error, "score": lambda out, y: jnp.ones(())},
            r"expected the score to be one number per sample",
        ),
        ({}, r"expected a whole-number label for each vector of logits"),
        ({"loss": squared_error, "classes": 3}, r"expected logits of shape \[b, 3\], got \[1, 1\]"),
    ],
)
def test_wrong_losses_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        task_from_module(nn.Dense(1), X, example_y=np.zeros(3, np.float32), **arguments)


def test_outputs_must_be_one_for_each_sample():
    class Mean(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.mean(nn.Dense(1)(x), axis=0)

    class Texts(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x[:, :, None])

    with pytest.raises(ValueError, match=r"expected the module to return an array \[b, ...\], got \[1\] for b = 2"):
        task_from_module(Mean(), X, loss=squared_error)
    with pytest.raises(ValueError, match=r"got \[1, 5, 4\] for b = 1; other shapes need a loss of their own"):
        task_from_module(Texts(), X)
    assert task_from_module(Texts(), X, loss=cross_entropy).classes is None


@pytest.mark.unchecked
@at_most(30)
@given(
    width=st.integers(1, 3),
    feature=st.sampled_from(["float32", "float16", "uint8", "int32"]),
    label=st.sampled_from(["float32", "int32", "bool"]),
    shape=st.sampled_from([(), (1,), (2,), (2, 3)]),
    loss=st.sampled_from([None, squared_error, cross_entropy]),
)
def test_a_task_or_a_sentence(width, feature, label, shape, loss):
    """Whatever the arrays are: what fits gives one loss per sample, what does not fit is refused at once."""
    x, y = np.zeros((2, 5), feature), np.zeros((2, *shape), label)
    try:
        with jax.numpy_dtype_promotion("standard"):
            task = task_from_module(nn.Dense(width), x, loss=loss, example_y=y)
    except ValueError as error:
        told = str(error)
    else:
        told = None
    if told is not None:
        assert told.startswith("expected ")
        return
    params = jax.eval_shape(task.init, jax.random.key(0))
    prepare = task.prepare
    assert prepare is not None

    def judged(params):
        return task.loss(task.logits(params, prepare(jnp.asarray(x))), jnp.asarray(y))

    with jax.numpy_dtype_promotion("standard"):
        assert jax.eval_shape(judged, params).shape == (2,)


@pytest.mark.thorough
def test_a_label_that_is_no_class_is_never_another_class():
    """Counted from the end, -1 would be the last class."""
    logits = jnp.zeros((3, 2, 4))
    found = cross_entropy(logits, jnp.asarray([[0, 1], [0, -1], [4, 1]]))
    np.testing.assert_array_equal(np.isnan(found), [False, True, True])
