"""The built-in models: sizes counted by hand, dropout, vmap over clients, caching, errors."""

from __future__ import annotations

import functools
import inspect
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.core import trees
from fljax.models import MODELS, cnn, cnn_a, cnn_b, cnn_c, logistic_regression, mlp, standardise
from fljax.models.task import Common, network_task
from tests.precision import enable_x64

pytestmark = pytest.mark.usefixtures("strict")


def count(task):
    return trees.size(jax.eval_shape(task.init, jax.random.key(0)))


@pytest.mark.thorough
def test_parameter_counts():
    assert count(logistic_regression((60,), 10)) == 61 * 10
    assert count(mlp((28, 28, 1), 10)) == 785 * 64 + 65 * 30 + 31 * 10
    lenet = 6 * 16 * 25 + 16
    assert count(cnn_a((28, 28, 1), 10)) == 26 * 6 + lenet + 257 * 120 + 121 * 84 + 85 * 10 == 44426
    assert count(cnn_b((32, 32, 3), 10)) == 76 * 6 + lenet + 401 * 120 + 121 * 84 + 85 * 10 == 62006
    assert count(cnn_b((32, 32, 3), 100)) == 62006 + 85 * 90
    convolutions = 10 * 32 + (32 * 9 + 1) * 64 + 2 * (64 * 9 + 1) * 64
    assert count(cnn_c((28, 28, 1), 52)) == convolutions + 2305 * 128 + 129 * 52
    assert count(cnn_c((32, 32, 3), 10)) == convolutions + 18 * 32 + 3137 * 128 + 129 * 10
    assert count(cnn((8, 8, 1), 3, blocks=[[4], [6]], dense=[5])) == 40 + 37 * 6 + 25 * 5 + 6 * 3
    normalised = cnn((8, 8), 3, blocks=[[4], [6]], dense=[5], groups=2)
    assert count(normalised) == 40 + 37 * 6 + 25 * 5 + 6 * 3 + 2 * (4 + 6)


@pytest.mark.in_turn
def test_published_networks_are_options():
    """INCFL's LeNet for CIFAR-10 and its network for Sentiment140; the CNN of 62 classes for MaxFL's EMNIST."""
    lenet = cnn((32, 32, 3), 10, blocks=[[6], [16]], kernel=5, padding="VALID", dense=[120, 100, 84, 50])
    convolutions = 76 * 6 + 6 * 16 * 25 + 16
    assert count(lenet) == convolutions + 401 * 120 + 121 * 100 + 101 * 84 + 85 * 50 + 51 * 10
    assert count(mlp((200,), 2, hidden=[128, 86, 30], dropout=0.0)) == 201 * 128 + 129 * 86 + 87 * 30 + 31 * 2
    wide = cnn((28, 28, 1), 62, blocks=[[32, 64]], padding="VALID", dense=[128])
    assert count(wide) == 10 * 32 + 32 * 64 * 9 + 64 + (12 * 12 * 64 + 1) * 128 + 129 * 62


