"""Convolution in the batch-innermost layout: 20 shapes against XLA, blocks, squares, GroupNorm and pooling."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax.models import convolution, planes
from tests.laws.compare import assert_close

pytestmark = pytest.mark.usefixtures("strict_float64")

NHWC = ("NHWC", "HWIO", "NHWC")


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def drawn_shape(seed):
    """Batch (1 and large enough for blocks included), image, kernel, strides, padding and dilation from one seed."""
    rng = np.random.default_rng(1000 + seed)
    size = (int(rng.choice([1, 3, 5])),) * 2
    dilation = (1, 1) if rng.random() < 0.7 else (2, 1)
    batch = int(rng.choice([1, 2, 5, 40]))
    image = tuple(int(n) for n in rng.integers(10, 17, 2))
    padding = ["SAME", "VALID", [(1, 2), (0, 1)]][int(rng.integers(3))]
    strides = [(1, 1), (1, 1), (2, 2), (2, 1)][int(rng.integers(4))]
    channels, width = int(rng.choice([1, 3, 4])), int(rng.choice([2, 6, 17]))
    return (batch, *image, channels), (*size, channels, width), strides, padding, dilation


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(20))
def test_equals_lax_on_drawn_shapes(seed, monkeypatch):
    monkeypatch.setattr(planes, "CACHED", 2**16)  # small blocks, so that batches of 40 need several
    shape, kernel, strides, padding, dilation = drawn_shape(seed)
    x, w = normal(seed, shape, kernel)

    def outputs(f):
        apply = lambda x, w: f(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=NHWC)  # noqa: E731
        return apply(x, w), jax.grad(lambda x, w: jnp.sum(jnp.sin(apply(x, w))), (0, 1))(x, w)

    ours, theirs = jax.jit(lambda: (outputs(convolution), outputs(lax.conv_general_dilated)))()
    assert_close(ours, theirs, 1e-10)


def test_drawn_shapes_cover_the_cases():
    cases = [drawn_shape(seed) for seed in range(20)]
    assert {kernel[0] for _, kernel, *_ in cases} == {1, 3, 5}
    assert {strides for _, _, strides, *_ in cases} == {(1, 1), (2, 2), (2, 1)}
    assert {str(padding) for *_, padding, _ in cases} == {"SAME", "VALID", "[(1, 2), (0, 1)]"}
    assert {shape[0] for shape, *_ in cases} == {1, 2, 5, 40}
    assert any(dilation != (1, 1) for *_, dilation in cases)


@pytest.mark.parametrize(
    ("platform", "outputs", "native"), [("cpu", 64, 0), ("cuda", 4, 0), ("cuda", 64, 0), ("tpu", 4, 1)]
)
def test_a_convolution_is_native_on_tpus(platform, outputs, native):
    x, w = normal(0, (9, 8, 7, 3), (3, 3, 3, outputs))
    traced = jax.jit(lambda x, w: convolution(x, w, (1, 1), "SAME", dimension_numbers=NHWC)).trace(x, w)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.convolution") == native


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [(3, 3, 2, 4), (5, 5, 2, 4), (4, 3, 2, 4), (3, 3, 2, 20)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_squares_of_a_convolution(kernel, padding):
    x, w = normal(1, (2, 9, 8, 3), kernel)
    plain = planes.squares(planes.convolve(x, w, padding=padding))
    np.testing.assert_allclose(planes.convolve_squares(x, w, padding), plain, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(planes.whole(planes.squares(x[:, :8])), x[:, :8])


@pytest.mark.in_turn
def test_kernels_per_client(monkeypatch):
    monkeypatch.setattr(planes, "CACHED", 2**12)
    x, w = normal(2, (3, 21, 8, 8, 2), (3, 3, 3, 2, 4))

    def gradient(f):
        def loss(w, x):
            return jnp.sum(f(x, w, (1, 1), "SAME", dimension_numbers=NHWC) ** 3)

        return jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(w, x)

    assert planes.block_size(21, planes.patch_size(w.shape[1:], 64, squared=True)) == 7
    for a, b in zip(gradient(convolution), gradient(lax.conv_general_dilated), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.in_turn
@pytest.mark.parametrize("batch", [0, 1, 16, 23, 37])
def test_blocks_change_nothing(batch):
    (x,) = normal(3, (batch, 4, 4, 2))
    (w,) = normal(4, (3, 3, 2, 3))
    seen = []

    def network(x):
        seen.append(x.shape[-1])
        return jnp.sin(planes.convolve(x, w))

    y = planes.in_blocks(network, x, planes.CACHED // 16)
    expected = jnp.sin(lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC))
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    assert seen[0] == {0: 0, 1: 1, 16: 16, 23: 12, 37: 13}[batch]


@pytest.mark.thorough
@pytest.mark.parametrize("axis", [0, 1])
def test_group_norm(axis):
    x, scale, bias = normal(5, (3, 5, 4, 6), (6,), (6,))
    layer = nn.GroupNorm(3)

    def theirs(x, scale, bias):
        with jax.numpy_dtype_promotion("standard"):  # flax's own layer mixes float32 and float64
            return jnp.asarray(layer.apply({"params": {"scale": scale, "bias": bias}}, x))

    def ours(x, scale, bias):
        to, back = ((3, 1, 2, 0), (3, 1, 2, 0)) if axis == 0 else ((1, 3, 2, 0), (3, 0, 2, 1))
        return planes.group_norm(x.transpose(to), scale, bias, 3, axis=axis).transpose(back)

    np.testing.assert_allclose(ours(x, scale, bias), theirs(x, scale, bias), rtol=1e-10, atol=1e-12)
    a, b = (jax.grad(lambda *v, f=f: jnp.sum(f(*v) ** 3), (0, 1, 2))(x, scale, bias) for f in (ours, theirs))
    for one, two in zip(a, b, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.thorough
def test_largest_of_squares():
    (x,) = normal(6, (2, 7, 6, 3))

    def ours(x):
        return planes.largest(planes.squares(x.transpose(3, 1, 2, 0))).transpose(3, 1, 2, 0)

    def theirs(x):
        return nn.max_pool(x, (2, 2), strides=(2, 2))

    np.testing.assert_array_equal(ours(x), theirs(x))
    a, b = (jax.grad(lambda x, f=f: jnp.sum(f(x) ** 3))(x) for f in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_array_equal(
        jax.grad(lambda x: jnp.sum(ours(x)))(jnp.ones((1, 2, 2, 1)))[0, :, :, 0], [[1, 0], [0, 0]]
    )
    assert jnp.isnan(ours(x.at[0, 1, 1, 0].set(jnp.nan))[0, 0, 0, 0])
