"""Tasks from one's own modules: linen and nnx agree with NumPy, dropout, refused state, messages, losses, scores."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from fljax.models import convolution, correct, cross_entropy, mlp, squared_error, task_from_module
from tests.drawn import at_most

pytestmark = pytest.mark.usefixtures("strict")

X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dropout(0.5)(nn.relu(nn.Dense(7)(x)), deterministic=not train)
        x = nn.relu(nn.Dense(6)(x))
        return nn.Dense(3)(x)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(5, 7, rngs=rngs), nnx.Linear(7, 6, rngs=rngs)])
        self.out = nnx.Linear(6, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def features(self, x):
        return nnx.relu(self.layers[1](self.dropout(nnx.relu(self.layers[0](x)))))

    def __call__(self, x):
        return self.out(self.features(x))


def by_hand(layers, x):
    for w, b in layers[:-1]:
        x = np.maximum(x @ w + b, 0)
    return x @ layers[-1][0] + layers[-1][1]


def pairs(*layers):
    return [(np.asarray(layer["kernel"], np.float64), np.asarray(layer["bias"])) for layer in layers]


@pytest.mark.thorough
def test_three_kinds_agree_with_numpy():
    tasks = [task_from_module(Linen(), X), task_from_module(Nnx, X), mlp((5,), 3, hidden=(7, 6))]
    params = [jax.jit(task.init)(jax.random.key(0)) for task in tasks]
    a, b, c = params
    layers = [
        pairs(a["Dense_0"], a["Dense_1"], a["Dense_2"]),
        pairs(b["layers"][0], b["layers"][1], b["out"]),
        pairs(c["dense_0"], c["dense_1"], c["head"]),
    ]
    for task, p, stack in zip(tasks, params, layers, strict=True):
        np.testing.assert_allclose(jax.jit(task.logits)(p, X), by_hand(stack, X), rtol=1e-4, atol=1e-5)
    # The linen parameters, carried over to nnx, give the same logits.
    moved = {"layers": {0: a["Dense_0"], 1: a["Dense_1"]}, "out": a["Dense_2"]}
    np.testing.assert_allclose(tasks[1].logits(moved, X), tasks[0].logits(a, X), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("module", [Linen(), Nnx, lambda rngs: Nnx(rngs)])
def test_modes(module):
    task = task_from_module(module, X, classes=3)
    params = jax.jit(task.init)(jax.random.key(0))
    logits = jax.jit(task.logits)
    one, two = jax.random.split(jax.random.key(1))
    np.testing.assert_array_equal(logits(params, X), logits(params, X))
    np.testing.assert_array_equal(logits(params, X, one), logits(params, X, one))
    assert not np.allclose(logits(params, X, one), logits(params, X))
    assert not np.allclose(logits(params, X, one), logits(params, X, two))


@pytest.mark.thorough
class ByName(nnx.Module):
    def __init__(self, din: int = 5, dout: int = 3, *, rngs: nnx.Rngs):
        self.out = nnx.Linear(din, dout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(x)


class Forwarding(ByName):
    def __init__(self, **named: Any):
        super().__init__(**named)


@pytest.mark.parametrize(
    "make",
    [
        ByName,
        Forwarding,
        Nnx,
        functools.partial(ByName, 5, 3),
        functools.partial(ByName, dout=3),
        lambda rngs: ByName(rngs=rngs),
        lambda streams: ByName(5, 3, rngs=streams),
        lambda *, rngs: ByName(rngs=rngs),
    ],
)
def test_whatever_makes_a_module_of_nnx_gets_its_streams(make: Any):
    task = task_from_module(make, np.zeros((1, 5), "float32"))
    assert task.logits(task.init(jax.random.key(0)), jnp.ones((2, 5))).shape == (2, 3)


def test_nnx_under_transforms():
    task = task_from_module(Nnx, X)
    keys = jax.random.split(jax.random.key(0), 3)

    def client(key):
        def step(p, k):
            g = jax.grad(lambda p: jnp.mean(task.loss(task.logits(p, X, k), jnp.array([0, 1, 2, 0]))))(p)
            return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), None

        return jax.lax.scan(step, task.init(key), jax.random.split(key, 2))[0]

    together, alone = jax.jit(jax.vmap(client))(keys), jax.jit(client)(keys[1])
    assert jax.tree.structure(together) == jax.tree.structure(alone)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-4, atol=1e-6)


@pytest.mark.in_turn
def test_features_and_head():
    assert task_from_module(Linen(), X).features is None
    assert task_from_module(nn.Dense(3), X).features is None  # nn.Dense.features is a width
    task: Any = task_from_module(Nnx, X, head=lambda path: path.startswith("out/"))
    params = jax.jit(task.init)(jax.random.key(0))
    (w, b) = pairs(params["out"])[0]
    np.testing.assert_allclose(
        task.features(params, jnp.asarray(X)) @ w + b[None], task.logits(params, X), rtol=1e-4, atol=1e-5
    )
    assert task.roles(params)["out"] == {"kernel": "head", "bias": "head"}
    assert task.roles(params)["layers"][0] == {"kernel": "trained", "bias": "trained"}


def test_equal_modules_give_the_same_task():
    assert task_from_module(Linen(), X) is task_from_module(Linen(), X[:1])
    assert task_from_module(Nnx, X) is task_from_module(Nnx, X)


@pytest.mark.in_turn
def test_default_prepare():
    class Tokens(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.Embed(9, 4)(x).mean(axis=1))

    task: Any = task_from_module(Tokens(), jnp.zeros((1, 6), jnp.int32))
    assert task.prepare(jnp.ones((2, 6), jnp.int32)).dtype == jnp.int32
    np.testing.assert_array_equal(task.prepare(jnp.array([[255, 0]], jnp.uint8)), [[1.0, 0.0]])
    assert jax.eval_shape(task.init, jax.random.key(0))["Embed_0"]["embedding"].shape == (9, 4)


def test_nnx_convolution_layer():
    task = task_from_module(
        lambda rngs: nnx.Sequential(
            nnx.Conv(1, 2, (3, 3), conv_general_dilated=convolution, rngs=rngs),
            lambda x: x.reshape(x.shape[0], -1),
            nnx.Linear(32, 3, rngs=rngs),
        ),
        jnp.zeros((1, 4, 4, 1)),
    )
    assert jax.eval_shape(task.init, jax.random.key(0))


@pytest.mark.in_turn
def test_cross_entropy():
    logits = jnp.log(jnp.array([[0.2, 0.8], [0.5, 0.5]]))
    np.testing.assert_allclose(cross_entropy(logits, jnp.array([1, 0])), -np.log([0.8, 0.5]), rtol=1e-6)


@pytest.mark.in_turn
def test_group_norm_is_accepted():
    class Grouped(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic: bool = True):
            x = nn.Dropout(0.5)(nn.GroupNorm(2)(nn.Dense(4)(x)), deterministic=deterministic)
            return nn.Dense(2)(x)

    task = task_from_module(Grouped(), X)
    params = jax.jit(task.init)(jax.random.key(0))
    assert task.logits(params, X, jax.random.key(0)).shape == (4, 2)


def test_examples_in_double_precision_are_stored_in_single():
    """The newest JAX warns where a dtype is asked for that it does not hold now."""
    single, double = (task_from_module(Linen(), np.zeros((1, 5), kind), classes=3) for kind in ("float32", "float64"))
    assert double is single


THREE = np.zeros((3, 5), np.float32)
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)


@pytest.mark.in_turn
def test_a_text_counts_the_mean_over_its_places():
    y = jnp.array([[0, 1, 2], [3, 3, 0]])
    chances = jax.nn.log_softmax(LOGITS)
    expected = -np.take_along_axis(np.asarray(chances), np.asarray(y)[..., None], axis=2)[..., 0].mean(axis=1)
    np.testing.assert_allclose(cross_entropy(LOGITS, y), expected, rtol=1e-5)
    hits = (np.argmax(LOGITS, axis=2) == np.asarray(y)).mean(axis=1)
    np.testing.assert_allclose(correct(LOGITS, y), hits, rtol=1e-6)
    np.testing.assert_array_equal(correct(LOGITS[:, 0], jnp.argmax(LOGITS[:, 0], axis=1)), [1.0, 1.0])


@pytest.mark.in_turn
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


def test_a_task_with_a_loss_of_its_own_has_no_accuracy_and_no_classes():
    task = task_from_module(nn.Dense(2), THREE, loss=squared_error)
    assert task.loss is squared_error
    assert task.score is None
    assert task.classes is None
    plain = task_from_module(nn.Dense(2), THREE)
    assert (plain.loss, plain.score, plain.classes) == (cross_entropy, correct, 2)
    own = task_from_module(nn.Dense(2), THREE, loss=cross_entropy, score=correct, classes=2)
    assert (own.loss, own.score, own.classes) == (cross_entropy, correct, 2)
    assert task_from_module(nn.Dense(2), THREE, loss=squared_error) is task


def test_other_shapes_may_have_a_loss_of_their_own():
    class Texts(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x[:, :, None])

    assert task_from_module(Texts(), THREE, loss=cross_entropy).classes is None


@pytest.mark.in_turn
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
    prepare: Any = task.prepare

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