SMALL = {
    "logistic_regression": ((5,), {}),
    "mlp": ((4, 3), {"hidden": (6, 4)}),
    "cnn": ((6, 6, 2), {"blocks": ((4,), (4,)), "dense": (5,), "groups": 2, "dropout": 0.5}),
    "cnn_a": ((28, 28, 1), {}),
    "cnn_b": ((32, 32, 3), {}),
    "cnn_c": ((28, 28, 1), {}),
    "resnet18": ((32, 32, 3), {}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SMALL)
def test_contract(name):
    shape, options = SMALL[name]
    task = MODELS[name](shape, 3, prepare=standardise(0.5, 0.25), **options)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, *shape), np.uint8))

    assert task.prepare is not None
    assert task.features is not None
    assert task.roles is not None
    prepare, features = task.prepare, task.features

    def everything(key):
        params = task.init(key)

        def loss(params):
            return jnp.mean(task.loss(task.logits(params, prepare(x), key), jnp.array([0, 2, 1, 1])))

        z, head = features(params, prepare(x)), params["head"]
        by_hand = z @ head["kernel"] + head["bias"][None]
        return params, task.logits(params, prepare(x)), by_hand, jax.value_and_grad(loss)(params)

    # The large ones are traced only.
    run = (
        jax.jit(everything)
        if name not in ("cnn_a", "cnn_b", "cnn_c", "resnet18")
        else functools.partial(jax.eval_shape, everything)
    )
    params, logits, by_hand, (value, gradient) = run(jax.random.key(0))
    assert logits.shape == (4, 3)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, logits, value))} == {jnp.dtype(jnp.float32)}
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, params)
    mask = jax.tree.map(lambda role: role == "head", task.roles(params))
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    assert all(jax.tree.leaves(mask["head"]))
    assert sum(jax.tree.leaves(mask)) == 2
    assert jax.eval_shape(task.logits, params, jnp.zeros((0, *shape))).shape == (0, 3)
    if isinstance(value, jax.Array):
        np.testing.assert_allclose(by_hand, logits, rtol=1e-4, atol=1e-5)
        assert jnp.isfinite(value)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_clients_with_their_own_parameters(name):
    shape, options = SMALL[name]
    task = MODELS[name](shape, 3, **options)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, *shape)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 3)

    def loss(params, x, key):
        return jnp.sum(task.loss(task.logits(params, x, key), jnp.array([0, 1])))

    def client(key, x):
        def step(p, k):
            return jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss)(p, x, k)), None

        return jax.lax.scan(step, task.init(key), jax.random.split(key, 2))[0]

    together, alone = jax.jit(jax.vmap(client))(keys, x), jax.jit(client)
    for i in range(3):
        rows = jax.tree.leaves(trees.take(together, i))
        for a, b in zip(rows, jax.tree.leaves(alone(keys[i], x[i])), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_dropout_only_with_a_key():
    task = mlp((20,), 3, hidden=(200, 4), dropout=0.5)
    params, logits = jax.jit(task.init)(jax.random.key(0)), jax.jit(task.logits)
    x = jnp.ones((2, 20))
    one, two = jax.random.split(jax.random.key(1))
    np.testing.assert_array_equal(logits(params, x), logits(params, x))
    np.testing.assert_array_equal(logits(params, x, one), logits(params, x, one))
    assert not np.allclose(logits(params, x, one), logits(params, x))
    assert not np.allclose(logits(params, x, one), logits(params, x, two))
    without = jax.jit(mlp((20,), 3, hidden=(200, 4), dropout=0.0).logits)
    np.testing.assert_array_equal(without(params, x, one), logits(params, x))


@pytest.mark.in_turn
def test_float64():
    with enable_x64(True):
        # A float32 example is cast, so that prepare and the model need not be told twice.
        for task, shape in (
            (mlp((4,), 2, dtype=jnp.float64), (4,)),
            (cnn((4, 4), 2, dtype="float64"), (4, 4)),
        ):
            params = jax.eval_shape(task.init, jax.random.key(0))
            logits = jax.eval_shape(task.logits, params, jnp.ones((1, *shape), jnp.float32))
            loss = jax.eval_shape(task.loss, logits, jnp.array([1]))
            assert {leaf.dtype for leaf in jax.tree.leaves((params, logits, loss))} == {jnp.dtype("float64")}


def test_equal_calls_share_compiled_programs():
    mean = np.array([0.1, 0.2])
    tasks = [mlp((3, 2), 4, hidden=[8], prepare=standardise(mean, [1.0, 2.0])) for _ in range(2)]
    assert tasks[0] == tasks[1]
    assert hash(tasks[0]) == hash(tasks[1])
    assert mlp((3, 2), 4, hidden=[9]) != mlp((3, 2), 4, hidden=[8])

    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def program(task, x):
        traces.append(task)
        return task.prepare(x)

    for task in tasks:
        program(task, jnp.ones((1, 3, 2)))
    assert len(traces) == 1


@pytest.mark.in_turn
def test_standardise():
    prepare = standardise([0.5, 0.25], [0.5, 0.25])
    x = jnp.array([[[255, 0]]], jnp.uint8)
    np.testing.assert_allclose(prepare(x), [[[1.0, -1.0]]])
    np.testing.assert_allclose(prepare(jnp.array([[1.0, 0.5]])), [[1.0, 1.0]])
    assert standardise()(jnp.array([255], jnp.uint8)).dtype == jnp.float32
    assert standardise(0.5, 2) is standardise(0.5, 2.0)
    with enable_x64(True):
        assert standardise(0.5, dtype=jnp.float64)(jnp.ones(2, jnp.float32)).dtype == jnp.float64


@pytest.mark.thorough
def test_paddings_and_dropout_may_differ_by_layer():
    """IP-FL's network against flax's own layers, with and without dropout in front of the dense layer."""
    task = cnn_c((28, 28, 1), 5)
    params = jax.jit(task.init)(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 28, 28, 1)), jnp.float32)

    def convolved(x, layer, padding):
        found = jax.lax.conv_general_dilated(
            x, layer["kernel"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(found + layer["bias"][None, None, None])

    def by_hand(x):
        for i, padding in enumerate(("SAME", "VALID", "SAME", "SAME")):
            x = convolved(x, params[f"conv_{i}"], padding)
            if i % 2:
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(len(x), -1)
        assert x.shape[1] == 2304
        x = jax.nn.relu(x @ params["dense_0"]["kernel"] + params["dense_0"]["bias"][None])
        return x @ params["head"]["kernel"] + params["head"]["bias"][None]

    np.testing.assert_allclose(jax.jit(task.logits)(params, x), by_hand(x), rtol=1e-4, atol=1e-4)


def test_options_that_all_networks_have_are_shown_by_each() -> None:
    shown = {name: dict(inspect.signature(build).parameters) for name, build in MODELS.items() if name in SMALL}
    common = dict(inspect.signature(network_task).parameters)
    assert [*Common.__annotations__, "stored"] == list(common)[3:]  # what a builder says itself
    for name, parameters in shown.items():
        assert list(parameters)[:7] == ["input_shape", "classes", *Common.__annotations__]
        assert {each.kind for each in list(parameters.values())[2:]} == {inspect.Parameter.KEYWORD_ONLY}
        assert [parameters[each].default for each in Common.__annotations__] == [None, None, jnp.float32, None, "flax"]
        assert typing.get_type_hints(MODELS[name]).keys() == {*parameters, "return"}
        assert all(f"\n  {each}: " in (inspect.getdoc(MODELS[name]) or "") for each in parameters)
    assert typing.get_type_hints(Common) == {
        name: typing.get_type_hints(network_task)[name] for name in Common.__annotations__
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_an_image_may_be_low(name):
    assert MODELS[name]((4, 32, 16), 10).classes == 10
