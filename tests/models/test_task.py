"""Tasks from one's own modules: linen and nnx agree with NumPy, dropout, refused state, messages."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax.models import convolution, cross_entropy, mlp, task_from_module

X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


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


@pytest.mark.sampled(3)
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


def test_features_and_head():
    assert task_from_module(Linen(), X).features is None
    assert task_from_module(nn.Dense(3), X).features is None  # nn.Dense.features is a width
    task = task_from_module(Nnx, X, head=lambda path: path.startswith("out/"))
    params = jax.jit(task.init)(jax.random.key(0))
    assert task.features is not None
    assert task.roles is not None
    (w, b) = pairs(params["out"])[0]
    np.testing.assert_allclose(
        task.features(params, jnp.asarray(X)) @ w + b[None], task.logits(params, X), rtol=1e-4, atol=1e-5
    )
    assert task.roles(params)["out"] == {"kernel": "head", "bias": "head"}
    assert task.roles(params)["layers"][0] == {"kernel": "trained", "bias": "trained"}
    with pytest.raises(ValueError, match=r"valid names are .*Dense_0/kernel"):
        task_from_module(Linen(), X, head=lambda path: False)


def test_equal_modules_give_the_same_task():
    assert task_from_module(Linen(), X) is task_from_module(Linen(), X[:1])
    assert task_from_module(Nnx, X) is task_from_module(Nnx, X)


def test_default_prepare():
    class Tokens(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.Embed(9, 4)(x).mean(axis=1))

    task = task_from_module(Tokens(), jnp.zeros((1, 6), jnp.int32))
    assert task.prepare is not None
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


def test_cross_entropy():
    logits = jnp.log(jnp.array([[0.2, 0.8], [0.5, 0.5]]))
    np.testing.assert_allclose(cross_entropy(logits, jnp.array([1, 0])), -np.log([0.8, 0.5]), rtol=1e-6)


def test_state_is_refused():
    class Counting(nnx.Module):
        def __init__(self, rngs):
            self.count = nnx.Cache(jnp.zeros(()))

        def __call__(self, x):
            return x

    with pytest.raises(ValueError, match=r"only state is parameters and running averages, got \['Cache'\] in Counting"):
        task_from_module(Counting, X)


def test_group_norm_is_accepted():
    class Grouped(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic: bool = True):
            x = nn.Dropout(0.5)(nn.GroupNorm(2)(nn.Dense(4)(x)), deterministic=deterministic)
            return nn.Dense(2)(x)

    task = task_from_module(Grouped(), X)
    params = jax.jit(task.init)(jax.random.key(0))
    assert task.logits(params, X, jax.random.key(0)).shape == (4, 2)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Linen, "expected a flax.linen.Module instance"),
        (3, "expected a flax.linen.Module instance"),
        (lambda rngs: 3, "expected a function rngs -> nnx.Module"),
        (nnx.Linear(5, 3, rngs=nnx.Rngs(0)), "such as lambda rngs"),
    ],
)
def test_not_a_module(module, message):
    with pytest.raises(ValueError, match=message):
        task_from_module(module, X)


def test_wrong_width():
    with pytest.raises(ValueError, match=r"shape \[b, 4\], got \[1, 3\]"):
        task_from_module(Linen(), X, classes=4)


def test_examples_in_double_precision_are_stored_in_single():
    """The newest JAX warns where a dtype is asked for that it does not hold now."""
    single, double = (task_from_module(Linen(), np.zeros((1, 5), kind), classes=3) for kind in ("float32", "float64"))
    assert double is single
