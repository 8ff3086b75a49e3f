"""Models that nobody can build: each is refused in one sentence before anything is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fljax.models import (
    MODELS,
    bilstm,
    channels_last,
    cnn,
    cnn_a,
    cnn_c,
    convolution,
    correct,
    cross_entropy,
    lines,
    logistic_regression,
    mlp,
    resnet18,
    squared_error,
    standardise,
    task_from_module,
    text_cnn,
)
from tests.models.test_network import CASES

Row = tuple[Callable[[], Any], str]
NHWC = ("NHWC", "HWIO", "NHWC")
X = np.zeros((3, 5), np.float32)

ROWS: list[Row] = [
    (lambda name=name, options=options: MODELS[name]((8, 8, 1), 10, **options), words)
    for name, options, words in [
        ("mlp", {"hidden": [0]}, "hidden of whole numbers from 1 to 2147483647, got 0"),
        ("mlp", {"hidden": [-4]}, "hidden of whole numbers .* got -4"),
        ("mlp", {"hidden": [10**18]}, "hidden of whole numbers .* got 1000000000000000000"),
        ("mlp", {"hidden": [10**9]}, r"parameters of at most 2147483647 entries each, got .*\[64, 1000000000\]"),
        ("mlp", {"dropout": 1.0}, "dropout .* below 1, got 1.0"),
        ("mlp", {"dropout": -0.5}, "dropout to be at least 0 .*, got -0.5"),
        ("mlp", {"dtype": jnp.int32}, "floating dtype"),
        ("mlp", {"dtype": jnp.float64}, "jax_enable_x64"),
        ("mlp", {"augment": "crop_flop"}, "augmentations? .*crop_flip.*'crop_flop'"),
        ("cnn", {"blocks": []}, r"blocks of at least one layer each, got \[\]"),
        ("cnn", {"blocks": [[]]}, r"blocks of at least one layer each, got \[\[\]\]"),
        ("cnn", {"blocks": [[0]]}, "blocks of whole numbers .* got 0"),
        ("cnn", {"dense": [-1]}, "dense of whole numbers .* got -1"),
        ("cnn", {"kernel": 0}, "kernel and groups of whole numbers .* got 0"),
        ("cnn", {"kernel": 10**6}, "a kernel of at most 15 for images of 8 x 8, got 1000000"),
        ("cnn", {"groups": 0}, "kernel and groups of whole numbers .* got 0"),
        ("cnn", {"groups": 3}, "groups to divide"),
        ("cnn", {"padding": "VALID", "kernel": 5}, "large enough"),
        ("cnn", {"padding": "same"}, "valid names are"),
        ("cnn_c", {}, r"inputs of shape \(32, 32, 3\) or \(28, 28, 1\) for cnn_c, got"),
    ]
]
ROWS += [
    (lambda options=options: bilstm((5,), 2, vocabulary=10, **options), words)
    for options, words in [
        ({"hidden": 0}, "embedding and hidden"),
        ({"embedding": -1}, "embedding and hidden"),
        ({"dense": [0]}, "dense"),
        ({"dropout": 2.0}, "dropout"),
    ]
]
ROWS += [
    (lambda: bilstm((5,), 2, vocabulary=1), "vocabulary of at least 2 tokens"),
    (lambda: bilstm((28, 28, 1), 10), r"texts for bilstm, .* shape \(28, 28, 1\) without"),
    (lambda: text_cnn((60,), 10), r"texts for text_cnn, .* shape \(60,\) without"),
    (lambda: text_cnn((5,), 2, vocabulary=9, kernels=(3, 0)), "kernels of at least 1 word"),
    (lambda: cnn_a((32, 32, 3), 10), r"\(28, 28, 1\) for cnn_a, got \(32, 32, 3\)"),
    (lambda: cnn_c((8, 8, 1), 5), r"\(32, 32, 3\) or \(28, 28, 1\) for cnn_c, got"),
    (lambda: cnn((3, 3, 1), 2), "large enough"),
    (lambda: cnn((8,), 2), "input shape"),
    (lambda: resnet18((32,), 10), "input shape"),
    (lambda: mlp((60,), 3, augment="crop_flip"), r"images for the augmentation crop_flip, got .*\(60,\)"),
    (lambda: standardise(0.0, [1.0, 0.0]), "std > 0"),
    (lambda: convolution(jnp.zeros((1, 2, 2, 1)), jnp.ones((3, 3, 1, 1)), (1, 1), "VALID", dimension_numbers=NHWC),
     "at least 3 pixels, got 2"),
    (lambda: lines.convolve(jnp.zeros((2, 3, 2, 300)), jnp.ones((3, 3, 3, 4))), "at least 3 pixels, got 2"),
    (lambda: channels_last.convolve_by_tiles(jnp.zeros((1, 4, 6, 1)), jnp.zeros((5, 5, 1, 2)), "VALID", 2),
     "at least 5 pixels, got 4"),
]  # fmt: skip
ROWS += [
    (lambda name=name, shape=shape: MODELS[name](shape, 10), r"\(height, width, channels\), got .*channels are first")
    for name in ("cnn", "resnet18")
    for shape in ((3, 32, 32), (1, 28, 28), (4, 64, 64))
]
ROWS += [
    (lambda each=each, key=key: logistic_regression((4,), 2, **cast(Any, {key: each})), "a floating dtype for a model")
    for key in ("dtype", "compute_dtype")
    for each in (0, True, "", "x", "i4, (", "longdouble", [], {"x": 1}, [[]], object(), "int32")
]
LOGITS = jnp.zeros((2, 4))
ROWS += [
    (lambda judge=judge, y=y: judge(LOGITS, y), "a whole-number label for each vector of logits")
    for judge in (cross_entropy, correct)
    for y in (jnp.zeros((2, 1), int), jnp.zeros(2), jnp.zeros(3, int))
]


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(x)


class Mean(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return jnp.mean(nn.Dense(1)(x), axis=0)


class Texts(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4)(x[:, :, None])


class Counting(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.count = nnx.Cache(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        return x


ROWS += [
    (lambda module=module, options=options: task_from_module(module, X, **options), words)
    for module, options, words in [
        (Layer, {}, "a flax.linen.Module instance"),
        (3, {}, "a flax.linen.Module instance"),
        (lambda rngs: 3, {}, "the function <lambda> to return an nnx.Module"),
        (nnx.Linear(5, 3, rngs=nnx.Rngs(0)), {}, "such as lambda rngs"),
        (Layer(), {"classes": 4}, r"shape \[b, 4\], got \[1, 3\]"),
        (Layer(), {"head": lambda path: False}, "valid names are .*Dense_0/kernel"),
        (Counting, {}, r"only state is parameters and running averages, got \['Cache'\] in Counting"),
        (Mean(), {"loss": squared_error}, r"Mean to return one array \[2, ...\], got .* float32 of shape \[1\]"),
        (Texts(), {}, r"got \[1, 5, 4\] for b = 1; other shapes need a loss of their own"),
    ]
]
ROWS += [
    (lambda options=options: task_from_module(nn.Dense(1), X, example_y=np.zeros(3, np.float32), **options), words)
    for options, words in [
        ({"loss": lambda out, y: jnp.mean(out)}, "the loss <lambda> to return one number per sample"),
        ({"loss": lambda out, y: (out - y[:, None]) ** 2}, "the loss <lambda> to return one number per sample"),
        ({"loss": squared_error, "score": lambda out, y: jnp.ones(())}, "the score <lambda> .* one number per sample"),
        ({}, "a whole-number label for each vector of logits"),
        ({"loss": squared_error, "classes": 3}, r"logits of shape \[b, 3\], got \[1, 1\]"),
    ]
]
ROWS += [(lambda: squared_error(jnp.zeros((2, 1)), jnp.array([3.0])), r"predictions, \[2, 1\], got \[1\]")]


@pytest.mark.unchecked
@pytest.mark.parametrize(("build", "words"), [pytest.param(*row, id=row[1]) for row in ROWS])
def test_a_refusal_is_one_sentence_that_names_it(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        build()
    assert str(caught.value).startswith("expected ")
    assert "\n" not in str(caught.value)


@pytest.mark.in_turn
@pytest.mark.unchecked
@pytest.mark.parametrize("name", CASES)
def test_an_unknown_initialisation(name: str) -> None:
    shape, own = CASES[name]
    with pytest.raises(ValueError, match="initialisation, got 'torch'; valid names are 'flax', 'framework'"):
        MODELS[name](shape, 10, initialisation="torch", **own)
