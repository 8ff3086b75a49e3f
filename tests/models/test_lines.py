"""Convolution line by line: against XLA's own, with kernels per client, differentiated twice, in half precision."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fljax.models import convolution, lines, planes
from tests.laws.compare import assert_close
from tests.models.test_planes import normal

pytestmark = pytest.mark.usefixtures("strict_float64")

NHWC = ("NHWC", "HWIO", "NHWC")
CASES = [  # image, batch, kernel, padding
    ((8, 9, 3), 40, (3, 3, 3, 4), "SAME"),
    ((8, 9, 3), 40, (3, 3, 3, 4), "VALID"),
    ((7, 9, 2), 40, (5, 5, 2, 3), "SAME"),
    ((7, 9, 2), 40, (5, 3, 2, 3), [(0, 3), (1, 0)]),
    ((7, 9, 2), 40, (4, 1, 2, 3), [(3, 0), (0, 2)]),
    ((3, 16, 2), 19, (3, 3, 2, 3), "VALID"),
]


@pytest.fixture
def small_cache(monkeypatch):
    """Every image of these tests is too large for it."""
    monkeypatch.setattr(planes, "CACHED", 1000)


def by_lines(x, kernel, padding):
    return lines.convolve(x.transpose(1, 3, 2, 0), kernel, padding=padding).transpose(3, 0, 2, 1)


def by_xla(x, kernel, padding):
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=NHWC)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("image", "batch", "kernel", "padding"), CASES)
def test_equals_lax(image, batch, kernel, padding, small_cache):
    x, w = normal(0, (batch, *image), kernel)
    assert lines.worth_lines(image[:2], batch, kernel, (1, 1), padding, (1, 1), x.dtype)

    def outputs(f):
        return f(x, w, padding), jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w, padding))), (0, 1))(x, w)

    ours, theirs = jax.jit(lambda: (outputs(by_lines), outputs(by_xla)))()
    assert_close(ours, theirs, 1e-10)


def test_what_is_left_to_planes():
    def worth(**changed: Any):
        usual: dict[str, Any] = {"size": (32, 32), "batch": 32, "kernel": (3, 3, 64, 64), "padding": "SAME"}
        usual |= {"strides": (1, 1), "dilation": (1, 1), "dtype": jnp.float32}
        return lines.worth_lines(**(usual | changed))

    assert worth()
    assert not worth(batch=4), "short lines"
    assert not worth(kernel=(1, 1, 64, 64)), "no patches"
    assert not worth(kernel=(3, 3, 1, 64)), "patches stay in a cache"
    assert not worth(strides=(2, 2))
    assert not worth(dilation=(2, 1))
    assert not worth(dtype=jnp.bfloat16), "sums over lines would round"
    assert not worth(padding=[(3, 0), (1, 1)]), "whole lines of padding"
    assert not worth(padding=[(1, 1), (-1, 1)])


@pytest.mark.in_turn
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_falls_back_to_planes(strides):
    x, w = normal(1, (2, 6, 7, 3), (3, 3, 3, 4))
    y = lines.convolve(x.transpose(1, 3, 2, 0), w, strides, "SAME").transpose(3, 0, 2, 1)
    expected = lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=NHWC)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_kernels_per_client(small_cache):
    x, w = normal(2, (3, 40, 8, 9, 2), (3, 3, 3, 2, 4))

    def gradient(f):
        def loss(w, x):
            return jnp.sum(jnp.sin(f(x, w, "SAME")))

        return jax.vmap(jax.grad(loss))(w, x)

    np.testing.assert_allclose(gradient(by_lines), gradient(by_xla), rtol=1e-10, atol=1e-10)


@pytest.mark.thorough
def test_second_derivatives_and_forward_mode(small_cache):
    x, w, dx, dw = normal(3, (40, 6, 7, 2), (3, 3, 2, 3), (40, 6, 7, 2), (3, 3, 2, 3))

    def twice(f):
        def slope(x, w):
            return jax.jvp(lambda x, w: jnp.sum(jnp.sin(f(x, w, "SAME"))), (x, w), (dx, dw))[1]

        return jax.grad(slope, (0, 1))(x, w)

    for a, b in zip(twice(by_lines), twice(by_xla), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.in_turn
def test_half_precision_rounds_once(small_cache):
    """Sums over lines of an image, as of a kernel's gradient, are not kept in half precision."""
    x, w = (v.astype(jnp.bfloat16) for v in normal(4, (40, 30, 7, 2), (3, 3, 2, 3)))
    wide = (x.astype(jnp.float32), w.astype(jnp.float32))

    def slope(f, x, w):
        return jax.grad(lambda w: f(x, w, "SAME").astype(jnp.float32).sum())(w)

    ours, expected = slope(by_lines, x, w), slope(by_xla, *wide)
    assert ours.dtype == jnp.bfloat16
    size = jnp.linalg.norm(expected)
    assert jnp.linalg.norm(ours.astype(jnp.float32) - expected) < 2.0**-8 * size
    once = by_xla(*wide, "SAME")
    np.testing.assert_allclose(by_lines(x, w, "SAME").astype(jnp.float32), once, rtol=2.0**-8, atol=2.0**-8)


@pytest.mark.in_turn
def test_sums_may_be_of_another_type(small_cache):
    x, w = (v.astype(jnp.float32) for v in normal(4, (40, 6, 7, 2), (3, 3, 2, 3)))
    wide = lines.convolve(x.transpose(1, 3, 2, 0), w, padding="SAME", preferred_element_type=jnp.float64)
    expected = by_xla(x.astype(jnp.float64), w.astype(jnp.float64), "SAME")
    assert wide.dtype == jnp.float64
    np.testing.assert_allclose(wide.transpose(3, 0, 2, 1), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_in_a_flax_layer(small_cache):
    (x,) = normal(5, (40, 8, 9, 3))
    plain = nn.Conv(4, (3, 3), param_dtype=jnp.float64)
    ours = nn.Conv(4, (3, 3), param_dtype=jnp.float64, conv_general_dilated=convolution)
    params = plain.init(jax.random.key(0), x)
    assert "while" in jax.jit(ours.apply).lower(params, x).as_text()
    got, expected = (jnp.asarray(layer.apply(params, x)) for layer in (ours, plain))
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
