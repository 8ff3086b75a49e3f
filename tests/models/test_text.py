"""Models of texts: padding that changes nothing, an LSTM and a convolution by hand, sizes, paths, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.core import trees
from fljax.models import MODELS, bilstm, mlp, text_cnn
from tests.models.test_networks import SMALL
from tests.precision import enable_x64

TEXTS = {
    "bilstm": {"embedding": 6, "hidden": 4, "dense": (5, 4)},
    "text_cnn": {"embedding": 6, "kernels": (3, 2), "maps": 5},
}
TOKENS = jnp.array([[3, 1, 4, 1, 5, 2], [2, 6, 5, 0, 0, 0], [6, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])

pytestmark = pytest.mark.usefixtures("quick_compilation", "strict")


def make(name, length=6, **options):
    task = MODELS[name]((length,), 3, vocabulary=7, **(TEXTS[name] | options))
    return task, jax.jit(task.init)(jax.random.key(0))


def test_every_model_has_its_contract():
    assert {*SMALL, *TEXTS} == set(MODELS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEXTS)
def test_contract(name):
    task, params = make(name)
    assert task.prepare is not None
    assert task.features is not None
    assert task.roles is not None
    for stored in (np.int32, np.uint8, np.float32):
        assert task.prepare(jnp.asarray(TOKENS, stored)).dtype == jnp.int32
    np.testing.assert_array_equal(task.prepare(jnp.asarray(TOKENS, jnp.uint8)), TOKENS)
    features, y = task.features, jnp.array([0, 2, 1, 1])

    @jax.jit
    def both(params):
        loss = lambda params: jnp.mean(task.loss(task.logits(params, TOKENS, jax.random.key(0)), y))  # noqa: E731
        return task.logits(params, TOKENS), features(params, TOKENS), jax.grad(loss)(params)

    logits, z, gradient = both(params)
    assert (logits.shape, logits.dtype) == ((4, 3), jnp.float32)
    np.testing.assert_allclose(
        z @ params["head"]["kernel"] + params["head"]["bias"][None], logits, rtol=1e-4, atol=1e-6
    )
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, params)
    assert all(jnp.isfinite(leaf).all() and (leaf != 0).any() for leaf in jax.tree.leaves(gradient))
    mask = jax.tree.map(lambda role: role == "head", task.roles(params))
    assert all(jax.tree.leaves(mask["head"]))
    assert sum(jax.tree.leaves(mask)) == 2
    half, _ = make(name, compute_dtype="bfloat16")
    np.testing.assert_allclose(jax.jit(half.logits)(params, TOKENS), logits, atol=0.05)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["text_cnn", pytest.param("bilstm", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("dropout", [False, True])
def test_padding_changes_nothing(name, dropout):
    task, params = make(name)
    other, _ = make(name, length=9)
    key = jax.random.key(1) if dropout else None
    longer = jnp.pad(TOKENS, ((0, 0), (0, 3)))
    run = jax.jit(lambda params, x: task.logits(params, x, key))
    short = run(params, TOKENS)
    np.testing.assert_allclose(jax.jit(lambda p, x: other.logits(p, x, key))(params, longer), short, atol=1e-6)
    # Nor does the vector of the padding token, but for a text without words.
    table = params["body"]["embedding"]["embedding"].at[0].set(5.0)
    changed = params | {"body": params["body"] | {"embedding": {"embedding": table}}}
    np.testing.assert_allclose(run(changed, TOKENS)[:3], short[:3], atol=1e-6)
    assert not np.allclose(run(params, TOKENS[:, ::-1])[0], short[0])


@pytest.mark.thorough
def test_bilstm_by_hand():
    """The last state of each direction, of one text of three words, by the equations of the LSTM."""
    task, params = make("bilstm")
    body = jax.tree.map(np.asarray, params["body"])
    text = np.array([2, 6, 5])
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731

    def last(name, words):
        own = body[f"{name}_lstm"]
        h = c = np.zeros(4)
        for word in words:
            x = body["embedding"]["embedding"][word]
            i, f, g, o = (
                x @ own[f"i{k}"]["kernel"] + h @ own[f"h{k}"]["kernel"] + own[f"h{k}"]["bias"] for k in "ifgo"
            )
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        return h

    z = np.concatenate([last("forward", text), last("backward", text[::-1])])
    for i in range(2):
        z = np.maximum(z @ params[f"dense_{i}"]["kernel"] + params[f"dense_{i}"]["bias"], 0)
    expected = z @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(jax.jit(task.logits)(params, TOKENS)[1], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_text_cnn_by_hand(row):
    """The largest value of each map over the windows of the text's own words."""
    task, params = make("text_cnn")
    body = jax.tree.map(np.asarray, params["body"])
    words = [word for word in np.asarray(TOKENS[row]) if word]
    x = body["embedding"]["embedding"][words]
    z = []
    for i, width in enumerate((3, 2)):
        filled = np.concatenate([x, np.zeros((max(width - len(x), 0), 6))])
        windows = [filled[k : k + width].reshape(-1) for k in range(len(filled) - width + 1)]
        z.append(np.maximum(np.stack(windows) @ body[f"conv_{i}"]["kernel"] + body[f"conv_{i}"]["bias"], 0).max(0))
    expected = np.concatenate(z) @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(jax.jit(task.logits)(params, TOKENS)[row], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.in_turn
def test_published_sizes_and_the_order_of_paths():
    params = jax.eval_shape(bilstm((50,), 5, vocabulary=1000).init, jax.random.key(0))
    one = 4 * (300 * 120 + 120 * 120 + 120)
    assert trees.size(params) == 1000 * 300 + 2 * one + 241 * 120 + 121 * 84 + 85 * 5
    # In the order of a pytree's leaves the layers stand as they follow each other.
    assert sorted(params) == ["body", "dense_0", "dense_1", "head"]
    params = jax.eval_shape(text_cnn((50,), 5, vocabulary=1000).init, jax.random.key(0))
    assert trees.size(params) == 1000 * 300 + 3 * 901 * 128 + 385 * 5


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEXTS)
def test_clients_with_their_own_parameters(name):
    task, _ = make(name)
    params = jax.jit(jax.vmap(task.init))(jax.random.split(jax.random.key(0), 3))
    gradient = jax.grad(lambda p, x: jnp.sum(task.loss(task.logits(p, x), jnp.array([0, 1, 2, 0]))))
    texts = jnp.stack([TOKENS, TOKENS[::-1], (TOKENS + 1) % 7])
    together, alone = jax.jit(jax.vmap(gradient))(params, texts), jax.jit(gradient)
    for i in range(3):
        own = jax.tree.leaves(alone(trees.take(params, i), texts[i]))
        for a, b in zip(jax.tree.leaves(trees.take(together, i)), own, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.in_turn
def test_dropout_only_with_a_key():
    task, params = make("bilstm")
    logits = jax.jit(task.logits)
    one, two = jax.random.split(jax.random.key(1))
    np.testing.assert_array_equal(logits(params, TOKENS), logits(params, TOKENS))
    assert not np.allclose(logits(params, TOKENS, one), logits(params, TOKENS, two))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TEXTS)
def test_float64(name):
    with enable_x64(True):
        task = MODELS[name]((6,), 3, vocabulary=7, dtype="float64", **TEXTS[name])
        params = jax.eval_shape(task.init, jax.random.key(0))
        logits = jax.eval_shape(task.logits, params, TOKENS)
        assert {leaf.dtype for leaf in jax.tree.leaves((params, logits))} == {jnp.dtype("float64")}


@pytest.mark.thorough
def test_equal_models():
    assert bilstm((5,), 2, vocabulary=9) == bilstm((5,), 2, vocabulary=9)
    assert mlp((5,), 2) != bilstm((5,), 2, vocabulary=9)
